// Named failpoints: places in the code at which a test injects an error.
//
// All failpoints are off unless a daemon is started with `--failpoints "name=action;name=action"`
// on a loopback address. On any other address only `none` is accepted, and only with TLS.
// Thread-safe.
//   action    `kill` (SIGKILL of the own process) | `error` (the site returns an Internal error) |
//             `user_error` | `drop` | `delay(MS)` | `stop` (SIGSTOP of the own process) |
//             `on` (the site does what its name says)
//   prefix    `N*action`   only at the N-th hit
//             `N+action`   from the N-th hit on
//             `P%action`   at each hit, with probability P percent; the decision is a function of
//                          the seed given to Arm and of the hit's number
//
// The specification may be the single word `none`, which arms nothing. The daemon then accepts
// counting jobs, which are for tests only. Several actions for one name are separated by `,`; at a
// hit, the first action that applies is performed. A name that no site has declared
// (known_failpoints.inc) is refused at start, and so is an action that the site of the name does
// not perform.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace evergrad::fault {

enum class Action { kNone, kOn, kError, kUserError, kDrop, kDelay };

struct Hit {
  Action action = Action::kNone;
  // The delay of kDelay. The site waits on its own timer, because the registry never sleeps.
  std::int64_t delay_ms = 0;
  explicit operator bool() const { return action != Action::kNone; }
};

// A site. `actions` lists the actions that it performs, separated by spaces; every site performs
// `kill` and `stop`, too. `explanation` states the program and its state at the site.
struct KnownFailpoint {
  absl::string_view name;
  absl::string_view actions;
  absl::string_view explanation;
};

class Failpoints {
 public:
  Failpoints();  // no failpoint is armed
  ~Failpoints();
  Failpoints(const Failpoints&) = delete;
  Failpoints& operator=(const Failpoints&) = delete;

  // Parses and arms `spec`. Names that were armed earlier and are not in `spec` stay armed; names
  // in `spec` start anew. The error InvalidArgument names the entry and the nearest known name; in
  // this case nothing changes.
  absl::Status Arm(absl::string_view spec, std::uint64_t seed);

  // Returns every site, for `--help` and for the checks in Arm.
  static absl::Span<const KnownFailpoint> Known();

  // Counts a hit of `name` and returns the action that the site must perform; the actions kill and
  // stop are performed by At itself. If nothing is armed, the call costs one relaxed atomic load.
  Hit At(absl::string_view name);
  // Returns OK, or an Internal error or user error that names the failpoint: `if (absl::Status s =
  // failpoints.ErrorAt("x"); !s.ok()) return s;`
  absl::Status ErrorAt(absl::string_view name);
  // Returns whether `name` has an action left. The call does not count as a hit.
  bool IsArmed(absl::string_view name) const;
  bool AnyArmed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::fault
