// Which of a library's algorithms computes a shape: each is measured once, the choice is kept.
//
// Measuring runs on the device, so it is the owner's; here is what to try, what wins, and for how long it is remembered. With
// `deterministic` the first candidate that is so and runs is taken: a choice by time would differ between two runs. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace evergrad::worker {

struct AlgorithmCandidate {
  std::uint64_t workspace_bytes = 0;
  bool deterministic = true;
};
struct AlgorithmChoice {
  std::size_t index = 0;
  double seconds = -1;       // of one run
  std::size_t measured = 0;  // how many were
};

// The first on ties. `measure` gives seconds, or an error for a candidate that cannot run after all. InvalidArgument: none is left, with
// the last reason.
absl::StatusOr<AlgorithmChoice> ChooseAlgorithm(const std::vector<AlgorithmCandidate>& candidates, std::uint64_t workspace_bytes_max, bool deterministic,
                                                const std::function<absl::StatusOr<double>(std::size_t index)>& measure);

// Values by key; the one that was used longest ago goes when there are `entries_max`.
template <typename Key, typename Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(std::size_t entries_max) : entries_max_(entries_max) {}
  // Null: not there. Valid until the next Insert.
  Value* Find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return ++misses_, nullptr;
    order_.splice(order_.begin(), order_, found->second);
    ++hits_;
    return &found->second->second;
  }
  Value& Insert(const Key& key, Value value) {
    if (const auto found = index_.find(key); found != index_.end()) order_.erase(found->second), index_.erase(found);
    if (index_.size() >= entries_max_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    order_.emplace_front(key, std::move(value));
    index_[key] = order_.begin();
    return order_.front().second;
  }
  std::size_t size() const { return index_.size(); }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  const std::size_t entries_max_;
  std::list<std::pair<Key, Value>> order_;
  std::map<Key, typename std::list<std::pair<Key, Value>>::iterator> index_;
  std::uint64_t hits_ = 0, misses_ = 0;
};

}  // namespace evergrad::worker
