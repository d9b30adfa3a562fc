// A hash index from an id to its row. The index is dense and sorted, and grows by one segment at a
// time.
//
// Keys are hashes of ids under a bijection, so an id can be computed from its hash, and different
// ids have different hashes. The upper bits choose a bucket of the directory, which refers to a
// segment (extendible hashing). The other bits choose the home line of the entry in the segment; a
// line is a cache line. Entries of a segment are sorted by hash, and each entry is at the first
// free position from the beginning of its home line. This order has three consequences. The whole
// index can be walked in the order of the hashes, starting at any hash, even if segments have grown
// or moved. A search for an absent hash ends at the first greater hash. A full segment is copied in
// order into a larger segment or into two segments, so at most kSegmentEntries entries move at a
// time. Erased entries leave no mark. Not thread-safe.
//
// A line holds five entries of hash and row, or four entries that also have a stamp, which is 12.8
// or 16 bytes per entry. The cost of a look-up is the number of lines that it reads.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps_server/storage/page_pool.h"

namespace evergrad::ps_server::storage {

// A line of the index has the hashes first, then the same number of rows, and then the same number
// of stamps in an index with stamps. Empty positions come last. An empty position has the row
// RowIndex::kNone and a hash that ends every search.
struct alignas(64) IndexLine {
  static constexpr std::uint32_t kPositions = 5, kStampedPositions = 4;
  union {
    std::uint64_t hashes[8];
    std::uint32_t numbers[16];
  };

  // Returns a bit for the position of `hash` among the first four positions, or 0.
  std::uint32_t AmongFour(std::uint64_t hash) const {
#if defined(__AVX2__)
    const __m256i four =
        _mm256_cmpeq_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(this)),
                           _mm256_set1_epi64x(static_cast<long long>(hash)));
    return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(four)));
#else
    std::uint32_t found = 0;
    for (std::uint32_t k = 0; k < kStampedPositions; ++k)
      found |= std::uint32_t{hashes[k] == hash} << k;
    return found;
#endif
  }
};

class RowIndex {
 public:
  // `stamp` is 0 in an index without stamps.
  struct Entry {
    std::uint64_t hash;
    std::uint32_t row;  // number of the row in the owner's arena; never kNone
    std::uint32_t stamp;
  };
  static constexpr std::uint32_t kNone = 0xffffffff;
  // A segment with more entries is split. A segment of this many entries has 64 to 96 KiB.
  static constexpr std::uint32_t kSegmentEntries = 4096;

  using Line = IndexLine;
  static constexpr std::uint32_t kPositions = Line::kPositions,
                                 kStampedPositions = Line::kStampedPositions;

  // `pages` outlives the index. An EG_CHECK fails if a few hundred bytes cannot be allocated.
  RowIndex(PagePool* pages, bool stamped);
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  std::uint64_t size() const { return size_; }
  // Returns the number of positions. The load is size() / places().
  std::uint64_t places() const { return places_total_; }
  std::uint64_t bytes() const { return bytes_ + directory_.capacity() * sizeof(Segments); }

  // A reference to an entry, or null if `line` is null. Valid until the next Insert or Erase.
  class Ref {
   public:
    Ref() = default;
    Ref(Line* line, std::uint32_t at, std::uint32_t positions)
        : line_(line), at_(at), positions_(positions) {}
    explicit operator bool() const { return line_ != nullptr; }
    std::uint64_t hash() const { return line_->hashes[at_]; }
    std::uint32_t row() const { return line_->numbers[2 * positions_ + at_]; }
    std::uint32_t stamp() const {
      return positions_ == kStampedPositions ? line_->numbers[3 * kStampedPositions + at_] : 0;
    }
    void set_row(std::uint32_t row) const { line_->numbers[2 * positions_ + at_] = row; }
    // Must be called only in an index with stamps.
    void set_stamp(std::uint32_t stamp) const {
      line_->numbers[3 * kStampedPositions + at_] = stamp;
    }
    Entry entry() const { return {hash(), row(), stamp()}; }

   private:
    friend class RowIndex;
    Line* line_ = nullptr;
    std::uint32_t at_ = 0, positions_ = 0;
  };

