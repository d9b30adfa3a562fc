#include "ps_server/storage/embedding_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mix.h"
#include "common/random/philox.h"
#include "common/sharding/row_digest.h"
#include "common/sharding/slots.h"
#include "common/tensor/convert.h"
#include "ps_server/optimizer/prefetch.h"
#include "ps_server/storage/hot_ids.h"
#include "ps_server/storage/row_arena.h"
#include "ps_server/storage/row_index.h"

namespace evergrad::ps_server::storage {
namespace {

using Entry = RowIndex::Entry;

// What Entry::row says. A number of the arena; or kWaiting with how many pushes have named the id
// (0 only while a prepared push is the first).
constexpr std::uint32_t kWaiting = 1u << 31, kCountMax = (1u << 30) - 2;
bool IsRow(const Entry& e) { return (e.row & kWaiting) == 0; }
std::uint32_t CountOf(const Entry& e) { return e.row & ~kWaiting; }
bool IsRow(RowIndex::Ref e) { return (e.row() & kWaiting) == 0; }
std::uint32_t CountOf(RowIndex::Ref e) { return e.row() & ~kWaiting; }

constexpr std::size_t kAheadRows =
    16;  // how far ahead memory is asked for what is looked at next, where there is no group
// Ids go through look-up and update in groups of this size, one step of a group at a time: the
// memory answers one group while others are worked on, and a step is a loop so short that the
// processor has many of its misses under way (of the page's translation, too, which holds up a
// prefetch).
constexpr std::size_t kGroup = 16, kDelay = 2, kRing = 8;
static_assert(kDelay < kRing);
// Of a pull: as many ids under way, in more and smaller groups (measured: README.md).
constexpr std::size_t kReadGroup = 8, kReadDelay = 4, kReadRing = 16;
static_assert(3 * kReadDelay < kReadRing);
constexpr std::size_t kNearBytesMax =
    128u << 10;  // rows of a push that stay in the second cache from Prepare to Apply
constexpr std::uint64_t kSweepParts = 64;        // of a sweep; a sweep takes ttl / 8 steps
constexpr std::uint64_t kVisitsMax = 64 * 1024;  // of the index, for one slice of a cut
constexpr std::uint64_t kPreimageSliceBytes = 1u << 20;
constexpr std::uint64_t kWaitingBytes = sizeof(std::int64_t) + 2 * sizeof(std::uint32_t);

// The inverse of sharding::Mix64, by the inverses of its odd factors and of its shifts.
constexpr std::uint64_t Unmix64(std::uint64_t x) {
  x ^= x >> 31 ^ x >> 62;
  x *= 0x319642b2d24d8ec3ull;
  x ^= x >> 27 ^ x >> 54;
  x *= 0x96de1b173f119089ull;
  return x ^ x >> 30 ^ x >> 60;
}
static_assert(Unmix64(sharding::Mix64(0x0123456789abcdefull)) == 0x0123456789abcdefull);
static_assert(Unmix64(sharding::Mix64(~0ull)) == ~0ull);

// Of rows, which are short: a call of the library costs more than the copy.
inline void Copy(const float* from, std::size_t floats, float* to) {
  std::size_t i = 0;
  for (; i + 8 <= floats; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(float));
  for (; i < floats; ++i) to[i] = from[i];
}

// Memory is charged in steps of at most 256 KiB, smaller ones for a table that is small itself.
std::uint64_t ChargedFor(std::uint64_t bytes) {
  constexpr std::uint64_t kStep = 256u << 10, kLeast = 4096;
  if (bytes == 0) return 0;
  return bytes >= kStep ? (bytes + kStep - 1) / kStep * kStep
                        : std::bit_ceil(std::max(bytes, kLeast));
}

// One bit for each row.
class Bits {
 public:
  void Resize(std::uint64_t n) { words_.resize((n + 63) / 64); }
  bool Get(std::uint32_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  void Set(std::uint32_t i) { words_[i / 64] |= 1ull << (i % 64); }
  std::uint64_t bits() const { return words_.size() * 64; }

 private:
  std::vector<std::uint64_t> words_;
};

// What a prepared push does to an id: it updates a row of the arena, or one of these. kAgain:
// nothing, the id was there before it, where their gradients are summed.
constexpr std::uint32_t kMake = kWaiting, kCount = kWaiting | 1,
                        kAgain =
                            kWaiting | (kCountMax + 1);  // kAgain is no count of an id that waits
constexpr std::uint32_t kNoNext = 0xffffffff;

// Places of hashes that stand in somebody's list: open addressing, at most half full.
class Places {
 public:
  void Begin(std::size_t count_max) {
    mask_ = std::bit_ceil(std::max<std::size_t>(2 * count_max, 8)) - 1;
    if (numbers_.size() <= mask_) numbers_.resize(mask_ + 1);
    std::fill_n(numbers_.begin(), mask_ + 1, 0);
  }
  // Where `hash` stands, by hash_at(place) of those that were added; or kNoNext.
  template <class HashAt>
  std::uint32_t Find(std::uint64_t hash, HashAt hash_at) const {
    return numbers_[Seek(hash, hash_at)] - 1;
  }
  // The place that was there, or kNoNext, and it stands at `place` from now on.
  template <class HashAt>
  std::uint32_t FindOrAdd(std::uint64_t hash, std::uint32_t place, HashAt hash_at) {
    std::uint32_t& number = numbers_[Seek(hash, hash_at)];
    if (number == 0) {
      number = place + 1;
      return kNoNext;
    }
    return number - 1;
  }

 private:
  template <class HashAt>
  std::size_t Seek(std::uint64_t hash, HashAt hash_at) const {
    std::size_t at = hash & mask_;
    while (numbers_[at] != 0 && hash_at(numbers_[at] - 1) != hash) at = (at + 1) & mask_;
    return at;
  }

  std::vector<std::uint32_t> numbers_;  // places and one; 0: nothing
  std::size_t mask_ = 0;
};

// A filter of hashes (Bloom, CACM 1970; both bits of a hash in one word).
class Seen {
 public:
  // So that about one in 300 hashes is taken for another one.
  void Begin(std::size_t hashes_max) {
    mask_ = std::bit_ceil(std::max<std::size_t>(hashes_max / 4, 512)) - 1;
    if (words_.size() <= mask_) words_.resize(mask_ + 1);
    std::fill_n(words_.begin(), mask_ + 1, 0);
  }
  struct View {  // for a loop: nothing of it is looked for again
    std::uint64_t* words;
    std::uint64_t mask;
    static std::uint64_t BitsOf(std::uint64_t hash) {
      return std::uint64_t{1} << (hash % 64) | std::uint64_t{1} << (hash >> 6) % 64;
    }
    bool Get(std::uint64_t hash) const { return (~words[(hash >> 12) & mask] & BitsOf(hash)) == 0; }
    // Whether it was there, or looks as if it was.
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

struct Aged {
  std::uint32_t stamp;
  std::int64_t id;
  std::uint64_t hash;
  friend bool operator<(const Aged& a, const Aged& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.id < b.id;
  }
};

}  // namespace

std::uint64_t TableSlice::bytes() const {
  return ids.size() * (sizeof(std::int64_t) + 2 * sizeof(std::uint32_t)) +
         (values.size() + numbers.size()) * sizeof(float) + waiting_ids.size() * kWaitingBytes;
}

void TableSlice::clear() {
  ids.clear(), stamps.clear(), counts.clear(), values.clear(), numbers.clear();
  waiting_ids.clear(), waiting_stamps.clear(), waiting_counts.clear();
}

struct EmbeddingTable::Parts {
  Parts(const TableSettings& settings, const optimizer::Optimizer& o, std::size_t numbers,
        bool stamped, std::shared_ptr<MemoryBudget> budget)
      : update(o),
        initial(settings.initializer),
        arena_share(budget),
        index_share(budget),
        key(random::KeyOf(settings.initializer.seed, settings.name)),
        dimension(settings.dimension),
        row_floats(settings.dimension + numbers),
        index(&budget->pages(), stamped),
        arena(&budget->pages(), row_floats, o.counts_per_row()) {}

