// Named failpoints: places in the code where a test makes something go wrong.
//
// Off unless a daemon is started with `--failpoints "name=action;name=action"` on loopback.
// Thread-safe.
//   action    `kill` (SIGKILL of the own process) | `error` (the site returns an Internal error) |
//   `user_error` |
//             `drop` | `delay(MS)` | `stop` (SIGSTOP of the own process) | `on` (the site asks
//             IsArmed only)
//   prefix    `N*action`   only at the N-th hit and never again;  `N+action`  from the N-th hit on
//             `P%action`   with probability P percent at each hit, by the seed given to Arm and the
//             hit's number
// The whole specification may be `none`: nothing is armed, but the daemon is one for tests
// (counting jobs are accepted). Several actions for one name are separated by `,`; at a hit the
// first one that fires acts. A name that no site has declared (known_failpoints.inc) is refused at
// start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evergrad::fault {

enum class Action { kNone, kOn, kError, kUserError, kDrop, kDelay };

struct Hit {
  Action action = Action::kNone;
  std::int64_t delay_ms = 0;  // kDelay: the site waits on its own timer; the registry never sleeps.
  explicit operator bool() const { return action != Action::kNone; }
};

class Failpoints {
 public:
  Failpoints();  // Nothing armed.
  ~Failpoints();
  Failpoints(const Failpoints&) = delete;
  Failpoints& operator=(const Failpoints&) = delete;

  // Parses and arms `spec`; names armed earlier and not in `spec` stay as they are, those in it
  // start anew. InvalidArgument names the entry, and for an unknown name the nearest known one;
  // then nothing has changed.
  absl::Status Arm(absl::string_view spec, std::uint64_t seed);

  // Every name that some site asks for, with one line of explanation, for `--help` and for Arm's
  // check.
  static const std::vector<std::pair<std::string, std::string>>& Known();

  // Counts a hit of `name` and returns what to do; kill and stop happen inside. One relaxed load
  // when nothing is armed.
  Hit At(absl::string_view name);
  // `if (failpoints.ErrorAt("x").ok() == false) return ...`: OK, or Internal/user error naming the
  // failpoint.
  absl::Status ErrorAt(absl::string_view name);
  // Whether `name` has any action left; counts nothing.
  bool IsArmed(absl::string_view name) const;
  bool AnyArmed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::fault
