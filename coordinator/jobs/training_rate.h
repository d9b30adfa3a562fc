// How fast a job trains, in examples a second of the monotonic clock: one sample each half second
// of training, and one at the end of each stretch of it. Pure; the control executor's.
//
// Samples weigh by their length, so that a short one at the end of a stretch says no more than it
// measured, and the shortest run has a point. Time that is no training (repair, waiting) is left
// out by beginning anew.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>

#include "common/time/clock.h"
#include "coordinator/jobs/curve.h"
#include "coordinator/jobs/speed.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

class TrainingRate {
 public:
  explicit TrainingRate(std::uint32_t points_max) : curve_(points_max) {}

  // The next sample begins; `examples` are those that the job has trained on so far.
  void Begin(MonoTime now, std::uint64_t examples) {
    began_ = now;
    examples_ = examples;
    next_ = began_ + kSampleEvery;
  }
  bool IsDue(MonoTime now) const { return now >= next_; }
  std::uint64_t examples() const { return examples_; }  // When the sample began.
  // Ends the sample, and begins the next one. `job_began`: where the curve begins. False: too
  // little time has passed for a sample.
  bool Sample(MonoTime job_began, MonoTime now, std::uint64_t examples) {
    const double seconds = Seconds(now - began_);
    if (seconds < kTimedSecondsMin) return false;
    const double measured = static_cast<double>(examples - examples_) / seconds;
    const double keep = std::pow(0.6, seconds / Seconds(kSampleEvery));
    rate_ = rate_ == 0 ? measured : keep * rate_ + (1 - keep) * measured;
    Begin(now, examples);
    at_seconds_ = Seconds(now - job_began);
    curve_.Add(at_seconds_, rate_);
    return true;
  }
  double rate() const { return rate_; }              // Smoothed.
  double at_seconds() const { return at_seconds_; }  // Of the newest sample, since the job began.
  const Curve& curve() const { return curve_; }

  // The journal. A note holds the newest sample.
  void Fill(v1::JobSnapshot* snapshot) const {
    snapshot->set_rate(rate_);
    curve_.Fill(snapshot->mutable_rate_curve());
  }
  void Read(const v1::JobSnapshot& snapshot) {
    rate_ = snapshot.rate();
    curve_.Read(snapshot.rate_curve());
  }
  void FillNote(v1::JobNote* note) const {
    note->set_sampled(true);
    note->set_sample_seconds(at_seconds_);
    note->set_sample_rate(rate_);
  }
  void ReadNote(const v1::JobNote& note) {
    if (!note.sampled()) return;
    rate_ = note.sample_rate();
    curve_.Add(note.sample_seconds(), rate_);
  }

 private:
  static constexpr std::chrono::milliseconds kSampleEvery{500};
  static double Seconds(MonoTime span) { return std::chrono::duration<double>(span).count(); }

  double rate_ = 0, at_seconds_ = 0;
  MonoTime began_{0}, next_{0};
  std::uint64_t examples_ = 0;
  Curve curve_;
};

}  // namespace evergrad::coordinator