  // Under the bijection, with its halves exchanged: the upper bits of Mix64 are what chose the slot
  // when the job's seed is 0.
  std::uint64_t HashOf(std::int64_t id) const {
    return std::rotl(sharding::Mix64(static_cast<std::uint64_t>(id) ^ key), 32);
  }
  // Of at most kSize ids: in a loop of its own the multiplications are vectorised.
  template <std::size_t kSize>
  void HashesOf(const std::int64_t* of, std::size_t size, std::uint64_t* to) const {
    if (size == kSize) {
      for (std::size_t k = 0; k < kSize; ++k) to[k] = HashOf(of[k]);
    } else {
      for (std::size_t k = 0; k < size; ++k) to[k] = HashOf(of[k]);
    }
  }
  std::int64_t IdOf(std::uint64_t hash) const {
    return static_cast<std::int64_t>(Unmix64(std::rotl(hash, 32)) ^ key);
  }
  std::uint64_t RowKey(std::uint64_t hash) const { return std::rotl(hash, 32); }

  const optimizer::Optimizer update;
  const RowInitializer initial;
  BudgetShare arena_share, index_share;  // keep the budget, whose pages index and arena are made of
  const std::uint64_t key;
  const std::size_t dimension, row_floats;
  RowIndex index;
  RowArena arena;
  std::uint64_t rows = 0, waiting = 0;
  std::uint32_t step = 0;  // the highest that was seen
  TableStats counted;      // only what is counted since the table is held
  HotIds hot;

  // The push between Prepare and the end of Apply. What is said of an id stands at its place in the
  // push.
  std::size_t ids = 0, next_id = 0;
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint32_t> what;           // the row that it updates, or kMake, kCount, kAgain
  std::vector<std::uint32_t> stamps_before;  // when stamps are kept
  std::vector<std::uint64_t> dropped;        // hashes of rows and waiting ids
  std::uint32_t stamp = 0, step_before = 0;
  PushOutcome outcome;
  // What the first look does not find: it stands behind its home line, or waits, or is not there.
  struct Later {
    RowIndex::Line* home;
    std::uint32_t place;
  };
  std::vector<Later> later;
  std::size_t laters = 0;
  template <bool kStamped>
  void LookUp(std::span<const std::int64_t> of);
  // The row of the hash at `place` if it stands in this line, and its stamp is set; else a number
  // from kWaiting on.
  template <bool kStamped>
  std::uint32_t RowIn(RowIndex::Line* line, std::uint32_t place);
  // Only when an id is there twice: the chain of its gradients.
  std::vector<std::uint32_t> twice;        // places of those that were there before, rising
  std::vector<std::uint32_t> next_source;  // by place
  void BeginTwice();
  void FindTwice(std::size_t suspected);
  struct Suspect {
    std::uint64_t hash;
    std::uint32_t last;  // place of the last one that was found, or kNoNext
  };
  std::vector<std::uint32_t> suspect_places;
  std::vector<Suspect> suspects;
  Seen seen, seen_suspects;
  Places place_of_suspect;
  // All that the push names, for those few pushes to which rows give way.
  Places place_of_named;
  bool named_ready = false;
  bool IsNamed(std::uint64_t hash);
  std::vector<float> sums;

  struct Cut {
    enum class State { kOpen, kLost } state = State::kOpen;
    std::uint64_t preimage_bytes_max = 0, preimage_bytes = 0;
    std::uint64_t cursor = 0;  // hashes below are handed out
    bool swept = false;        // all are
    Bits done;                 // rows that are saved, or were made after the beginning
    absl::flat_hash_set<std::uint64_t> done_waiting;
    std::deque<TableSlice> preimages;
    std::vector<Entry> picked;  // of the slice that is made
  };
  std::unique_ptr<Cut> cut;

  bool Concerns(std::uint64_t hash) const {
    return cut != nullptr && cut->state == Cut::State::kOpen && !cut->swept && hash >= cut->cursor;
  }
  void AppendRow(std::uint64_t hash, std::uint32_t row, std::uint32_t row_stamp,
                 TableSlice* slice) const;
  void AppendWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t waiting_stamp,
                     TableSlice* slice) const;
  TableSlice* Preimages(std::uint64_t bytes);  // where to save that much; nullptr: the cut is lost
  void SaveRow(std::uint64_t hash, std::uint32_t row, std::uint32_t row_stamp);
  void SaveWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t waiting_stamp);
  bool LeaveOut(std::uint64_t hash);  // a waiting id of the scan; false: it is left out already, or
                                      // the cut is lost
  void Lose();

