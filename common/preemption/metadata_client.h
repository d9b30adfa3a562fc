// Sends requests to a metadata service over plain HTTP, one connection each.
//
// The peer can neither block this process nor make it use more memory: a request ends after its
// timeout however slowly bytes arrive, an answer has at most 64 KiB (http_response.h), and Wake()
// ends a wait or a request at once. The address is numeric, because a name would need a resolver,
// which cannot be interrupted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/fs/descriptor.h"
#include "common/preemption/clouds/cloud_watch.h"
#include "common/time/clock.h"

namespace evergrad::preemption {

// The address of the metadata service, which is the same in all three clouds.
inline constexpr const char* kMetadataUrl = "http://169.254.169.254";

struct MetadataAddress {
  std::string host;  // "169.254.169.254" or "fd00:ec2::254"
  std::uint16_t port = 80;
  bool v6 = false;
};

// Parses "http://ADDRESS" or "http://ADDRESS:PORT", where ADDRESS is 127.0.0.1, [::1] or localhost,
// for example. A slash at the end is allowed. Returns nullopt for anything else.
std::optional<MetadataAddress> ParseMetadataUrl(absl::string_view url);

class MetadataClient {
 public:
  // `clock` outlives the client.
  MetadataClient(MetadataAddress address, const Clock* clock);
  MetadataClient(const MetadataClient&) = delete;
  MetadataClient& operator=(const MetadataClient&) = delete;

  // One thread calls these two functions. Each returns early after Wake(): Wait returns false, and
  // Send returns nullopt. The call that returns early consumes the wake-up.
  bool Wait(std::optional<std::chrono::milliseconds> time);  // nullopt waits for Wake()
  std::optional<Answer> Send(const Request& request);
  // Thread-safe. If no call is in progress, the next call returns early.
  void Wake();

 private:
  enum class Ready { kYes, kTimeout, kWoken };
  // Waits until the descriptor (-1 for none) has one of `events`, or until `end`.
  Ready WaitFor(int descriptor, short events, std::optional<MonoTime> end);
  std::optional<Answer> Exchange(const Request& request, MonoTime end);

  const MetadataAddress address_;
  const Clock* const clock_;
  const fs::Descriptor wake_;
};

}  // namespace evergrad::preemption
