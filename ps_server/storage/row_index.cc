#include "ps_server/storage/row_index.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "common/base/check.h"

namespace evergrad::ps_server::storage {
namespace {

// A segment grows when it exceeds this load, and a new segment has kLoadAfter. Between the two
// loads an id needs 15.6 to 19.7 bytes, or 19.5 to 24.6 bytes with a stamp.
constexpr std::uint64_t kLoadNumerator = 41, kLoadDenominator = 50;  // 0.82
constexpr double kLoadAfter = 0.66;
constexpr std::uint32_t kLinesMin = 4;
constexpr std::uint32_t kDepthMax = 28;

// Returns the number of lines after the last home line. These lines hold the entries that do not
// fit into the last home lines. For a few segments this number of lines is too small. Filled and
// Grow then add lines.
std::uint32_t SlackOf(std::uint32_t capacity) {
  return 2 + std::min<std::uint32_t>(capacity / 64, 8);
}

}  // namespace

RowIndex::RowIndex(PagePool* pages, bool stamped)
    : pages_(pages), positions_(stamped ? kStampedPositions : kPositions) {
  Segment* const first = New(kLinesMin, SlackOf(kLinesMin), 0);
  EG_CHECK(first != nullptr);
  directory_.resize(1);
  SetSegments(0, first);
}

RowIndex::~RowIndex() {
  for (std::size_t bucket = 0; bucket < directory_.size();) {
    const std::size_t width = std::size_t{1} << (depth_ - directory_[bucket].depth);
    Delete(directory_[bucket].segment());
    bucket += width;
  }
}

std::uint32_t RowIndex::LinesFor(std::size_t count) const {
  return std::max(
      kLinesMin,
      static_cast<std::uint32_t>(static_cast<double>(count) / (kLoadAfter * positions_)) + 1);
}

bool RowIndex::IsFull(const Segment& s) const {
  return (s.count + 1ull) * kLoadDenominator >
         std::uint64_t{s.capacity} * positions_ * kLoadNumerator;
}

RowIndex::Segment* RowIndex::New(std::uint32_t capacity, std::uint32_t slack, std::uint32_t depth) {
  Segment shape;
  shape.capacity = capacity;
  shape.slack = slack;
  shape.depth = depth;
  const std::size_t bytes = BytesOf(shape);
  void* const memory = pages_->New(bytes);
  if (memory == nullptr) return nullptr;
  auto* const segment = new (memory) Segment(shape);
  std::memset(static_cast<void*>(segment->lines()), 0xff, bytes - sizeof(Segment));  // empty
  bytes_ += PagePool::Rounded(bytes);
  places_total_ += std::uint64_t{capacity} * positions_;
  return segment;
}

void RowIndex::Delete(Segment* segment) {
  const std::size_t bytes = BytesOf(*segment);
  bytes_ -= PagePool::Rounded(bytes);
  places_total_ -= std::uint64_t{segment->capacity} * positions_;
  segment->~Segment();
  pages_->Delete(segment, bytes);
}

void RowIndex::SetSegments(std::uint64_t hash, Segment* segment) {
  const std::size_t width = std::size_t{1} << (depth_ - segment->depth),
                    first = Bucket(hash) & ~(width - 1);
  std::fill_n(directory_.begin() + static_cast<std::ptrdiff_t>(first), width,
              Segments{segment->lines(), segment->capacity, segment->depth});
}

RowIndex::Ref RowIndex::Insert(std::uint64_t hash) {
  for (;;) {
    const Segments& s = SegmentsOf(hash);
    Segment* const segment = s.segment();
    if (!IsFull(*segment)) {
      const Ref place = FirstNotBelow(HomeOf(s, hash), hash);
      Ref end = place;
      while (end.row() != kNone) end = Next(end);
      if (end.line_ < segment->lines() + segment->capacity + segment->slack) {
        while (end.line_ != place.line_ || end.at_ != place.at_) {
          const Ref before = Before(end);
          Set(end, before.entry());
          end = before;
        }
        Set(place, {hash, kNone, 0});
        ++segment->count;
        ++size_;
        return place;
      }
    }
    if (!Grow(hash)) return {};
  }
}

void RowIndex::Erase(Ref entry) {
  const Segments& s = SegmentsOf(entry.hash());
  Ref at = entry;
  // Each of the following entries moves by one position towards the beginning. The loop ends at an
  // entry that is at the first position of its home line, or at the end of the chain.
  for (Ref next = Next(at);
       next.row() != kNone && (next.at_ > 0 || HomeOf(s, next.hash()) < next.line_);
       at = next, next = Next(next))
    Set(at, next.entry());
  Set(at, {~0ull, kNone, ~0u});
  --s.segment()->count;
  --size_;
}

// Returns a new segment with entries [begin, end) of `from`, in order, or nullptr if memory is
// exhausted.
RowIndex::Segment* RowIndex::Filled(const std::vector<Entry>& from, std::size_t begin,
                                    std::size_t end, std::uint32_t capacity, std::uint32_t depth) {
  for (std::uint32_t slack = SlackOf(capacity);; slack *= 2) {
    Segment* const segment = New(capacity, slack, depth);
    if (segment == nullptr) return nullptr;
    // One position stays free for the new entry for which the segment is made.
    const Line* const last = segment->lines() + capacity + slack - 1;
    Ref next(segment->lines(), 0, positions_);
    std::size_t i = begin;
    for (; i < end; ++i) {
      Line* const home = segment->lines() + HomeIn(capacity, depth, from[i].hash);
      if (next.line_ < home) next = Ref(home, 0, positions_);
      if (next.line_ > last || (next.line_ == last && next.at_ + 1 == positions_)) break;
      Set(next, from[i]);
      next = Next(next);
    }
    segment->count = static_cast<std::uint32_t>(end - begin);
    if (i == end) return segment;
    Delete(segment);
  }
}

bool RowIndex::Grow(std::uint64_t hash) {
  Segment* const old = SegmentsOf(hash).segment();
  const std::uint32_t depth = old->depth;
  ++homes_version_;
  moving_.clear();
  for (Line *line = old->lines(), *end = line + old->capacity + old->slack; line < end; ++line) {
    for (std::uint32_t k = 0; k < positions_; ++k) {
      const Ref place(line, k, positions_);
      if (place.row() == kNone) break;
      moving_.push_back(place.entry());
    }
  }
  // If the hashes of a segment share their upper bits, because a user has chosen such ids, the
  // segment becomes larger instead of being split. The directory then stays small.
  const bool split =
      old->count >= kSegmentEntries &&
      (depth < depth_ || (depth_ < kDepthMax && (1ull << depth_) * kSegmentEntries <= 16 * size_));
  if (!split) {
    Segment* segment;
    if (IsFull(*old)) {
      // a small segment doubles
      const std::uint32_t capacity =
          std::max(LinesFor(old->count), old->capacity < 64 ? 2 * old->capacity : 0);
      segment = Filled(moving_, 0, moving_.size(), capacity, depth);
    } else {  // entries do not fit into the slack, so the slack doubles
      segment = New(old->capacity, 2 * old->slack, depth);
      if (segment != nullptr) {
        std::memcpy(static_cast<void*>(segment->lines()), old->lines(),
                    (std::size_t{old->capacity} + old->slack) * sizeof(Line));
        segment->count = old->count;
      }
    }
    if (segment == nullptr) return false;
    SetSegments(hash, segment);
    Delete(old);
    return true;
  }
  const std::uint64_t bit = 1ull << (63 - depth);
  const auto middle = static_cast<std::size_t>(
      std::partition_point(moving_.begin(), moving_.end(),
                           [bit](const Entry& e) { return (e.hash & bit) == 0; }) -
      moving_.begin());
  Segment* const low = Filled(moving_, 0, middle, LinesFor(middle), depth + 1);
  if (low == nullptr) return false;
  Segment* const high =
      Filled(moving_, middle, moving_.size(), LinesFor(moving_.size() - middle), depth + 1);
  if (high == nullptr) {
    Delete(low);
    return false;
  }
  if (depth == depth_) {
    std::vector<Segments> twice(2 * directory_.size());
    for (std::size_t i = 0; i < twice.size(); ++i) twice[i] = directory_[i / 2];
    directory_ = std::move(twice);
    ++depth_;
  }
  SetSegments(hash & ~bit, low);
  SetSegments(hash | bit, high);
  Delete(old);
  return true;
}

}  // namespace evergrad::ps_server::storage