  // Returns the line where Find begins. The line is valid until homes_version() changes. A look-up
  // is made in steps, so that many look-ups are in flight. The home line is prefetched and read
  // later. If the entry can be in the next line, that line is prefetched and read still later.
  // (Prefetching both lines at once was a third slower, because the number of lines in flight
  // limits the speed.)
  Line* Home(std::uint64_t hash) const { return HomeOf(SegmentsOf(hash), hash); }
  Line* AskFor(std::uint64_t hash) const {
    Line* const home = Home(hash);
    __builtin_prefetch(home);
    return home;
  }
  // The second step of a look-up. Returns true if the entry is in the home line or absent.
  // Otherwise the entry may be in the next line, which the function prefetches.
  bool IsInHome(const Line* home, std::uint64_t hash) const {
    if (home->hashes[positions_ - 1] >= hash) return true;
    __builtin_prefetch(home + 1);
    return false;
  }
  // Returns the row of `hash` if its entry is in this line, otherwise kNone.
  template <bool kStamped>
  static std::uint32_t RowIn(const Line* line, std::uint64_t hash) {
    std::uint32_t found = line->AmongFour(hash);
    if constexpr (!kStamped) {
      // The number after the rows is always kNone. This number is read if the entry is not in this
      // line, because a branch for this case could not be predicted.
      found |= std::uint32_t{line->hashes[kStampedPositions] == hash} << kStampedPositions |
               1u << kPositions;
      return line->numbers[2 * kPositions + static_cast<std::uint32_t>(std::countr_zero(found))];
    }
    return found != 0 ? line->numbers[2 * kStampedPositions +
                                      static_cast<std::uint32_t>(std::countr_zero(found))]
                      : kNone;
  }
  std::uint32_t RowInHome(const Line* home, std::uint64_t hash) const {
    return positions_ == kPositions ? RowIn<false>(home, hash) : RowIn<true>(home, hash);
  }
  // Returns the row of a `hash` that is not in its home line, or kNone. Nearly all such rows are in
  // the next line.
  std::uint32_t RowBehind(Line* home, std::uint64_t hash) const {
    const std::uint32_t row = RowInHome(home + 1, hash);
    if (row != kNone) return row;
    const Ref e = Find(home + 1, hash);
    return e ? e.row() : kNone;
  }
  // Like RowIn, for an index with stamps. Sets `before` to the entry's stamp, and raises the stamp
  // to at least `now`. A row number with its highest bit set counts as absent.
  static std::uint32_t Touch(Line* line, std::uint64_t hash, std::uint32_t now,
                             std::uint32_t* before) {
    const std::uint32_t found = line->AmongFour(hash);
    if (found == 0) return kNone;
    const auto at = static_cast<std::uint32_t>(std::countr_zero(found));
    const std::uint32_t row = line->numbers[2 * kStampedPositions + at];
    if (row >> 31) return kNone;
    std::uint32_t& stamp = line->numbers[3 * kStampedPositions + at];
    *before = stamp;
    stamp = stamp < now ? now : stamp;
    return row;
  }
  std::uint64_t homes_version() const { return homes_version_; }
  // A copy of the fields that Home() needs, for use in a loop, where they stay in registers. Valid
  // until homes_version() changes.
  class Homes;
  Homes homes() const;
  Ref Find(Line* home, std::uint64_t hash) const {
    const Ref first = FirstNotBelow(home, hash);
    return first.hash() == hash && first.row() != kNone ? first : Ref();
  }
  Ref Find(std::uint64_t hash) const { return Find(Home(hash), hash); }
  // Adds `hash`, which must be absent, with stamp 0. The caller must set its row at once, to a
  // number other than kNone. Returns null, without a change, if memory is exhausted.
  Ref Insert(std::uint64_t hash);
  void Erase(Ref entry);  // `entry` is from Find.

  // Calls visit(Entry) for the entries with hash >= `from` in ascending order, until `visit`
  // returns false. Returns false if `visit` ended the walk. The index must not change meanwhile.
  template <class Visit>
  bool ForEachFrom(std::uint64_t from, Visit visit) const;
  template <class Visit>
  void ForEach(Visit visit) const {
    ForEachFrom(0, [&](const Entry& e) { return visit(e), true; });
  }

 private:
  // The header of a segment. The header is followed by capacity + slack + 1 lines. The last line is
  // always empty.
  struct alignas(64) Segment {
    std::uint32_t capacity = 0, slack = 0, count = 0, depth = 0;  // capacity and slack in lines
    Line* lines() { return reinterpret_cast<Line*>(this + 1); }
  };
  // A bucket of the directory. 2^(depth_ - depth of the segment) buckets refer to each segment.
  struct Segments {
    Line* lines = nullptr;
    std::uint32_t capacity = 0, depth = 0;
    Segment* segment() const { return reinterpret_cast<Segment*>(lines) - 1; }
  };

