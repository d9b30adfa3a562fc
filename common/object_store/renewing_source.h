// A source that searches places in their order and renews the credentials that it has found. The
// header of CredentialSource describes its calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/object_store/credential_places.h"
#include "common/object_store/credentials.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

// After an attempt to renew credentials that are still valid, the next attempt begins not earlier
// than this. A service may give out the same credentials until shortly before their end.
inline constexpr std::chrono::seconds kBetweenRenewals{10};

class RenewingSource final : public CredentialSource {
 public:
  // `scheme` is "s3" or "gs", for messages. `hint` ends the error for missing credentials. The
  // clock outlives the source.
  RenewingSource(std::string scheme, std::vector<Place> places, std::string hint,
                 const Clock* clock);
  absl::StatusOr<Credentials> Get() override;
  void Refused(const Credentials& used) override;

 private:
  struct Held {
    Credentials credentials;
    bool read_each_time = false;
    bool refused = false;
  };

  // Returns the result of Get without a renewal by this thread, or nullopt if this thread must
  // renew.
  std::optional<absl::StatusOr<Credentials>> WaitOrBegin();
  absl::StatusOr<Held> Search() const;
  absl::StatusOr<Credentials> End(absl::StatusOr<Held> found);
  bool IsUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string scheme_;
  const std::vector<Place> places_;
  const std::string hint_;
  const Clock& clock_;
  Mutex mu_;
  CondVar ended_;  // an attempt has ended
  std::optional<Held> held_ ABSL_GUARDED_BY(mu_);
  bool renewing_ ABSL_GUARDED_BY(mu_) = false;  // one thread is in Search
  std::uint64_t attempts_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);  // of the last attempt
  MonoTime next_attempt_ ABSL_GUARDED_BY(mu_){0};
};

}  // namespace evergrad::object_store