  void Forget(bool stamped);  // Cancel
  void Settle() {             // the charges are those of what is held
    arena_share.SetTo(charged_rows_bytes(arena.high_water()));
    index_share.SetTo(index.bytes());
  }
  std::uint32_t Make(std::uint64_t hash, bool stamped);
  void Drop(std::uint64_t hash);
  void Oldest(bool of_rows, std::uint64_t count);  // to `dropped`
  std::uint64_t charged_rows_bytes(std::uint64_t high_water) const {
    return ChargedFor(arena.BytesOf(high_water));
  }
};

EmbeddingTable::EmbeddingTable(const TableSettings& settings, std::shared_ptr<MemoryBudget> budget)
    : settings_(settings) {
  const auto made = optimizer::Optimizer::Create(settings.optimizer);  // checked by Create
  numbers_ = static_cast<std::uint32_t>(made->row_numbers(settings.dimension));
  settings_.admit_after = std::max(1u, settings.admit_after);
  if (budget == nullptr) budget = std::make_shared<MemoryBudget>(0);
  parts_ = std::make_unique<Parts>(settings_, *made, numbers_, stamps(), std::move(budget));
  parts_->index_share.SetTo(parts_->index.bytes());
}

EmbeddingTable::~EmbeddingTable() = default;

absl::StatusOr<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(
    const TableSettings& settings, std::shared_ptr<MemoryBudget> budget) {
  const auto bad = [&](absl::string_view what, auto want, auto got) {
    return absl::InvalidArgumentError(absl::StrCat("a table's ", what, " is out of range: table=",
                                                   settings.name, " want=", want, " got=", got));
  };
  if (settings.name.empty()) return bad("name", "some bytes", "none");
  if (absl::Status checked = CheckInitializer(settings.initializer); !checked.ok()) return checked;
  const auto made = optimizer::Optimizer::Create(settings.optimizer);
  if (!made.ok()) return made.status();
  if (made->is_moving_average())
    return bad("optimizer", "an optimizer of gradients", settings.optimizer.type);
  if (settings.dimension == 0 || settings.dimension > kRowFloatsMax)
    return bad("dimension", absl::StrCat("1 to ", kRowFloatsMax), settings.dimension);
  if (const std::size_t floats = settings.dimension + made->row_numbers(settings.dimension);
      floats > kRowFloatsMax)
    return bad("row with its optimizer state", absl::StrCat("at most ", kRowFloatsMax, " floats"),
               floats);
  if (settings.admit_after > kCountMax)
    return bad("admit_after", absl::StrCat("at most ", kCountMax), settings.admit_after);
  if (!std::isfinite(settings.default_row))
    return bad("default_row", "a finite number", settings.default_row);
  if (settings.ttl_steps > std::numeric_limits<std::uint32_t>::max())
    return bad("ttl_steps", "below 2^32", settings.ttl_steps);
  return std::unique_ptr<EmbeddingTable>(new EmbeddingTable(settings, std::move(budget)));
}

bool EmbeddingTable::counts_per_row() const { return parts_->update.counts_per_row(); }
bool EmbeddingTable::stamps() const { return settings_.ttl_steps != 0 || settings_.evict_lru; }
std::uint64_t EmbeddingTable::rows() const { return parts_->rows; }
std::uint64_t EmbeddingTable::waiting() const { return parts_->waiting; }

std::uint64_t EmbeddingTable::bytes_of(std::uint64_t rows, std::uint64_t waiting) const {
  const std::uint64_t row =
      (parts_->row_floats + counts_per_row()) * sizeof(float) + kIndexBytesPerId;
  return rows * row + waiting * kIndexBytesPerId;
}

// ---------------------------------------------------------------- reading

void EmbeddingTable::ReadAll(std::span<const Reading> readings) {
  float made[kRowFloatsMax];  // a row that is not there, on its way to another type
  // Four steps: home in the index; row if the home has it; row of the few that stand in the line
  // behind it; values.
  struct Group {
    const Reading* of;
    std::size_t first, size;
    std::uint64_t hashes[kReadGroup];
    RowIndex::Line* homes[kReadGroup];
    const float* rows[kReadGroup];  // null: no row
    std::uint32_t later[kReadGroup], laters;
  } ring[kReadRing];
  const Reading* next = readings.data();
  const Reading* const end = next + readings.size();
  std::size_t next_id = 0, groups = 0;  // of `next`; those that have begun
  for (const Reading& reading : readings) EG_CHECK(!reading.table->applying());
  for (std::size_t step = 0;; ++step) {
    while (next != end && next_id == next->ids.size()) ++next, next_id = 0;
    if (next != end) {
      Group& g = ring[step % kReadRing];
      const Parts& p = *next->table->parts_;
      const RowIndex::Homes homes = p.index.homes();
      g.of = next;
      g.first = next_id;
      g.size = std::min(kReadGroup, next->ids.size() - next_id);
      next_id += g.size;
      ++groups;
      p.HashesOf<kReadGroup>(g.of->ids.data() + g.first, g.size, g.hashes);
      for (std::size_t k = 0; k < g.size; ++k) {
        g.homes[k] = homes.Of(g.hashes[k]);
        __builtin_prefetch(g.homes[k]);
      }
    } else if (step >= groups + 3 * kReadDelay) {
      return;
    }
    if (step >= kReadDelay && step - kReadDelay < groups) {
      Group& g = ring[(step - kReadDelay) % kReadRing];
      const Parts& p = *g.of->table->parts_;
      const std::size_t bytes = p.dimension * sizeof(float);
      g.laters = 0;
      for (std::size_t k = 0; k < g.size; ++k) {
        const std::uint32_t row = p.index.RowInHome(g.homes[k], g.hashes[k]);
        g.rows[k] = nullptr;
        if (row < kWaiting) {
          g.rows[k] = p.arena.At(row);
          PrefetchRow<0>(g.rows[k], bytes);
        } else if (!p.index.IsInHome(g.homes[k], g.hashes[k])) {
          g.later[g.laters++] = static_cast<std::uint32_t>(k);
        }
      }
    }
    if (step >= 2 * kReadDelay && step - 2 * kReadDelay < groups) {
      Group& g = ring[(step - 2 * kReadDelay) % kReadRing];
      const Parts& p = *g.of->table->parts_;
      for (std::size_t l = 0; l < g.laters; ++l) {
        const std::uint32_t k = g.later[l];
        const std::uint32_t row = p.index.RowBehind(g.homes[k], g.hashes[k]);
        if (row >= kWaiting) continue;
        g.rows[k] = p.arena.At(row);
        PrefetchRow<0>(g.rows[k], p.dimension * sizeof(float));
      }
    }
    if (step < 3 * kReadDelay) continue;
    const Group& g = ring[(step - 3 * kReadDelay) % kReadRing];
    const Parts& p = *g.of->table->parts_;
    const std::size_t dimension = p.dimension,
                      wire_bytes = dimension * tensor::WireBytes(g.of->wire);
    std::byte* const out = g.of->out + g.first * wire_bytes;
    const bool narrow = g.of->wire != tensor::WireType::kFloat32 ||
                        reinterpret_cast<std::uintptr_t>(out) % alignof(float) != 0;
    float* to = narrow ? made : reinterpret_cast<float*>(out);
    const auto absent = [&](std::size_t k) {
      if (g.of->table->settings_.admit_after > 1) {
        std::fill_n(to, dimension, g.of->table->settings_.default_row);
      } else {
        p.initial.Fill(p.RowKey(g.hashes[k]), {to, dimension});
      }
    };
    if (narrow) {
      for (std::size_t k = 0; k < g.size; ++k) {
        if (g.rows[k] == nullptr) absent(k);
        tensor::Narrow(g.of->wire, g.rows[k] != nullptr ? g.rows[k] : made, dimension,
                       out + k * wire_bytes);
      }
    } else if (dimension == 16) {
      for (std::size_t k = 0; k < g.size; ++k, to += 16)
        g.rows[k] != nullptr ? Copy(g.rows[k], 16, to) : absent(k);
    } else {
      for (std::size_t k = 0; k < g.size; ++k, to += dimension)
        g.rows[k] != nullptr ? Copy(g.rows[k], dimension, to) : absent(k);
    }
  }
}

// ---------------------------------------------------------------- a push, its first half

absl::StatusOr<PushOutcome> EmbeddingTable::Prepare(std::span<const std::int64_t> ids,
                                                    std::uint64_t global_step) {
  EG_CHECK(!applying());
  Parts& p = *parts_;
  if (global_step > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "global step does not fit 32 bits: table=", settings_.name, " global_step=", global_step));
  }
  if (ids.size() >= kCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("too many ids in a push: table=", settings_.name, " ids=", ids.size()));
  }
  const bool stamped = stamps();
  const std::size_t n = ids.size();
  p.ids = n;
  p.next_id = 0;
  p.dropped.clear();
  p.named_ready = false;
  p.outcome = {};
  p.step_before = p.step;
  p.stamp = stamped ? static_cast<std::uint32_t>(global_step) : 0;
  stamped ? p.LookUp<true>(ids) : p.LookUp<false>(ids);
  for (const std::uint32_t i : p.twice) p.what[i] = kAgain;

  std::uint64_t fresh = 0, fresh_waiting = 0,
                new_waiting = 0;  // become rows; of them from waiting; begin to wait
  bool memory = true;
  const std::uint64_t homes_version = p.index.homes_version();
  for (std::size_t l = 0; l < p.laters; ++l) {
    if (l + kAheadRows < p.laters) __builtin_prefetch(p.later[l + kAheadRows].home + 1);
    const std::uint32_t i = p.later[l].place;
    if (p.what[i] == kAgain) continue;
    const std::uint64_t hash = p.hashes[i];
    // An id that was inserted may have made the index grow, and move.
    RowIndex::Line* const home =
        p.index.homes_version() == homes_version ? p.later[l].home : p.index.Home(hash);
    // Nearly all stand in the next line; to find the place of any costs more.
    if (const std::uint32_t row =
            stamped ? p.RowIn<true>(home + 1, i) : p.RowIn<false>(home + 1, i);
        row < kWaiting) {
      p.what[i] = row;
      continue;
    }
    RowIndex::Ref e = p.index.Find(home, hash);
    const bool waited = static_cast<bool>(e);
    if (waited && IsRow(e)) {
      p.what[i] = e.row();
      if (stamped) {
        p.stamps_before[i] = e.stamp();
        e.set_stamp(std::max(e.stamp(), p.stamp));
      }
      continue;
    }
    if (!waited) {
      e = p.index.Insert(hash);
      if (!e) {
        memory = false;
        break;
      }
      e.set_row(kWaiting);
    }
    if (stamped) p.stamps_before[i] = e.stamp();
    if (CountOf(e) + 1 >= settings_.admit_after) {
      ++fresh;
      fresh_waiting += waited;
      p.what[i] = kMake;
    } else {
      new_waiting += !waited;
      ++p.outcome.ids_waiting;
      p.what[i] = kCount;
    }
  }
  p.outcome.duplicates = p.twice.size();
  p.outcome.rows_made = fresh;
  p.outcome.rows_updated = n - p.twice.size() - fresh - p.outcome.ids_waiting;
  p.index_share.SetTo(p.index.bytes());
  const auto refuse = [&](absl::string_view why, auto... details) {
    p.Forget(stamped);
    ++p.counted.refused;
    return absl::ResourceExhaustedError(absl::StrCat(why, ": table=", settings_.name, details...));
  };
  if (!memory) return refuse("out of memory for a table's index", " rows=", p.rows);

  // What is too old goes in any case: a part of the index whenever the table's time passes the next
  // 1/64 of ttl / 8.
  if (n > 0 && stamped) p.step = std::max(p.step, p.stamp);
  if (settings_.ttl_steps != 0 && p.step != p.step_before) {
    const std::uint64_t period = std::max<std::uint64_t>(1, settings_.ttl_steps / 8);
    const std::uint64_t before = p.step_before * kSweepParts / period,
                        now = p.step * kSweepParts / period;
    for (std::uint64_t tick = now - before >= kSweepParts ? now - kSweepParts + 1 : before + 1;
         tick <= now; ++tick) {
      const std::uint64_t part = tick % kSweepParts;
      p.index.ForEachFrom(part << 58, [&](const Entry& e) {
        if (e.hash >> 58 != part) return false;
        if (e.stamp + settings_.ttl_steps >= p.step) return true;
        if (p.IsNamed(e.hash)) return true;
        p.dropped.push_back(e.hash);
        ++(IsRow(e) ? p.outcome.evicted_ttl : p.outcome.waiting_dropped);
        return true;
      });
    }
  }

  // Then room: of bytes_max by content, of the server's limit as it is. Waiting ids give way before
  // rows do.
  const std::uint64_t rows_after = p.rows - p.outcome.evicted_ttl + fresh;
  const std::uint64_t waiting_after =
      p.waiting - p.outcome.waiting_dropped - fresh_waiting + new_waiting;
  const std::uint64_t row_bytes = bytes_of(1, 0);
  const std::uint64_t waiting_free =
      waiting_after - p.outcome.ids_waiting;  // that are not named by this push
  const std::uint64_t rows_free = rows_after - p.outcome.rows_updated - fresh;
  std::uint64_t drop_waiting = 0, drop_rows = 0;
  const bool grows = fresh + new_waiting > 0;
  if (const std::uint64_t bytes = bytes_of(rows_after, waiting_after);
      grows && settings_.bytes_max != 0 && bytes > settings_.bytes_max) {
    const std::uint64_t over = bytes - settings_.bytes_max;
    drop_waiting = std::min((over + kIndexBytesPerId - 1) / kIndexBytesPerId, waiting_free);
    if (const std::uint64_t dropped = drop_waiting * kIndexBytesPerId; dropped < over)
      drop_rows = (over - dropped + row_bytes - 1) / row_bytes;
    if (drop_rows > 0 && (!settings_.evict_lru || drop_rows > rows_free)) {
      return refuse("table is above bytes_max", " held=", bytes_of(p.rows, p.waiting),
                    " partition_bytes_max=", settings_.bytes_max, " rows=", p.rows,
                    " wanted=", fresh + new_waiting);
    }
  }
  const auto more_rows = [&] {
    const std::uint64_t room = p.arena.free_rows() + p.outcome.evicted_ttl + drop_rows;
    return fresh > room ? fresh - room : 0;
  };
  if (grows && (p.index_share.over_limit() || !p.arena_share.TryGrowTo(p.charged_rows_bytes(
                                                  p.arena.high_water() + more_rows())))) {
    const std::uint64_t entries = fresh - fresh_waiting + new_waiting;
    drop_waiting = std::min(std::max(drop_waiting, entries), waiting_free);
    drop_rows += more_rows();
    if (const std::uint64_t dropped =
            p.outcome.evicted() + p.outcome.waiting_dropped + drop_waiting;
        dropped < entries)
      drop_rows = std::max(drop_rows, entries - dropped);
    if (drop_rows > 0 && (!settings_.evict_lru || drop_rows > rows_free)) {
      const MemoryBudget& budget = p.index_share.budget();
      return refuse("server's tables are above memory_bytes_max", " held=", budget.used(),
                    " memory_bytes_max=", budget.limit(), " rows=", p.rows,
                    " wanted=", fresh + new_waiting);
    }
  }
  if (!p.arena.Reserve(std::min(fresh, p.arena.free_rows() + more_rows())))
    return refuse("out of memory for a table's rows", " rows=", p.rows);
  // In batches: a scan for each push of a full table would cost more than the push.
  if (drop_waiting > 0)
    drop_waiting = std::min(std::max(drop_waiting, p.waiting / 64), waiting_free);
  if (drop_rows > 0) drop_rows = std::min(std::max(drop_rows, p.rows / 64), rows_free);
  if (drop_waiting > 0) p.Oldest(false, drop_waiting);
  if (drop_rows > 0) p.Oldest(true, drop_rows);
  p.outcome.waiting_dropped += drop_waiting;
  p.outcome.evicted_lru = drop_rows;

  if (n > 0) p.hot.Add(n, [&](std::size_t i) { return ids[i]; });
  phase_ = Phase::kPrepared;
  return p.outcome;
}

