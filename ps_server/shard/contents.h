// The contents of a shard, except its ledger: values and optimizer state of one dense partition, or
// of one slot of all tables.
//
// The contents have a single writer, like the shard that owns them. An update takes three steps,
// Prepare, Begin and Continue. Prepare may refuse the update, and then changes nothing. Begin and
// Continue cannot fail.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

class Contents {
 public:
  virtual ~Contents() = default;

  // Checks that a push with a gradient fits the contents, and reserves all rows and memory that the
  // push needs (LEDGER line 11). If the push is refused, nothing has changed, and the result has
  // the reason and the code kInvalid or kOverBudget. `where` names the shard in messages.
  struct Refusal {
    PushCode code = PushCode::kInvalid;
    std::string message;
  };
  virtual std::optional<Refusal> Prepare(const Push& push, absl::string_view where) = 0;
  // Begins to apply the push (LEDGER line 12). Called after Prepare of the same push; the caller
  // keeps the memory of the push until applying() is false. `t` is the number of gradients of this
  // shard, including the present one. Returns the number that is added to the shard's lsn for
  // evictions: 1 if the push evicts rows because of the memory limit or their age, otherwise 0.
  virtual std::uint64_t Begin(const Push& push, std::uint64_t t) = 0;
  virtual bool applying() const = 0;
  // Applies about `bytes_max` bytes, and returns the approximate number of applied bytes.
  virtual std::uint64_t Continue(std::uint64_t bytes_max) = 0;

  // Plans the answer to a pull: references to the values or the rows to copy, and their wire type.
  // If the pull does not fit the shard, sets `result.invalid`.
  virtual PullPlan Read(const Pull& pull, absl::string_view where) const = 0;

  // These functions are like the functions of Shard with the same names.
  virtual void Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) = 0;
  virtual absl::StatusOr<SlotSlice> NextSlice(std::uint64_t serial, std::uint64_t bytes_max) = 0;
  virtual void EndCut(std::uint64_t serial) = 0;
  virtual std::unique_ptr<Contents> Copy() const = 0;  // the copies share only constant memory

  virtual std::uint64_t value_bytes() const = 0;
  virtual std::uint64_t state_bytes() const = 0;
  virtual std::uint64_t Digest() const = 0;
  virtual std::uint64_t StateDigest() const = 0;
  virtual std::vector<float> Values() const = 0;
  virtual std::vector<const storage::EmbeddingTable*> Tables() const = 0;
};

}  // namespace evergrad::ps_server
