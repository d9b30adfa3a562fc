// What a shard holds beside its ledger: values and what the optimizer keeps of them, of one dense
// partition or of one slot of all tables.
//
// Single writer, like the shard that owns it. An update comes in three steps: Prepare may refuse
// and then nothing has changed; Begin and Continue cannot fail.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

class Contents {
 public:
  virtual ~Contents() = default;

  // Line 11, of a GRADIENT: what it carries fits what is held, and every row and byte that it needs
  // is reserved. Otherwise the reason, of code kInvalid or kOverBudget, and nothing has changed.
  // `where` names the shard in messages.
  struct Refusal {
    PushCode code = PushCode::kInvalid;
    std::string message;
  };
  virtual std::optional<Refusal> Prepare(const Push& push, absl::string_view where) = 0;
  // Line 12, after Prepare of the same push, whose memory stays until applying() is false. `t`:
  // gradients of this shard, this one included. Returns the events that happen besides, 0 or 1:
  // rows are evicted, to make room or because their time is over.
  virtual std::uint64_t Begin(const Push& push, std::uint64_t t) = 0;
  virtual bool applying() const = 0;
  virtual std::uint64_t Continue(std::uint64_t bytes_max) = 0;  // bytes touched, about

  // Reads the values that the pull asks for. `result->invalid` names a request that the shard's
  // values do not fit.
  virtual void Read(const Pull& pull, PullResult* result, absl::string_view where) const = 0;

  // As Shard's.
  virtual void Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) = 0;
  virtual absl::StatusOr<SlotSlice> NextSlice(std::uint64_t serial, std::uint64_t bytes_max) = 0;
  virtual void EndCut(std::uint64_t serial) = 0;
  virtual std::unique_ptr<Contents> Copy() const = 0;  // independent

  virtual std::uint64_t value_bytes() const = 0;
  virtual std::uint64_t slot_bytes() const = 0;
  virtual std::uint64_t Digest() const = 0;
  virtual std::uint64_t SlotDigest() const = 0;
  virtual std::vector<float> Values() const = 0;
  virtual std::vector<const storage::EmbeddingTable*> Tables() const = 0;
};

}  // namespace evergrad::ps_server