template <bool kStamped>
inline std::uint32_t EmbeddingTable::Parts::RowIn(RowIndex::Line* line, std::uint32_t place) {
  if constexpr (kStamped) return RowIndex::Touch(line, hashes[place], stamp, &stamps_before[place]);
  return RowIndex::RowIn<false>(line, hashes[place]);
}

// What each id is (`what`), as far as one look at its home line can say; the others, to `later`.
// Nothing is inserted, so every home stays where it is. Without branches that depend on the ids.
// Ends with the ids that are there twice.
template <bool kStamped>
void EmbeddingTable::Parts::LookUp(std::span<const std::int64_t> of) {
  const std::size_t n = of.size();
  if (hashes.size() < n) hashes.resize(n), what.resize(n), later.resize(n);
  if (kStamped && stamps_before.size() < n) stamps_before.resize(n);
  BeginTwice();
  const RowIndex::Homes homes = index.homes();
  Seen::View seen_view = seen.view();
  std::uint64_t* const to_hash = hashes.data();
  std::uint32_t *const to_what = what.data(), *const to_suspect = suspect_places.data();
  Later* const to_later = later.data();
  RowIndex::Line* ring[kRing][kGroup];
  std::size_t suspected = 0, behind = 0;
  // A push of few ids finds its rows near when it applies.
  const std::size_t near =
      n * row_floats * sizeof(float) <= kNearBytesMax ? row_floats * sizeof(float) : 0;
  const std::size_t groups = (n + kGroup - 1) / kGroup;
  for (std::size_t turn = 0; turn < groups + kDelay; ++turn) {
    if (turn < groups) {
      RowIndex::Line** const to_home = ring[turn % kRing];
      const std::size_t first = turn * kGroup, size = std::min(kGroup, n - first);
      HashesOf<kGroup>(of.data() + first, size, to_hash + first);
      for (std::size_t k = 0; k < size; ++k) {
        const std::uint64_t hash = to_hash[first + k];
        RowIndex::Line* const home = homes.Of(hash);
        __builtin_prefetch(home, 0, 2);
        to_home[k] = home;
        if (seen_view.Set(hash)) [[unlikely]]
          to_suspect[suspected++] = static_cast<std::uint32_t>(first + k);
      }
    }
    if (turn < kDelay) continue;
    const std::size_t group = turn - kDelay, first = group * kGroup,
                      size = std::min(kGroup, n - first);
    RowIndex::Line* const* const home = ring[group % kRing];
    std::uint32_t* const row_of = to_what + first;
    for (std::size_t k = 0; k < size; ++k) {
      const auto place = static_cast<std::uint32_t>(first + k);
      const std::uint32_t row = RowIn<kStamped>(home[k], place);
      row_of[k] = row;
      to_later[behind] = {home[k], place};
      behind += row >= kWaiting;
      __builtin_prefetch(home[k] + (row >= kWaiting));
    }
    for (std::size_t k = 0; near != 0 && k < size; ++k) {
      if (row_of[k] < kWaiting) PrefetchRow<1>(arena.At(row_of[k]), near);
    }
  }
  laters = behind;
  FindTwice(suspected);
}

