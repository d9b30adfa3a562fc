// A curve of bounded size: when it is full, every second point goes and from then on only every
// second one is taken in. Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/dashboard/report.h"

namespace evergrad::coordinator {

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
  std::uint64_t seen() const { return seen_; }
  std::uint64_t stride() const { return stride_; }
  // As it was: what points(), seen() and stride() gave.
  void Restore(std::vector<ReportPoint> points, std::uint64_t seen, std::uint64_t stride) {
    points_ = std::move(points);
    if (points_.size() > points_max_) points_.resize(points_max_);
    seen_ = seen;
    stride_ = stride == 0 ? 1 : stride;
  }

 private:
  std::size_t points_max_;
  std::uint64_t seen_ = 0, stride_ = 1;
  std::vector<ReportPoint> points_;
};

}  // namespace evergrad::coordinator
