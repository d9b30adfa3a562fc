// The figures of a table: the outcome of one push, its sizes and counts, its hottest ids.
#pragma once

#include <cstdint>

namespace evergrad::ps_server::storage {

// The changes that a prepared push will make.
struct PushOutcome {
  std::uint64_t rows_updated = 0;  // rows that existed before
  std::uint64_t rows_made = 0;     // rows that were made with their initial values and then updated
  // Ids that were only counted, without use of their gradients (admit_after).
  std::uint64_t ids_waiting = 0;
  std::uint64_t evicted_ttl = 0;      // rows
  std::uint64_t evicted_lru = 0;      // rows
  std::uint64_t waiting_dropped = 0;  // waiting ids that were dropped by TTL or because of a limit
  // Repeats of an id in the push. The gradients of an id are summed in order of appearance, and the
  // push counts once for the id.
  std::uint64_t duplicates = 0;
  std::uint64_t evicted() const { return evicted_ttl + evicted_lru; }
};

struct TableStats {
  std::uint64_t rows = 0, waiting = 0;  // at present
  // The bytes that the existing rows use now. `memory_bytes` is all memory that is held, including
  // the space that is free for more rows.
  std::uint64_t value_bytes = 0, state_bytes = 0, index_bytes = 0, counter_bytes = 0,
                memory_bytes = 0;
  std::uint64_t index_places = 0;
  double index_load() const {
    return index_places == 0
               ? 0
               : static_cast<double>(rows + waiting) / static_cast<double>(index_places);
  }
  // Counters since this process holds the table.
  std::uint64_t admitted = 0, evicted_ttl = 0, evicted_lru = 0, waiting_dropped = 0,
                gradients_dropped = 0, duplicates = 0, refused = 0;
};

// One of the ids that pushes name most often. `pushes` estimates, from a sample, the number of
// pushes that named the id. The estimate is too high by at most `error`.
struct HotId {
  std::int64_t id = 0;
  std::uint64_t pushes = 0, error = 0;
};

}  // namespace evergrad::ps_server::storage
