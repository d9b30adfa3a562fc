#include "ps_server/storage/row_index.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "common/base/check.h"

namespace evergrad::ps_server::storage {
namespace {

// Beyond this load a segment grows; it is made for the lower one. Between them an id costs 18.8 to 23.5 bytes.
constexpr std::uint64_t kLoadNumerator = 17, kLoadDenominator = 20;  // 0.85
constexpr double kLoadAfter = 0.68;
constexpr std::uint32_t kCapacityMin = 16;
constexpr std::uint32_t kDepthMax = 28;

// Room behind the last home. Chains at load 0.85 are longer than 56 in one segment of ten million; one that needs more gets more.
std::uint32_t SlackOf(std::uint32_t capacity) { return 8 + std::min<std::uint32_t>(capacity / 16, 48); }

}  // namespace

RowIndex::RowIndex(PagePool* pages) : pages_(pages) {
  Segment* const first = New(kCapacityMin, SlackOf(kCapacityMin), 0);
  EG_CHECK(first != nullptr);
  directory_.resize(1);
  SetPlaces(0, first);
}

RowIndex::~RowIndex() {
  for (std::size_t slot = 0; slot < directory_.size();) {
    const std::size_t width = std::size_t{1} << (depth_ - directory_[slot].depth);
    Delete(directory_[slot].segment());
    slot += width;
  }
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
  std::memset(static_cast<void*>(segment->entries()), 0xff, bytes - sizeof(Segment));  // empty: row kNone, and a hash that ends every search
  bytes_ += PagePool::Rounded(bytes);
  places_total_ += capacity;
  return segment;
}

void RowIndex::Delete(Segment* segment) {
  const std::size_t bytes = BytesOf(*segment);
  bytes_ -= PagePool::Rounded(bytes);
  places_total_ -= segment->capacity;
  segment->~Segment();
  pages_->Delete(segment, bytes);
}

void RowIndex::SetPlaces(std::uint64_t hash, Segment* segment) {
  const std::size_t width = std::size_t{1} << (depth_ - segment->depth), first = Slot(hash) & ~(width - 1);
  std::fill_n(directory_.begin() + static_cast<std::ptrdiff_t>(first), width, Place{segment->entries(), segment->capacity, segment->depth});
}

RowIndex::Entry* RowIndex::Insert(std::uint64_t hash) {
  for (;;) {
    const Place& place = PlaceOf(hash);
    Segment* const segment = place.segment();
    if ((segment->count + 1ull) * kLoadDenominator <= segment->capacity * kLoadNumerator) {
      Entry* e = HomeOf(place, hash);
      while (e->hash < hash) ++e;
      Entry* end = e;
      while (end->row != kNone) ++end;
      if (end < segment->entries() + segment->capacity + segment->slack) {
        std::memmove(static_cast<void*>(e + 1), e, static_cast<std::size_t>(end - e) * sizeof(Entry));
        e->hash = hash;
        e->row = kNone;
        e->stamp = 0;
        ++segment->count;
        ++size_;
        return e;
      }
    }
    if (!Grow(hash)) return nullptr;
  }
}

void RowIndex::Erase(Entry* entry) {
  const Place& place = PlaceOf(entry->hash);
  Entry* at = entry;
  // What stands behind its home moves up, until one is at home or there is nobody.
  for (Entry* next = at + 1; next->row != kNone && HomeOf(place, next->hash) < next; at = next++) *at = *next;
  std::memset(static_cast<void*>(at), 0xff, sizeof(Entry));
  --place.segment()->count;
  --size_;
}

// Entries [begin, end) of `from`, in order. nullptr: no memory.
RowIndex::Segment* RowIndex::Filled(const std::vector<Entry>& from, std::size_t begin, std::size_t end, std::uint32_t capacity, std::uint32_t depth) {
  for (std::uint32_t slack = SlackOf(capacity);; slack *= 2) {
    Segment* const segment = New(capacity, slack, depth);
    if (segment == nullptr) return nullptr;
    Entry* const entries = segment->entries();
    std::uint32_t next = 0;
    std::size_t i = begin;
    for (; i < end; ++i) {
      next = std::max(next, HomeIn(capacity, depth, from[i].hash));
      // One place is left for the entry that this was made for, wherever it will be.
      if (next + 1 >= capacity + slack) break;
      entries[next++] = from[i];
    }
    segment->count = static_cast<std::uint32_t>(end - begin);
    if (i == end) return segment;
    Delete(segment);
  }
}

bool RowIndex::Grow(std::uint64_t hash) {
  Segment* const old = PlaceOf(hash).segment();
  const std::uint32_t depth = old->depth;
  ++homes_version_;
  moving_.clear();
  for (Entry *e = old->entries(), *end = e + old->capacity + old->slack; e < end; ++e) {
    if (e->row != kNone) moving_.push_back(*e);
  }
  const auto made_for = [](std::size_t count) {
    return std::max(kCapacityMin, static_cast<std::uint32_t>(static_cast<double>(count) / kLoadAfter / kLine + 1) * static_cast<std::uint32_t>(kLine));
  };
  // Hashes that somebody chose to share their upper bits must not make a directory without end: then the segment only becomes larger.
  const bool split = old->count >= kSegmentEntries &&
                     (depth < depth_ || (depth_ < kDepthMax && (1ull << depth_) * kSegmentEntries <= 16 * size_));
  if (!split) {
    const bool crowded = (old->count + 1ull) * kLoadDenominator > old->capacity * kLoadNumerator;
    // Small ones are doubled. One that is not full, but has a chain beyond its end, gets more room there.
    const std::uint32_t capacity = !crowded ? old->capacity : std::max(made_for(old->count), old->capacity < 256 ? 2 * old->capacity : 0);
    Segment* segment;
    if (crowded) {
      segment = Filled(moving_, 0, moving_.size(), capacity, depth);
    } else {
      segment = New(capacity, 2 * old->slack, depth);
      if (segment != nullptr) {
        std::memcpy(static_cast<void*>(segment->entries()), old->entries(), (std::size_t{old->capacity} + old->slack) * sizeof(Entry));
        segment->count = old->count;
      }
    }
    if (segment == nullptr) return false;
    SetPlaces(hash, segment);
    Delete(old);
    return true;
  }
  const std::uint64_t bit = 1ull << (63 - depth);
  const auto middle = static_cast<std::size_t>(
      std::partition_point(moving_.begin(), moving_.end(), [bit](const Entry& e) { return (e.hash & bit) == 0; }) - moving_.begin());
  Segment* const low = Filled(moving_, 0, middle, made_for(middle), depth + 1);
  if (low == nullptr) return false;
  Segment* const high = Filled(moving_, middle, moving_.size(), made_for(moving_.size() - middle), depth + 1);
  if (high == nullptr) {
    Delete(low);
    return false;
  }
  if (depth == depth_) {
    std::vector<Place> twice(2 * directory_.size());
    for (std::size_t i = 0; i < twice.size(); ++i) twice[i] = directory_[i / 2];
    directory_ = std::move(twice);
    ++depth_;
  }
  SetPlaces(hash & ~bit, low);
  SetPlaces(hash | bit, high);
  Delete(old);
  return true;
}

}  // namespace evergrad::ps_server::storage