  std::size_t Bucket(std::uint64_t hash) const { return (hash >> 1) >> (63 - depth_); }
  const Segments& SegmentsOf(std::uint64_t hash) const { return directory_[Bucket(hash)]; }
  static std::uint32_t HomeIn(std::uint32_t capacity, std::uint32_t depth, std::uint64_t hash) {
    return static_cast<std::uint32_t>((((hash << depth) >> 32) * capacity) >> 32);
  }
  static Line* HomeOf(const Segments& s, std::uint64_t hash) {
    return s.lines + HomeIn(s.capacity, s.depth, hash);
  }

  // Returns the number of hashes of a line that are smaller than `hash`. A search with branches
  // would be slower, because the position of an entry after its home line cannot be predicted.
  std::uint32_t Below(const Line* line, std::uint64_t hash) const {
    const std::uint64_t* const h = line->hashes;
    std::uint32_t below = (h[0] < hash) + (h[1] < hash) + (h[2] < hash) + (h[3] < hash);
    if (positions_ == kPositions) below += h[4] < hash;
    return below;
  }
  Ref FirstNotBelow(Line* line, std::uint64_t hash) const {
    std::uint32_t below = Below(line, hash);
    while (below == positions_) below = Below(++line, hash);
    return {line, below, positions_};
  }
  Ref Next(Ref r) const {
    return r.at_ + 1 < positions_ ? Ref{r.line_, r.at_ + 1, positions_}
                                  : Ref{r.line_ + 1, 0, positions_};
  }
  Ref Before(Ref r) const {
    return r.at_ > 0 ? Ref{r.line_, r.at_ - 1, positions_}
                     : Ref{r.line_ - 1, positions_ - 1, positions_};
  }
  void Set(Ref place, const Entry& e) const {
    place.line_->hashes[place.at_] = e.hash;
    place.set_row(e.row);
    if (positions_ == kStampedPositions) place.set_stamp(e.stamp);
  }

  static std::size_t BytesOf(const Segment& s) {
    return sizeof(Segment) + (std::size_t{s.capacity} + s.slack + 1) * sizeof(Line);
  }
  std::uint32_t LinesFor(std::size_t count) const;
  bool IsFull(const Segment& s) const;
  Segment* New(std::uint32_t capacity, std::uint32_t slack, std::uint32_t depth);
  void Delete(Segment* segment);
  Segment* Filled(const std::vector<Entry>& from, std::size_t begin, std::size_t end,
                  std::uint32_t capacity, std::uint32_t depth);
  bool Grow(std::uint64_t hash);
  // Sets all buckets of `segment`, which contains `hash`.
  void SetSegments(std::uint64_t hash, Segment* segment);

  PagePool* const pages_;
  const std::uint32_t positions_;
  std::vector<Segments> directory_;
  std::vector<Entry> moving_;  // entries of the segment that grows
  std::uint32_t depth_ = 0;
  std::uint64_t size_ = 0, places_total_ = 0, bytes_ = 0, homes_version_ = 0;
};

class RowIndex::Homes {
 public:
  Line* Of(std::uint64_t hash) const { return HomeOf(directory_[(hash >> 1) >> shift_], hash); }

 private:
  friend class RowIndex;
  Homes(const Segments* directory, std::uint32_t shift) : directory_(directory), shift_(shift) {}
  const Segments* directory_;
  std::uint32_t shift_;
};
inline RowIndex::Homes RowIndex::homes() const { return {directory_.data(), 63 - depth_}; }

template <class Visit>
bool RowIndex::ForEachFrom(std::uint64_t from, Visit visit) const {
  for (std::size_t bucket = Bucket(from); bucket < directory_.size();) {
    const Segments& s = directory_[bucket];
    Segment* const segment = s.segment();
    Line* const end = s.lines + segment->capacity + segment->slack;
    const std::size_t width = std::size_t{1} << (depth_ - s.depth), first = bucket & ~(width - 1);
    for (Line* line = Bucket(from) >= first && Bucket(from) < first + width ? HomeOf(s, from)
                                                                            : s.lines;
         line < end; ++line) {
      for (std::uint32_t k = 0; k < positions_; ++k) {
        const Ref place(line, k, positions_);
        if (place.row() == kNone) break;
        if (place.hash() >= from && !visit(place.entry())) return false;
      }
    }
    bucket = first + width;
  }
  return true;
}

}  // namespace evergrad::ps_server::storage
