// Limits the calls that callers have posted to a loop and that have not begun there. The queue of a
// loop has no limit of its own. The transport itself posts one task per stream, call, timer or
// answer, and the numbers of these objects are limited. This class counts the tasks of callers
// before they are queued. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace evergrad::transport {

class PostLimit {
 public:
  explicit PostLimit(std::uint64_t max) : max_(max) {}
  // Returns ResourceExhausted if the loop does not keep up with its callers. After OK, the caller
  // must call Leave().
  absl::Status Enter() {
    if (posted_.fetch_add(1, std::memory_order_relaxed) < max_) return absl::OkStatus();
    Leave();
    return absl::ResourceExhaustedError(absl::StrCat("too many calls in flight: max=", max_));
  }
  void Leave() { posted_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const std::uint64_t max_;
  std::atomic<std::uint64_t> posted_{0};
};

}  // namespace evergrad::transport
