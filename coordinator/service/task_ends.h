// Rejects and closes sessions, carries out the changes of membership (for example the end of a
// lease), and informs the jobs.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/service/service_parts.h"

namespace evergrad::coordinator {

class TaskEnds {
 public:
  // `on_session_closed` is called once for each session that ends.
  TaskEnds(ServiceParts parts, std::function<void()> on_session_closed)
      : parts_(parts), on_session_closed_(std::move(on_session_closed)) {}

  // Sends Rejected as the last message of the session, and closes it. The README lists the kinds.
  // Does nothing if the session has ended.
  void Reject(std::uint64_t session, absl::string_view kind, absl::string_view message, bool exit,
              std::chrono::milliseconds retry_after,
              const std::optional<RegisterVerdict::Holder>& holder = std::nullopt);
  // Rejects the session with the kind `malformed`. The task may register again after the time of
  // one lease. No metric is counted.
  void RejectMalformed(std::uint64_t session, absl::string_view message) {
    Reject(session, "malformed", message, false, parts_.membership->options().lease);
  }
  void Close(std::uint64_t session);  // a repeated call changes nothing
  // Tells the jobs about changes of membership, and ends the sessions of tasks that are gone.
  void Apply(const std::vector<MembershipChange>& changes);

 private:
  void Apply(const MembershipChange& change);

  const ServiceParts parts_;
  const std::function<void()> on_session_closed_;
};

}  // namespace evergrad::coordinator
