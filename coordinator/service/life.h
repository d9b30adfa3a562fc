// One life of the coordinator: its numbers, its term, and the start-up window (LEDGER line 18).
//
// Not thread-safe: the control executor owns it. Admission and ControlPlane write it; the other
// parts read it and take numbers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"

namespace evergrad::coordinator {

struct Life {
  std::uint64_t id = 0;    // random; tasks see it in Registered
  bool journaled = false;  // true if the state store outlives the process
  std::string address = {}, metrics_address = {};
  std::int64_t started_ms = 0;
  Term term = {};
  bool term_known = false, window_open = true;
  MonoTime window_until{0};
  std::uint64_t highest_reported = 0;  // the highest term that the store or a task has reported
  // True if this life has ended (LEDGER line 18a). No further task is then registered.
  bool over = false;
  bool stopped = false;  // true once ControlPlane::Stop was called and all work has ended
  std::uint64_t next_number = 1;

  // Returns whether jobs may begin: the term is known, and the tasks have registered.
  bool serving() const { return term_known && !window_open; }
  // Returns a number for a describe attempt or for a request to tasks.
  std::uint64_t NextNumber() { return next_number++; }
};

// Returns NotFound (a user's error) for a job that this life does not know. Without a journal the
// message contains the time since which jobs are known.
absl::Status NoSuchJob(const Life& life, absl::string_view name_or_uid);

// Returns the answer to a call that the coordinator cannot serve any more.
absl::Status StoppingError();

}  // namespace evergrad::coordinator