// The `count` oldest that no push names and that do not go anyway, to `dropped`. The caller knows
// that there are so many.
void EmbeddingTable::Parts::Oldest(bool of_rows, std::uint64_t count) {
  const absl::flat_hash_set<std::uint64_t> gone(dropped.begin(), dropped.end());
  // A histogram of stamps first, so that few are looked at closely, and no memory of the size of
  // the table is needed.
  std::uint32_t least = ~0u, most = 0;
  index.ForEach([&](const Entry& e) {
    if (IsRow(e) == of_rows) least = std::min(least, e.stamp), most = std::max(most, e.stamp);
  });
  constexpr int kBits = 12;
  const int shift = std::max(0, static_cast<int>(std::bit_width(most - least)) - kBits);
  std::vector<std::uint64_t> histogram(1u << kBits);
  index.ForEach([&](const Entry& e) {
    if (IsRow(e) == of_rows) ++histogram[(e.stamp - least) >> shift];
  });
  // As many more as may turn out to be named or gone.
  const std::uint64_t enough = count + ids + gone.size();
  std::uint32_t last = 0;
  for (std::uint64_t sum = histogram[0]; sum < enough && last + 1 < histogram.size();
       sum += histogram[last])
    ++last;
  std::vector<Aged> candidates;
  index.ForEach([&](const Entry& e) {
    if (IsRow(e) == of_rows && (e.stamp - least) >> shift <= last && !IsNamed(e.hash) &&
        (gone.empty() || !gone.contains(e.hash)))
      candidates.push_back({e.stamp, IdOf(e.hash), e.hash});
  });
  EG_CHECK(candidates.size() >= count);
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count - 1),
                   candidates.end());
  for (std::uint64_t i = 0; i < count; ++i) dropped.push_back(candidates[i].hash);
}

// Which ids are there twice, exactly. Those that seemed to have been seen before are suspects, few
// when there is no such id; then each id that may be one of theirs is looked at.
void EmbeddingTable::Parts::BeginTwice() {
  twice.clear();
  next_source.clear();
  seen.Begin(ids);
  if (suspect_places.size() < ids) suspect_places.resize(ids);
}

void EmbeddingTable::Parts::FindTwice(std::size_t count) {
  if (count == 0) return;
  suspects.clear();
  place_of_suspect.Begin(count);
  seen_suspects.Begin(count);
  Seen::View suspicious = seen_suspects.view();
  const auto suspect_hash = [this](std::uint32_t at) { return suspects[at].hash; };
  for (const std::uint32_t place : std::span(suspect_places.data(), count)) {
    const std::uint64_t hash = hashes[place];
    suspicious.Set(hash);
    if (place_of_suspect.FindOrAdd(hash, static_cast<std::uint32_t>(suspects.size()),
                                   suspect_hash) == kNoNext)
      suspects.push_back({hash, kNoNext});
  }
  for (std::size_t i = 0; i < ids; ++i) {
    if (!suspicious.Get(hashes[i])) continue;
    const std::uint32_t at = place_of_suspect.Find(hashes[i], suspect_hash);
    if (at == kNoNext) continue;
    const std::uint32_t before = std::exchange(suspects[at].last, static_cast<std::uint32_t>(i));
    if (before == kNoNext) continue;
    if (twice.empty()) next_source.assign(ids, kNoNext);
    next_source[before] = static_cast<std::uint32_t>(i);
    twice.push_back(static_cast<std::uint32_t>(i));
  }
}

