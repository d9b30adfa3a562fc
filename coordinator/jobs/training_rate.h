// Measures how fast a job trains, in examples per second of the monotonic clock. There is one
// sample for each half second of training, and one at the end of each stretch of training. Pure;
// only the control executor calls it.
//
// Samples are weighted by their length, so a short sample at the end of a stretch has little
// weight, and even the shortest job has a point in its curve. Time without training (repair,
// waiting) is excluded: the next sample begins after it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/time/clock.h"
#include "coordinator/dashboard/report.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

// Shortest time over which a speed is measured. The ends of epochs are known from messages of
// workers and commits of the journal, which are some milliseconds apart, and several epochs can end
// with one message. A speed over a shorter time would be meaningless.
inline constexpr double kTimedSecondsMin = 0.01;

// Returns the speed, or NaN if the time was too short or no example was trained on.
inline double MeasuredSpeed(std::uint64_t examples, double seconds) {
  if (examples == 0 || !(seconds >= kTimedSecondsMin))
    return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(examples) / seconds;
}

// A curve of bounded size. When it is full, every second point is removed, and from then on only
// every second point is added.
class Curve {
 public:
  explicit Curve(std::uint32_t points_max) : points_max_(points_max < 2 ? 2 : points_max) {}
  void Add(double x, double y) {
    if (seen_++ % stride_ != 0) return;
    if (points_.size() >= points_max_) {
      std::size_t kept = 0;
      for (std::size_t i = 0; i < points_.size(); i += 2) points_[kept++] = points_[i];
      points_.resize(kept);
      stride_ *= 2;
      if ((seen_ - 1) % stride_ != 0) return;
    }
    points_.push_back({x, y});
  }
  const std::vector<ReportPoint>& points() const { return points_; }
  // The journal.
  void Fill(v1::JobCurve* out) const {
    for (const ReportPoint& point : points_) {
      out->add_x(point.x);
      out->add_y(point.y);
    }
    out->set_seen(seen_);
    out->set_stride(stride_);
  }
  void Read(const v1::JobCurve& in) {
    points_.clear();
    const int points = std::min({in.x_size(), in.y_size(), static_cast<int>(points_max_)});
    for (int i = 0; i < points; ++i) points_.push_back({in.x(i), in.y(i)});
    seen_ = in.seen();
    stride_ = in.stride() == 0 ? 1 : in.stride();
  }

 private:
  std::size_t points_max_;
  std::uint64_t seen_ = 0, stride_ = 1;
  std::vector<ReportPoint> points_;
};

class TrainingRate {
 public:
  explicit TrainingRate(std::uint32_t points_max) : curve_(points_max) {}

  // Begins the next sample. `examples` is the number that the job has trained on so far.
  void Begin(MonoTime now, std::uint64_t examples) {
    began_ = now;
    examples_ = examples;
    next_ = began_ + kSampleEvery;
  }
  bool IsDue(MonoTime now) const { return now >= next_; }
  // The number of examples when the sample began.
  std::uint64_t examples() const { return examples_; }
  // Ends the sample and begins the next one. `job_began` is the time at which the curve begins.
  // Returns false if too little time has passed for a sample.
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
  double rate() const { return rate_; }              // The smoothed speed.
  double at_seconds() const { return at_seconds_; }  // End of the newest sample.
  const Curve& curve() const { return curve_; }

  // --- the journal. A note holds the newest sample.
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
