// The copy of a table that a snapshot reads: all rows and waiting ids as they were when the cut
// began, handed out in slices while pushes continue.
//
// The cut walks the index in the order of the hash. Before a push changes or drops an entry that
// the walk has not reached, it saves that entry here (a preimage), up to a limit: beyond it the cut
// is lost and the push continues. The cost for the table is one bit for each row. Single writer,
// like the table; never used while a push is between Prepare and the end of Apply, except by the
// push itself.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "ps_server/storage/row_store.h"
#include "ps_server/storage/table_slice.h"

namespace evergrad::ps_server::storage {

class TableCut {
 public:
  // `store` outlives the cut. `preimage_bytes_max` is the limit of what pushes save.
  TableCut(const RowStore* store, std::uint64_t preimage_bytes_max);

  // Clears `slice` and fills it with about `bytes_max` at most, at least one row. Returns false
  // after the last slice, and if the cut is lost. O(bytes_max), whatever the table's size.
  bool NextSlice(std::uint64_t bytes_max, TableSlice* slice);
  // The preimages were above their limit: the slices that were handed out are void.
  bool lost() const { return lost_; }

  // --- for the push that changes the table.

  // Returns whether an entry with this hash must be saved before it changes.
  bool Concerns(std::uint64_t hash) const { return IsWalking() && hash >= cursor_; }
  // Saves an entry unless it is saved already. Only for hashes that the cut concerns.
  void SaveRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp);
  void SaveWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp);
  // The walk leaves out a waiting id that begins to wait now. Returns false if it is left out
  // already, or if the cut is lost by this.
  bool LeaveOutWaiting(std::uint64_t hash);
  // The walk leaves out a row that was made after the cut began.
  void LeaveOutRow(std::uint32_t row);

 private:
  // One bit for each row.
  class Bits {
   public:
    void Resize(std::uint64_t n) { words_.resize((n + 63) / 64); }
    bool Get(std::uint32_t i) const { return words_[i / 64] >> (i % 64) & 1; }
    void Set(std::uint32_t i) { words_[i / 64] |= 1ull << (i % 64); }
    std::uint64_t size() const { return words_.size() * 64; }

   private:
    std::vector<std::uint64_t> words_;
  };

  bool IsWalking() const { return !lost_ && !walked_; }
  bool TakePreimages(TableSlice* slice);
  void Walk(std::uint64_t bytes_max, TableSlice* slice);
  // Returns the slice to save `bytes` in; or null, and the cut is lost.
  TableSlice* PreimageSlice(std::uint64_t bytes);
  void Lose();
  void AppendRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp,
                 TableSlice* slice) const;
  void AppendWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp,
                     TableSlice* slice) const;

  const RowStore* store_;
  bool lost_ = false, walked_ = false;  // walked_: all hashes are
  std::uint64_t preimage_bytes_max_ = 0, preimage_bytes_ = 0;
  std::uint64_t cursor_ = 0;  // The walk has passed all hashes below.
  Bits left_out_rows_;        // saved, or made after the beginning
  absl::flat_hash_set<std::uint64_t> left_out_waiting_;
  std::deque<TableSlice> preimages_;
  std::vector<RowIndex::Entry> picked_;  // rows of the slice that is made
};

}  // namespace evergrad::ps_server::storage