bool EmbeddingTable::Parts::IsNamed(std::uint64_t hash) {
  const auto hash_at = [this](std::uint32_t place) { return hashes[place]; };
  if (!std::exchange(named_ready, true)) {
    place_of_named.Begin(ids);
    for (std::size_t i = 0; i < ids; ++i)
      place_of_named.FindOrAdd(hashes[i], static_cast<std::uint32_t>(i), hash_at);
  }
  return place_of_named.Find(hash, hash_at) != kNoNext;
}

// Takes back what the look-up of the ids has left in the index. In any order: of an id that is
// there twice only the first place counts.
void EmbeddingTable::Parts::Forget(bool stamped) {
  for (std::size_t i = 0; i < ids; ++i) {
    if (what[i] == kAgain || what[i] == RowIndex::kNone || (what[i] < kWaiting && !stamped))
      continue;
    const RowIndex::Ref e = index.Find(hashes[i]);
    if (what[i] < kWaiting) {
      e.set_stamp(stamps_before[i]);
    } else if (CountOf(e) == 0) {
      index.Erase(e);
    }
  }
  step = step_before;
  Settle();
}

void EmbeddingTable::Cancel() {
  EG_CHECK(phase_ == Phase::kPrepared);
  parts_->Forget(stamps());
  phase_ = Phase::kIdle;
}

// ---------------------------------------------------------------- a push, its second half

void EmbeddingTable::Parts::Drop(std::uint64_t hash) {
  const RowIndex::Ref e = index.Find(hash);
  if (IsRow(e)) {
    if (Concerns(hash)) SaveRow(hash, e.row(), e.stamp());
    arena.Free(e.row());
    --rows;
  } else {
    if (Concerns(hash)) SaveWaiting(hash, CountOf(e), e.stamp());
    --waiting;
  }
  index.Erase(e);
}

std::uint32_t EmbeddingTable::Parts::Make(std::uint64_t hash, bool stamped) {
  const RowIndex::Ref e = index.Find(hash);
  if (const std::uint32_t count = CountOf(e); count > 0) {
    if (Concerns(hash)) SaveWaiting(hash, count, e.stamp());
    --waiting;
  }
  const std::uint32_t row = arena.Take();
  e.set_row(row);
  if (stamped) e.set_stamp(std::max(e.stamp(), stamp));
  ++rows;
  if (cut != nullptr && cut->state == Cut::State::kOpen && !cut->swept) {
    if (row >= cut->done.bits()) cut->done.Resize(std::bit_ceil(row + 1ull));
    cut->done.Set(row);
  }
  float* const at = arena.At(row);
  initial.Fill(RowKey(hash), {at, dimension});
  update.FillRowNumbers(dimension, at + dimension);
  return row;
}

std::uint64_t EmbeddingTable::Apply(tensor::WireType wire, const std::byte* gradient,
                                    std::uint64_t bytes_max) {
  EG_CHECK(applying());
  Parts& p = *parts_;
  const bool stamped = stamps(), counts = counts_per_row(), twice = !p.next_source.empty();
  const std::size_t dimension = p.dimension, row_bytes = p.row_floats * sizeof(float);
  if (phase_ == Phase::kPrepared) {
    phase_ = Phase::kApplying;
    for (std::size_t i = 0; i < p.dropped.size(); ++i) {
      if (i + kAheadRows < p.dropped.size()) p.index.AskFor(p.dropped[i + kAheadRows]);
      p.Drop(p.dropped[i]);
    }
    p.counted.admitted += p.outcome.rows_made;
    p.counted.evicted_ttl += p.outcome.evicted_ttl;
    p.counted.evicted_lru += p.outcome.evicted_lru;
    p.counted.waiting_dropped += p.outcome.waiting_dropped;
    p.counted.gradients_dropped += p.outcome.ids_waiting;
    p.counted.duplicates += p.outcome.duplicates;
  }
  const bool cutting = p.cut != nullptr;
  const bool convert = wire != tensor::WireType::kFloat32 ||
                       reinterpret_cast<std::uintptr_t>(gradient) % alignof(float) != 0;
  const bool plain = !cutting && !counts && !twice &&
                     !convert;  // and a known row: nothing but its address is needed
  const std::size_t wire_bytes = dimension * tensor::WireBytes(wire);
  // Of the rows of all groups, and of one that is added to one of them.
  if (twice || convert) p.sums.resize((kRing * kGroup + 1) * dimension);
  const auto floats_of = [&](std::size_t source, float* room) {
    if (!convert) return reinterpret_cast<const float*>(gradient) + source * dimension;
    tensor::Widen(wire, gradient + source * wire_bytes, dimension, room);
    return static_cast<const float*>(room);
  };

  // Groups of rows: while one is updated, the memory is asked for the others.
  struct Group {
    float* rows[kGroup];
    const float* gradients[kGroup];
    std::uint32_t t[kGroup];
    std::size_t count = 0;
  } groups[kRing];
  std::uint64_t bytes = 0;
  const auto fill = [&](std::size_t which) {
    Group& group = groups[which];
    group.count = 0;
    if (plain) {
      // At least one row; `bytes` is below `bytes_max` here or the loop is over.
      const std::uint64_t left =
          bytes < bytes_max ? (bytes_max - bytes - 1) / (dimension * sizeof(float)) + 1 : 0;
      const auto end = static_cast<std::size_t>(
          std::min<std::uint64_t>(left, std::min(kGroup, p.ids - p.next_id)));
      const std::uint32_t* const what = p.what.data() + p.next_id;
      const float* const gradients = floats_of(p.next_id, nullptr);
      std::size_t k = 0;
      for (; k < end && what[k] < kMake; ++k) {
        group.rows[k] = p.arena.At(what[k]);
        group.gradients[k] = gradients + k * dimension;
      }
      group.count = k;
      p.next_id += k;
      bytes += k * dimension * sizeof(float);
    }
    while (p.next_id < p.ids && group.count < kGroup && bytes < bytes_max) {
      const std::size_t i = p.next_id++;
      if (i + kAheadRows < p.ids && p.what[i + kAheadRows] >= kMake)
        p.index.AskFor(p.hashes[i + kAheadRows]);
      std::uint32_t row = p.what[i];
      if (row == kAgain) continue;
      const std::uint64_t hash = p.hashes[i];
      float* const sum =
          twice || convert ? p.sums.data() + (which * kGroup + group.count) * dimension : nullptr;
      const float* from = floats_of(i, sum);
      bytes += dimension * sizeof(float);
      if (twice && p.next_source[i] != kNoNext) {
        if (from != sum) std::copy_n(from, dimension, sum);
        for (std::uint32_t s = p.next_source[i]; s != kNoNext; s = p.next_source[s]) {
          const float* const other = floats_of(s, p.sums.data() + kRing * kGroup * dimension);
          for (std::size_t k = 0; k < dimension; ++k) sum[k] += other[k];
          bytes += dimension * sizeof(float);
        }
        from = sum;
      }
      if (row == kCount) {
        const RowIndex::Ref e = p.index.Find(hash);
        const std::uint32_t before = CountOf(e);
        if (before > 0 && p.Concerns(hash)) p.SaveWaiting(hash, before, e.stamp());
        if (before == 0) {
          ++p.waiting;
          if (p.Concerns(hash)) p.LeaveOut(hash);
        }
        e.set_row(kWaiting | (before + 1));
        if (stamped) e.set_stamp(std::max(e.stamp(), p.stamp));
        continue;
      }
      if (row == kMake) {
        row = p.Make(hash, stamped);  // and it is near now
      } else if (cutting && p.Concerns(hash)) {
        p.SaveRow(hash, row, stamped ? p.stamps_before[i] : 0);
      }
      group.rows[group.count] = p.arena.At(row);
      group.gradients[group.count] = from;
      if (counts) {
        std::uint32_t& gradients_seen = p.arena.Count(row);
        gradients_seen += gradients_seen != ~0u;
        group.t[group.count] = gradients_seen;
      }
      ++group.count;
    }
  };
  for (std::size_t step = 0;; ++step) {
    fill(step % kRing);
    const Group& next = groups[step % kRing];
    if (step < kDelay) {
      for (std::size_t k = 0; k < next.count; ++k) PrefetchRow<1>(next.rows[k], row_bytes);
      continue;
    }
    const Group& group = groups[(step - kDelay) % kRing];
    if (group.count == 0) break;  // and so are those behind it
    p.update.ApplyRows(
        {group.count, dimension, group.rows, group.gradients, group.t, next.count, next.rows});
  }
  if (p.next_id == p.ids) {
    phase_ = Phase::kIdle;
    p.Settle();
  }
  return bytes;
}

