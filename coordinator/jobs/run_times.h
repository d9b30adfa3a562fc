// The times at which a job was submitted, began and ended: on the wall clock for people, in
// milliseconds, and on the monotonic clock for durations. A time is zero until its event has
// happened. Pure; only the control executor uses it.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/time/clock.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

struct RunTimes {
  std::int64_t submitted_ms = 0, started_ms = 0, ended_ms = 0;
  MonoTime submitted_at{0}, started_at{0}, ended_at{0};

  double seconds() const {  // The time from the start to the end.
    return std::chrono::duration<double>(ended_at - started_at).count();
  }
  // Shifts the times because the monotonic clock has begun again at 0.
  void Shift(std::chrono::nanoseconds by) {
    submitted_at += by;
    started_at += by;
    ended_at += by;
  }
  void FillStatus(v1::JobStatus* status) const {
    status->set_submitted_ms(submitted_ms);
    status->set_started_ms(started_ms);
    status->set_ended_ms(ended_ms);
  }
  void Fill(v1::JobSnapshot* snapshot) const {
    snapshot->set_submitted_ms(submitted_ms);
    snapshot->set_started_ms(started_ms);
    snapshot->set_ended_ms(ended_ms);
    snapshot->set_submitted_mono_ns(submitted_at.count());
    snapshot->set_started_mono_ns(started_at.count());
    snapshot->set_ended_mono_ns(ended_at.count());
  }
  void Read(const v1::JobSnapshot& snapshot) {
    submitted_ms = snapshot.submitted_ms();
    started_ms = snapshot.started_ms();
    ended_ms = snapshot.ended_ms();
    submitted_at = MonoTime(snapshot.submitted_mono_ns());
    started_at = MonoTime(snapshot.started_mono_ns());
    ended_at = MonoTime(snapshot.ended_mono_ns());
  }
};

}  // namespace evergrad::coordinator
