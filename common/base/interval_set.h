// A set of unsigned 64-bit numbers kept as disjoint, non-adjacent half-open intervals [begin, end).
//
// The protocol keeps its sets of closures in this class (LEDGER.md): `done` and `refused` in the
// ledger of a shard, and `succeeded`, `dead`, `todo` and `lost` in the coordinator. Each of these
// sets is nearly one interval. Memory use is proportional to the number of intervals, not of
// members. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace evergrad {

class IntervalSet {
 public:
  struct Interval {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;  // Exclusive.
    friend bool operator==(const Interval&, const Interval&) = default;
  };

  IntervalSet() = default;
  // Creates the set of `members`, which may be in any order.
  IntervalSet(std::initializer_list<std::uint64_t> members);
  static IntervalSet Range(std::uint64_t begin, std::uint64_t end);

  // Add and AddRange return whether the set changed. Adding an empty range (begin >= end) changes
  // nothing.
  bool Add(std::uint64_t member) { return AddRange(member, member + 1); }
  bool AddRange(std::uint64_t begin, std::uint64_t end);
  bool Remove(std::uint64_t member) { return RemoveRange(member, member + 1); }
  bool RemoveRange(std::uint64_t begin, std::uint64_t end);
  void Clear() { intervals_.clear(); }

  bool Contains(std::uint64_t member) const;
  bool ContainsAll(const IntervalSet& other) const;
  bool empty() const { return intervals_.empty(); }
  // Return the number of members and the number of intervals.
  std::uint64_t size() const;
  std::size_t interval_count() const { return intervals_.size(); }
  std::optional<std::uint64_t> First() const;
  // Returns the smallest member >= `from`.
  std::optional<std::uint64_t> FirstAtLeast(std::uint64_t from) const;
  // Returns the smallest number >= `from` that is not a member.
  std::uint64_t FirstMissing(std::uint64_t from = 0) const;

  // Each of these functions returns whether the set changed.
  bool UnionWith(const IntervalSet& other);
  bool Subtract(const IntervalSet& other);
  IntervalSet Union(const IntervalSet& other) const;
  IntervalSet Minus(const IntervalSet& other) const;
  IntervalSet Intersect(const IntervalSet& other) const;

  std::vector<Interval> Intervals() const;  // In rising order.
  std::string ToString() const;             // "0-4,7,9-11" (inclusive, for people), "" when empty.
  friend bool operator==(const IntervalSet&, const IntervalSet&) = default;

 private:
  std::map<std::uint64_t, std::uint64_t> intervals_;  // begin -> end
};

}  // namespace evergrad
