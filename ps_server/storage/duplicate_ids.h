// Finds the ids that a push names more than once.
//
// Each id of the push first passes a filter (Bloom, CACM 1970), which selects suspects: all
// duplicates, and about one in 300 of the other ids. Find then decides exactly, and compares only
// ids that may be equal to a suspect. Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace evergrad::ps_server::storage {

// A hash table that maps a hash to its position in a list of the caller. The table uses open
// addressing and is at most half full.
class HashPositions {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  void Begin(std::size_t count_max) {
    mask_ = std::bit_ceil(std::max<std::size_t>(2 * count_max, 8)) - 1;
    if (after_.size() <= mask_) after_.resize(mask_ + 1);
    std::fill_n(after_.begin(), mask_ + 1, 0);
  }
  // Returns the position of `hash`, or kNone. hash_at(position) returns the hash that was added
  // with this position.
  template <class HashAt>
  std::uint32_t Find(std::uint64_t hash, HashAt hash_at) const {
    return after_[Seek(hash, hash_at)] - 1;
  }
  // Returns the position of `hash`. If `hash` is absent, adds it with `position` and returns kNone.
  template <class HashAt>
  std::uint32_t FindOrAdd(std::uint64_t hash, std::uint32_t position, HashAt hash_at) {
    std::uint32_t& after = after_[Seek(hash, hash_at)];
    if (after != 0) return after - 1;
    after = position + 1;
    return kNone;
  }

 private:
  template <class HashAt>
  std::size_t Seek(std::uint64_t hash, HashAt hash_at) const {
    std::size_t at = hash & mask_;
    while (after_[at] != 0 && hash_at(after_[at] - 1) != hash) at = (at + 1) & mask_;
    return at;
  }

  std::vector<std::uint32_t> after_;  // position + 1, or 0 for a free entry
  std::size_t mask_ = 0;
};

// The Bloom filter. It sets two bits for each hash, both in one word.
class HashFilter {
 public:
  // The size of the filter gives a false positive for about one in 300 hashes.
  void Begin(std::size_t hashes_max) {
    mask_ = std::bit_ceil(std::max<std::size_t>(hashes_max / 4, 512)) - 1;
    if (words_.size() <= mask_) words_.resize(mask_ + 1);
    std::fill_n(words_.begin(), mask_ + 1, 0);
  }
  // A copy of the fields on the stack, for use in a loop, where they stay in registers.
  struct View {
    std::uint64_t* words;
    std::uint64_t mask;
    static std::uint64_t BitsOf(std::uint64_t hash) {
      return std::uint64_t{1} << (hash % 64) | std::uint64_t{1} << (hash >> 6) % 64;
    }
    bool Get(std::uint64_t hash) const { return (~words[(hash >> 12) & mask] & BitsOf(hash)) == 0; }
    // Adds the hash to the filter. Returns true if the hash was added before, or for a false
    // positive.
    bool Set(std::uint64_t hash) {
      std::uint64_t& word = words[(hash >> 12) & mask];
      const std::uint64_t before = word, bits = BitsOf(hash);
      word = before | bits;
      return (~before & bits) == 0;
    }
  };
  View view() { return {words_.data(), mask_}; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t mask_ = 0;
};

class DuplicateIds {
 public:
  static constexpr std::uint32_t kNone = HashPositions::kNone;

  // Begins a push of `size` ids. The caller marks each of them with a Marker and then calls Find.
  void Begin(std::size_t size);
  struct Marker {
    HashFilter::View seen;
    std::uint32_t* suspects;
    std::size_t count = 0;
    void Mark(std::uint64_t hash, std::size_t position) {
      if (seen.Set(hash)) [[unlikely]]
        suspects[count++] = static_cast<std::uint32_t>(position);
    }
  };
  Marker marker() { return {seen_.view(), suspect_positions_.data()}; }
  // `hashes` are the hashes of all ids of the push, and `suspects` is the number of suspects that
  // the Marker has counted.
  void Find(std::span<const std::uint64_t> hashes, std::size_t suspects);

  bool any() const { return !positions_.empty(); }
  // Returns the positions of ids that occur at an earlier position, in ascending order.
  std::span<const std::uint32_t> positions() const { return positions_; }
  // Returns the next position of the same id, or kNone. Valid only if any().
  std::uint32_t NextOf(std::size_t position) const { return next_[position]; }

 private:
  struct Suspect {
    std::uint64_t hash;
    std::uint32_t last;  // the last position of the id that was found, or kNone
  };
  HashFilter seen_, suspicious_;
  std::vector<std::uint32_t> suspect_positions_;
  std::vector<Suspect> suspects_;
  HashPositions suspect_of_;
  std::vector<std::uint32_t> positions_, next_;
};

}  // namespace evergrad::ps_server::storage
