// The data that the parts of one walk share: the settings, the random numbers, the record of
// events, and the first violation.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/ground_truth.h"
#include "tests/simulation/random.h"

namespace evergrad::simulation {

class WalkContext {
 public:
  // Draws for each update which shards have rows of it.
  explicit WalkContext(const WalkOptions& walk_options);

  // Prints a line that begins with the number of the event.
  template <class... Args>
  void Trace(const Args&... args) const {
    if (options.trace) std::printf("%6d  %s\n", result.events, absl::StrCat(args...).c_str());
  }
  // Records a violation, which ends the walk. An empty text is ignored, and so is every violation
  // after the first.
  void Fail(const std::string& violation) {
    if (result.violation.empty()) result.violation = violation;
  }
  void Count(const char* what) { ++result.counts[what]; }
  void Largest(const char* what, std::uint64_t n) {
    result.largest[what] = std::max(result.largest[what], n);
  }
  // Returns whether faults happen at this event.
  bool faults() const { return result.events < options.fault_events; }
  std::uint32_t AnyShard() { return static_cast<std::uint32_t>(random.Below(kShards)); }
  // Returns whether the update (c, u) has rows in shard p.
  bool Touches(std::uint32_t p, std::uint64_t c, std::uint32_t u) const {
    return (touch[p][c] >> u & 1) != 0;
  }

  const WalkOptions options;
  const std::array<ShardModel, kShards>& models;
  Random random;
  std::array<std::array<std::uint8_t, kClosures>, kShards> touch{};  // one bit per update
  WalkResult result;
};

}  // namespace evergrad::simulation