// ---------------------------------------------------------------- cuts

EmbeddingTable::CutInfo EmbeddingTable::BeginCut(std::uint64_t preimage_bytes_max) {
  EG_CHECK(!applying());
  Parts& p = *parts_;
  EG_CHECK(p.cut == nullptr);
  p.cut = std::make_unique<Parts::Cut>();
  p.cut->preimage_bytes_max = preimage_bytes_max;
  p.cut->done.Resize(p.arena.high_water());
  return {p.rows, p.waiting, p.step};
}

EmbeddingTable::CutState EmbeddingTable::cut_state() const {
  if (parts_->cut == nullptr) return CutState::kNone;
  return parts_->cut->state == Parts::Cut::State::kOpen ? CutState::kOpen : CutState::kLost;
}

void EmbeddingTable::EndCut() { parts_->cut = nullptr; }

void EmbeddingTable::Parts::AppendRow(std::uint64_t hash, std::uint32_t row,
                                      std::uint32_t row_stamp, TableSlice* slice) const {
  const float* const at = arena.At(row);
  slice->ids.push_back(IdOf(hash));
  slice->stamps.push_back(row_stamp);
  slice->counts.push_back(update.counts_per_row() ? arena.Count(row) : 0);
  slice->values.insert(slice->values.end(), at, at + dimension);
  slice->numbers.insert(slice->numbers.end(), at + dimension, at + row_floats);
}

void EmbeddingTable::Parts::AppendWaiting(std::uint64_t hash, std::uint32_t count,
                                          std::uint32_t waiting_stamp, TableSlice* slice) const {
  slice->waiting_ids.push_back(IdOf(hash));
  slice->waiting_stamps.push_back(waiting_stamp);
  slice->waiting_counts.push_back(count);
}

void EmbeddingTable::Parts::Lose() {
  Cut lost;
  lost.state = Cut::State::kLost;
  *cut = std::move(lost);
}

TableSlice* EmbeddingTable::Parts::Preimages(std::uint64_t bytes) {
  if (cut->preimage_bytes + bytes > cut->preimage_bytes_max) {
    Lose();
    return nullptr;
  }
  cut->preimage_bytes += bytes;
  if (cut->preimages.empty() || cut->preimages.back().bytes() >= kPreimageSliceBytes)
    cut->preimages.emplace_back();
  return &cut->preimages.back();
}

void EmbeddingTable::Parts::SaveRow(std::uint64_t hash, std::uint32_t row,
                                    std::uint32_t row_stamp) {
  if (cut->done.Get(row)) return;
  TableSlice* const slice = Preimages(kWaitingBytes + row_floats * sizeof(float));
  if (slice == nullptr) return;
  AppendRow(hash, row, row_stamp, slice);
  cut->done.Set(row);
}

// What is in the set costs about as much as what it stands for.
bool EmbeddingTable::Parts::LeaveOut(std::uint64_t hash) {
  if (cut->done_waiting.contains(hash)) return false;
  cut->preimage_bytes += kWaitingBytes;
  cut->done_waiting.insert(hash);
  return Preimages(0) != nullptr;
}

void EmbeddingTable::Parts::SaveWaiting(std::uint64_t hash, std::uint32_t count,
                                        std::uint32_t waiting_stamp) {
  if (!LeaveOut(hash)) return;
  TableSlice* const slice = Preimages(kWaitingBytes);
  if (slice != nullptr) AppendWaiting(hash, count, waiting_stamp, slice);
}

bool EmbeddingTable::NextSlice(std::uint64_t bytes_max, TableSlice* slice) {
  EG_CHECK(!applying());
  Parts& p = *parts_;
  slice->clear();
  if (cut_state() != CutState::kOpen) return false;
  Parts::Cut& cut = *p.cut;
  // What is held beside the table goes first: that makes room for more of it.
  if (!cut.preimages.empty()) {
    std::swap(*slice, cut.preimages.front());
    cut.preimages.pop_front();
    cut.preimage_bytes -= std::min(cut.preimage_bytes, slice->bytes());
    return !cut.swept || !cut.preimages.empty();
  }
  if (cut.swept) return false;
  const std::uint64_t row_bytes = kWaitingBytes + p.row_floats * sizeof(float);
  std::uint64_t bytes = 0, visits = 0;
  cut.picked.clear();
  cut.swept = p.index.ForEachFrom(cut.cursor, [&](const Entry& e) {
    if (bytes + row_bytes > bytes_max && bytes > 0) return false;
    if (++visits > kVisitsMax) return false;
    cut.cursor = e.hash + 1;
    if (IsRow(e)) {
      if (cut.done.Get(e.row)) return true;
      cut.picked.push_back(e);
      bytes += row_bytes;
    } else if (!cut.done_waiting.contains(e.hash)) {
      p.AppendWaiting(e.hash, CountOf(e), e.stamp, slice);
      bytes += kWaitingBytes;
    }
    return true;
  });
  for (std::size_t i = 0; i < cut.picked.size(); ++i) {
    if (i + kAheadRows < cut.picked.size())
      PrefetchRow<0>(p.arena.At(cut.picked[i + kAheadRows].row), p.row_floats * sizeof(float));
    p.AppendRow(cut.picked[i].hash, cut.picked[i].row, cut.picked[i].stamp, slice);
  }
  return !cut.swept;
}

// ---------------------------------------------------------------- restoring

