#include "common/base/interval_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace evergrad {

IntervalSet::IntervalSet(std::initializer_list<std::uint64_t> members) {
  for (std::uint64_t m : members) Add(m);
}

IntervalSet IntervalSet::Range(std::uint64_t begin, std::uint64_t end) {
  IntervalSet set;
  set.AddRange(begin, end);
  return set;
}

bool IntervalSet::AddRange(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return false;
  auto it = intervals_.upper_bound(begin);
  if (it != intervals_.begin()) {
    auto before = std::prev(it);
    if (before->second >= end) return false;  // The set contains the whole range.
    if (before->second >= begin) {
      begin = before->first;
      it = before;
    }
  }
  while (it != intervals_.end() && it->first <= end) {
    end = std::max(end, it->second);
    it = intervals_.erase(it);
  }
  intervals_.emplace_hint(it, begin, end);
  return true;
}

bool IntervalSet::RemoveRange(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return false;
  bool changed = false;
  auto it = intervals_.upper_bound(begin);
  if (it != intervals_.begin()) --it;
  while (it != intervals_.end() && it->first < end) {
    if (it->second <= begin) {
      ++it;
      continue;
    }
    const auto [b, e] = *it;
    it = intervals_.erase(it);
    changed = true;
    if (b < begin) intervals_.emplace(b, begin);
    if (e > end) it = intervals_.emplace(end, e).first;
  }
  return changed;
}

bool IntervalSet::Contains(std::uint64_t member) const {
  auto it = intervals_.upper_bound(member);
  return it != intervals_.begin() && std::prev(it)->second > member;
}

bool IntervalSet::ContainsAll(const IntervalSet& other) const {
  return std::all_of(other.intervals_.begin(), other.intervals_.end(), [this](const auto& i) {
    auto it = intervals_.upper_bound(i.first);
    return it != intervals_.begin() && std::prev(it)->second >= i.second;
  });
}

std::uint64_t IntervalSet::size() const {
  std::uint64_t n = 0;
  for (const auto& [b, e] : intervals_) n += e - b;
  return n;
}

std::optional<std::uint64_t> IntervalSet::First() const {
  if (intervals_.empty()) return std::nullopt;
  return intervals_.begin()->first;
}

std::optional<std::uint64_t> IntervalSet::FirstAtLeast(std::uint64_t from) const {
  auto it = intervals_.upper_bound(from);
  if (it != intervals_.begin() && std::prev(it)->second > from) return from;
  if (it == intervals_.end()) return std::nullopt;
  return it->first;
}

std::uint64_t IntervalSet::FirstMissing(std::uint64_t from) const {
  auto it = intervals_.upper_bound(from);
  if (it != intervals_.begin() && std::prev(it)->second > from) return std::prev(it)->second;
  return from;
}

bool IntervalSet::UnionWith(const IntervalSet& other) {
  bool changed = false;
  for (const auto& [b, e] : other.intervals_) changed |= AddRange(b, e);
  return changed;
}

bool IntervalSet::Subtract(const IntervalSet& other) {
  bool changed = false;
  for (const auto& [b, e] : other.intervals_) changed |= RemoveRange(b, e);
  return changed;
}

IntervalSet IntervalSet::Union(const IntervalSet& other) const {
  IntervalSet r = *this;
  r.UnionWith(other);
  return r;
}

IntervalSet IntervalSet::Minus(const IntervalSet& other) const {
  IntervalSet r = *this;
  r.Subtract(other);
  return r;
}

IntervalSet IntervalSet::Intersect(const IntervalSet& other) const {
  IntervalSet r;
  auto a = intervals_.begin();
  auto b = other.intervals_.begin();
  while (a != intervals_.end() && b != other.intervals_.end()) {
    r.AddRange(std::max(a->first, b->first), std::min(a->second, b->second));
    if (a->second < b->second)
      ++a;
    else
      ++b;
  }
  return r;
}

std::vector<IntervalSet::Interval> IntervalSet::Intervals() const {
  std::vector<Interval> r;
  r.reserve(intervals_.size());
  for (const auto& [b, e] : intervals_) r.push_back({b, e});
  return r;
}

std::string IntervalSet::ToString() const {
  std::string s;
  for (const auto& [b, e] : intervals_) {
    if (!s.empty()) s += ",";
    absl::StrAppend(&s, b);
    if (e - b > 1) absl::StrAppend(&s, "-", e - 1);
  }
  return s;
}

}  // namespace evergrad
