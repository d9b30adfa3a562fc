// A curve of bounded size: when it is full, every second point goes and from then on only every
// second one is taken in. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/dashboard/report.h"
#include "evergrad/v1/journal.pb.h"

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

}  // namespace evergrad::coordinator
