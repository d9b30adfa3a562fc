// Where the row of an id is: a hash index that is dense, sorted, and grows without a stop.
//
// Keys are hashes of ids under a bijection, so an id can be got back and no two ids share a hash. The upper bits choose a segment (extendible
// hashing), the rest the home of the entry in it, a cache line; entries of a segment are sorted by hash, each as close behind the beginning of its
// home as there was room. So the whole index can be walked in the order of the hash from any hash on, whatever has grown or moved meanwhile; a miss ends at the
// first greater hash; and a segment that is full is copied in order into a larger one, or two: at most kSegmentEntries entries move at a time.
// Entries that are deleted leave no mark behind. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps_server/storage/page_pool.h"

namespace evergrad::ps_server::storage {

class RowIndex {
 public:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t row;  // the owner's; never kNone
    std::uint32_t stamp;
  };
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::uint32_t kSegmentEntries = 4096;  // split beyond: 64 to 96 KiB

  // `pages` outlives it.
  explicit RowIndex(PagePool* pages);  // no memory is not survived: some hundred bytes
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  std::uint64_t size() const { return size_; }
  std::uint64_t places() const { return places_total_; }  // for entries at their homes: size() / places() is the load
  std::uint64_t bytes() const { return bytes_ + directory_.capacity() * sizeof(Place); }

  // Where Find begins; valid until homes_version() changes. In two halves, so that many look-ups can be under way.
  const Entry* Home(std::uint64_t hash) const { return HomeOf(PlaceOf(hash), hash); }
  // And asks the memory for it and for the line behind it. (Only for those that may have gone on into it: fewer lines, but who was not asked for
  // costs a whole wait, and that was slower.)
  const Entry* AskFor(std::uint64_t hash) const {
    const Entry* const home = Home(hash);
    __builtin_prefetch(home);
    __builtin_prefetch(home + kLine);
    return home;
  }
  std::uint64_t homes_version() const { return homes_version_; }
  // nullptr: not there. Valid until the next Insert or Erase.
  static const Entry* Find(const Entry* home, std::uint64_t hash) {
    // Where an entry is behind its home cannot be foreseen, and a branch that is mispredicted is dear: so the smaller ones of two lines are counted.
    std::size_t below = 0;
    for (std::size_t k = 0; k < kLooked; ++k) below += home[k].hash < hash;
    const Entry* e = home + below;
    while (e->hash < hash) ++e;
    return e->hash == hash && e->row != kNone ? e : nullptr;
  }
  const Entry* Find(std::uint64_t hash) const { return Find(Home(hash), hash); }
  Entry* Find(std::uint64_t hash) { return const_cast<Entry*>(static_cast<const RowIndex*>(this)->Find(hash)); }
  // `hash` is not there. `row` must be set by the caller (and be other than kNone) at once. nullptr: no memory, nothing has changed.
  Entry* Insert(std::uint64_t hash);
  void Erase(Entry* entry);  // from Find

  // Calls visit(entry) -> bool (go on) for entries with hash >= `from` in rising order. False: `visit` ended it. Entries may be changed but for their hash.
  template <class Visit>
  bool ForEachFrom(std::uint64_t from, Visit visit);
  template <class Visit>
  void ForEach(Visit visit) const {
    const_cast<RowIndex*>(this)->ForEachFrom(0, [&](const Entry& e) { return visit(e), true; });
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(Entry), kLooked = 2 * kLine;

  struct alignas(64) Segment {  // followed by capacity + slack + kLooked entries, the last kLooked of which are always empty
    std::uint32_t capacity = 0, slack = 0, count = 0, depth = 0;
    Entry* entries() { return reinterpret_cast<Entry*>(this + 1); }
  };
  struct Place {  // of the directory: a segment stands in 2^(depth_ - its depth) of them
    Entry* entries = nullptr;
    std::uint32_t capacity = 0, depth = 0;
    Segment* segment() const { return reinterpret_cast<Segment*>(entries) - 1; }
  };

  std::size_t Slot(std::uint64_t hash) const { return (hash >> 1) >> (63 - depth_); }
  const Place& PlaceOf(std::uint64_t hash) const { return directory_[Slot(hash)]; }
  static std::uint32_t HomeIn(std::uint32_t capacity, std::uint32_t depth, std::uint64_t hash) {  // `capacity` is whole lines
    return static_cast<std::uint32_t>((((hash << depth) >> 32) * (capacity / kLine)) >> 32) * kLine;
  }
  static Entry* HomeOf(const Place& place, std::uint64_t hash) { return place.entries + HomeIn(place.capacity, place.depth, hash); }

  static std::size_t BytesOf(const Segment& s) { return sizeof(Segment) + (std::size_t{s.capacity} + s.slack + kLooked) * sizeof(Entry); }
  Segment* New(std::uint32_t capacity, std::uint32_t slack, std::uint32_t depth);
  void Delete(Segment* segment);
  Segment* Filled(const std::vector<Entry>& from, std::size_t begin, std::size_t end, std::uint32_t capacity, std::uint32_t depth);
  bool Grow(std::uint64_t hash);
  void SetPlaces(std::uint64_t hash, Segment* segment);  // of all that `segment` stands in; `hash` is one of its own

  PagePool* const pages_;
  std::vector<Place> directory_;
  std::vector<Entry> moving_;  // of the segment that is grown
  std::uint32_t depth_ = 0;
  std::uint64_t size_ = 0, places_total_ = 0, bytes_ = 0, homes_version_ = 0;
};

template <class Visit>
bool RowIndex::ForEachFrom(std::uint64_t from, Visit visit) {
  for (std::size_t slot = Slot(from); slot < directory_.size();) {
    const Place& place = directory_[slot];
    Segment* const segment = place.segment();
    Entry* const end = place.entries + segment->capacity + segment->slack;
    const std::size_t width = std::size_t{1} << (depth_ - place.depth), first = slot & ~(width - 1);
    for (Entry* e = Slot(from) >= first && Slot(from) < first + width ? HomeOf(place, from) : place.entries; e < end; ++e) {
      if (e->row != kNone && e->hash >= from && !visit(*e)) return false;
    }
    slot = first + width;
  }
  return true;
}

}  // namespace evergrad::ps_server::storage
