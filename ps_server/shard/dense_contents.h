// Rows of one dense variable, with values and optimizer state in chunks. A gradient is applied
// chunk by chunk.
//
// The class holds and computes float32. For a variable with a 16-bit wire type, the class holds a
// second copy of the values in that type. Each apply converts the values that it has just written,
// so that a pull returns references, as for float32, and no value is converted twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/shard/contents.h"
#include "ps_server/storage/dense_array.h"

namespace evergrad::ps_server {

class DenseContents final : public Contents {
 public:
  // See Shard::FromSeed and Shard::Restore.
  static absl::StatusOr<std::unique_ptr<DenseContents>> FromSeed(
      const ShardSettings& settings, const std::shared_ptr<storage::ChunkPool>& pool);
  static absl::StatusOr<std::unique_ptr<DenseContents>> FromCut(const ShardSettings& settings,
                                                                ShardCut cut);

  std::optional<Refusal> Prepare(const Push& push, absl::string_view where) override;
  std::uint64_t Begin(const Push& push, std::uint64_t t) override;
  bool applying() const override { return applying_; }
  std::uint64_t Continue(std::uint64_t bytes_max) override;
  PullPlan Read(const Pull& pull, absl::string_view where) const override;
  void Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) override;
  absl::StatusOr<SlotSlice> NextSlice(std::uint64_t, std::uint64_t) override {
    return absl::AbortedError("a dense shard has no slices");
  }
  void EndCut(std::uint64_t) override {}
  std::unique_ptr<Contents> Copy() const override;
  std::uint64_t value_bytes() const override { return values_.size() * sizeof(float); }
  std::uint64_t state_bytes() const override {
    return value_bytes() * static_cast<std::uint64_t>(optimizer_.states());
  }
  std::uint64_t Digest() const override { return values_.Digest(first_element_); }
  std::uint64_t StateDigest() const override;

  std::vector<float> Values() const override;
  std::vector<const storage::EmbeddingTable*> Tables() const override { return {}; }

 private:
  bool Reserve();
  // MakeWireValues allocates the values in the wire type. WriteWireValues converts chunk `c` of the
  // values into the wire type. Both functions read `values_`.
  absl::Status MakeWireValues();
  void WriteWireValues(std::size_t c, const float* values, std::size_t size);
  // Applies the gradient of one chunk.
  void ApplyChunk(const optimizer::Optimizer::Step& step, const storage::DenseArray::Write& value,
                  const storage::DenseArray::Write (&states)[optimizer::kStatesMax]);

  optimizer::Optimizer optimizer_;
  std::uint64_t rows_ = 0, first_element_ = 0;  // first_element_ is an index in the whole variable
  storage::DenseArray values_;
  storage::DenseArray states_[optimizer::kStatesMax];
  // wire_values_ has the values in a 16-bit wire type, two in the space of a float. Chunk c of
  // wire_values_ therefore holds chunks 2 c and 2 c + 1 of values_. Empty if the wire type is
  // float32.
  tensor::WireType wire_ = tensor::WireType::kFloat32;
  storage::DenseArray wire_values_;
  // During an apply, next_chunk_ is the next chunk to update, and gradient_ points to the part of
  // the gradient for this chunk, in the wire type.
  bool applying_ = false;
  const std::byte* gradient_ = nullptr;
  std::size_t next_chunk_ = 0;
  std::uint64_t t_ = 0;
};

}  // namespace evergrad::ps_server
