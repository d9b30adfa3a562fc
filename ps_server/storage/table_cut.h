// The state of a table that a snapshot reads: all rows and waiting ids as they were when the cut
// began. The cut is read in slices while pushes continue.
//
// The cut walks the index in the order of the hash. Before a push changes or drops an entry that
// the walk has not reached, the push saves the entry in the cut (a preimage). If the preimages
// exceed a limit, the cut is lost, and the push continues. The cut needs one bit for each row of
// the table. The class has a single writer, like the table. While a push is between Prepare and the
// end of Apply, only the push itself uses the cut.
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
  // `store` outlives the cut. `preimage_bytes_max` limits the preimages.
  TableCut(const RowStore* store, std::uint64_t preimage_bytes_max);

  // Clears `slice` and fills it with at most about `bytes_max` bytes. The slice may be empty.
  // Returns false if no slice follows, or if the cut is lost. The call takes O(bytes_max) time,
  // whatever the size of the table.
  bool NextSlice(std::uint64_t bytes_max, TableSlice* slice);
  // Returns true if the preimages have exceeded their limit. The slices of a lost cut must not be
  // used.
  bool lost() const { return lost_; }

  // --- calls by a push that changes the table

  // Returns whether an entry with this hash must be saved before it changes.
  bool Concerns(std::uint64_t hash) const { return IsWalking() && hash >= cursor_; }
  // SaveRow and SaveWaiting save an entry unless it is saved already. Concerns must be true for the
  // hash of the entry.
  void SaveRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp);
  void SaveWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp);
  // Excludes from the cut an id that begins to wait now. Returns false if the id is excluded
  // already, or if the cut becomes lost.
  bool LeaveOutWaiting(std::uint64_t hash);
  // Excludes from the cut a row that was made after the cut began.
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
  // Returns the slice in which `bytes` are to be saved. If `bytes` would exceed the limit, returns
  // null, and the cut is lost.
  TableSlice* PreimageSlice(std::uint64_t bytes);
  void Lose();
  void AppendRow(std::uint64_t hash, std::uint32_t row, std::uint32_t stamp,
                 TableSlice* slice) const;
  void AppendWaiting(std::uint64_t hash, std::uint32_t count, std::uint32_t stamp,
                     TableSlice* slice) const;

  const RowStore* store_;
  bool lost_ = false, walked_ = false;  // walked_ is true if the walk has passed all hashes
  std::uint64_t preimage_bytes_max_ = 0, preimage_bytes_ = 0;
  std::uint64_t cursor_ = 0;  // the walk has passed all hashes below this one
  Bits left_out_rows_;        // rows that were saved, or made after the cut began
  absl::flat_hash_set<std::uint64_t> left_out_waiting_;
  std::deque<TableSlice> preimages_;
  std::vector<RowIndex::Entry> picked_;  // rows of the slice that is being made
};

}  // namespace evergrad::ps_server::storage