absl::Status EmbeddingTable::Restore(const RestoredRows& from) {
  EG_CHECK(!applying() && cut_state() == CutState::kNone);
  Parts& p = *parts_;
  const std::size_t n = from.ids.size();
  const auto bad = [&](absl::string_view what, auto... details) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": table=", settings_.name, details...));
  };
  if (from.stamps.size() != n || from.counts.size() != n || from.values.size() != n * p.dimension ||
      from.numbers.size() != n * numbers_) {
    return bad("the arrays of restored rows differ in length", " ids=", n,
               " stamps=", from.stamps.size(), " counts=", from.counts.size(),
               " values=", from.values.size(), " numbers=", from.numbers.size(),
               " dimension=", p.dimension, " numbers_per_row=", numbers_);
  }
  if (!p.arena_share.TryGrowTo(p.charged_rows_bytes(p.arena.high_water() + n)) ||
      !p.arena.Reserve(n)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory for restored rows: table=", settings_.name, " rows=", p.rows + n));
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAheadRows < n) p.index.AskFor(p.HashOf(from.ids[i + kAheadRows]));
    if ((from.stamps[i] | from.counts[i]) >> 32 != 0)
      return bad("stamp or count of a restored row does not fit 32 bits", " id=", from.ids[i],
                 " stamp=", from.stamps[i], " count=", from.counts[i]);
    const std::uint64_t hash = p.HashOf(from.ids[i]);
    if (p.index.Find(hash)) return bad("duplicate restored row", " id=", from.ids[i]);
    const RowIndex::Ref e = p.index.Insert(hash);
    if (!e)
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a table's index: table=", settings_.name));
    e.set_row(p.arena.Take());
    if (stamps()) {
      e.set_stamp(static_cast<std::uint32_t>(from.stamps[i]));
      p.step = std::max(p.step, e.stamp());
    }
    if (counts_per_row()) p.arena.Count(e.row()) = static_cast<std::uint32_t>(from.counts[i]);
    float* const at = p.arena.At(e.row());
    std::memcpy(at, from.values.data() + i * p.dimension, p.dimension * sizeof(float));
    if (numbers_ != 0)
      std::memcpy(at + p.dimension, from.numbers.data() + i * numbers_, numbers_ * sizeof(float));
    ++p.rows;
  }
  p.index_share.SetTo(p.index.bytes());
  if (p.index_share.over_limit())
    return absl::ResourceExhaustedError(absl::StrCat(
        "restored rows are above memory_bytes_max: table=", settings_.name, " rows=", p.rows));
  return absl::OkStatus();
}

absl::Status EmbeddingTable::Restore(const RestoredWaiting& from) {
  EG_CHECK(!applying() && cut_state() == CutState::kNone);
  Parts& p = *parts_;
  const std::size_t n = from.ids.size();
  const auto bad = [&](absl::string_view what, auto... details) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": table=", settings_.name, details...));
  };
  if (from.stamps.size() != n || from.counts.size() != n)
    return bad("the arrays of restored waiting ids differ in length", " ids=", n,
               " stamps=", from.stamps.size(), " counts=", from.counts.size());
  if (n > 0 && settings_.admit_after <= 1)
    return bad("restored ids wait for admission in a table that admits at the first push",
               " ids=", n);
  for (std::size_t i = 0; i < n; ++i) {
    if (from.stamps[i] >> 32 != 0 || from.counts[i] == 0 || from.counts[i] > kCountMax)
      return bad("stamp or count of a restored waiting id is out of range", " id=", from.ids[i],
                 " stamp=", from.stamps[i], " count=", from.counts[i]);
    const std::uint64_t hash = p.HashOf(from.ids[i]);
    if (p.index.Find(hash)) return bad("duplicate restored waiting id", " id=", from.ids[i]);
    const RowIndex::Ref e = p.index.Insert(hash);
    if (!e)
      return absl::ResourceExhaustedError(
          absl::StrCat("out of memory for a table's index: table=", settings_.name));
    // A job that admits sooner than the one that was cut: the next push to it does.
    e.set_row(kWaiting |
              std::min(static_cast<std::uint32_t>(from.counts[i]), settings_.admit_after - 1));
    if (stamps()) {
      e.set_stamp(static_cast<std::uint32_t>(from.stamps[i]));
      p.step = std::max(p.step, e.stamp());
    }
    ++p.waiting;
  }
  p.index_share.SetTo(p.index.bytes());
  if (p.index_share.over_limit())
    return absl::ResourceExhaustedError(
        absl::StrCat("restored waiting ids are above memory_bytes_max: table=", settings_.name));
  return absl::OkStatus();
}

absl::Status EmbeddingTable::RestoreStep(std::uint64_t step) {
  if (step > std::numeric_limits<std::uint32_t>::max())
    return absl::InvalidArgumentError(absl::StrCat(
        "a table's restored step does not fit 32 bits: table=", settings_.name, " step=", step));
  if (stamps()) parts_->step = std::max(parts_->step, static_cast<std::uint32_t>(step));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- looking

TableStats EmbeddingTable::stats() const {
  EG_CHECK(!applying());
  const Parts& p = *parts_;
  TableStats s = p.counted;
  s.rows = p.rows;
  s.waiting = p.waiting;
  s.value_bytes = p.rows * p.dimension * sizeof(float);
  s.number_bytes = p.rows * numbers_ * sizeof(float);
  // Stamps lie in the index: 16 bytes a place for 12.8.
  const std::uint64_t stamp_bytes = stamps() ? p.index.bytes() / 5 : 0;
  s.index_bytes = p.index.bytes() - stamp_bytes;
  s.counter_bytes = stamp_bytes + p.rows * (counts_per_row() ? sizeof(std::uint32_t) : 0);
  s.memory_bytes = p.arena_share.bytes() + p.index_share.bytes();
  s.index_places = p.index.places();
  return s;
}

std::vector<HotId> EmbeddingTable::Hottest(std::size_t count) const {
  const HotIds& hot = parts_->hot;
  std::vector<HotId> all;
  for (std::size_t i = 0; i < hot.size(); ++i)
    all.push_back(
        {hot.id(i), hot.count(i) * HotIds::kSampledEvery, hot.error(i) * HotIds::kSampledEvery});
  std::sort(all.begin(), all.end(), [](const HotId& a, const HotId& b) {
    return a.pushes != b.pushes ? a.pushes > b.pushes : a.id < b.id;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

EmbeddingTable::Digests EmbeddingTable::Digest() const {
  EG_CHECK(!applying());
  const Parts& p = *parts_;
  Digests d;
  p.index.ForEach([&](const Entry& e) {
    const std::int64_t id = p.IdOf(e.hash);
    if (!IsRow(e)) {
      d.counters += sharding::DigestOfCounters(id, e.stamp, CountOf(e), true);
      return;
    }
    const float* const at = p.arena.At(e.row);
    d.values += sharding::DigestOfRow(id, 0, {at, p.dimension});
    d.numbers += sharding::DigestOfRow(id, static_cast<std::uint32_t>(p.dimension),
                                       {at + p.dimension, numbers_});
    d.counters +=
        sharding::DigestOfCounters(id, e.stamp, counts_per_row() ? p.arena.Count(e.row) : 0, false);
  });
  return d;
}

}  // namespace evergrad::ps_server::storage
