// Rows of one dense variable: values and optimizer slots in chunks, applied chunk by chunk.
//
// Held and computed is float32. Where the variable has a 16-bit wire type, its values are held in
// that type beside: each apply converts what it has just written, so that a pull gives references
// as it does without, and nothing is converted twice.
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
  // As Shard::FromSeed and Shard::Restore, which see.
  static absl::StatusOr<std::unique_ptr<DenseContents>> FromSeed(
      const ShardSettings& settings, const std::shared_ptr<storage::ChunkPool>& pool);
  static absl::StatusOr<std::unique_ptr<DenseContents>> FromCut(const ShardSettings& settings,
                                                                ShardCut cut);

  std::optional<Refusal> Prepare(const Push& push, absl::string_view where) override;
  std::uint64_t Begin(const Push& push, std::uint64_t t) override;
  bool applying() const override { return applying_; }
  std::uint64_t Continue(std::uint64_t bytes_max) override;
  void Read(const Pull& pull, PullResult* result, absl::string_view where) const override;
  void Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) override;
  absl::StatusOr<SlotSlice> NextSlice(std::uint64_t, std::uint64_t) override {
    return absl::AbortedError("a dense shard has no slices");
  }
  void EndCut(std::uint64_t) override {}
  std::unique_ptr<Contents> Copy() const override;
  std::uint64_t value_bytes() const override { return values_.size() * sizeof(float); }
  std::uint64_t slot_bytes() const override {
    return value_bytes() * static_cast<std::uint64_t>(optimizer_.slots());
  }
  std::uint64_t Digest() const override { return values_.Digest(first_element_); }
  std::uint64_t SlotDigest() const override;

  std::vector<float> Values() const override;
  std::vector<const storage::EmbeddingTable*> Tables() const override { return {}; }

 private:
  bool Reserve();
  // Both once `values_` are set: room for the values as they are on the wire; chunk `c` of the
  // values goes there.
  absl::Status MakeWireValues();
  void WriteWireValues(std::size_t c, const float* values, std::size_t size);
  // One chunk, or a part of it, of the gradient being applied.
  void ApplyRun(const optimizer::Optimizer::Step& step, const storage::DenseArray::Write& value,
                const storage::DenseArray::Write (&slots)[optimizer::kSlotsMax]);

  optimizer::Optimizer optimizer_;
  std::uint64_t rows_ = 0, first_element_ = 0;  // of the whole variable
  storage::DenseArray values_;
  storage::DenseArray slots_[optimizer::kSlotsMax];
  // Of a 16-bit wire type: the values in it, two to a float; chunk c holds chunks 2 c and 2 c + 1
  // of the values. Else empty.
  tensor::WireType wire_ = tensor::WireType::kFloat32;
  storage::DenseArray wire_values_;
  // The gradient being applied, as on the wire: of chunk next_chunk_.
  bool applying_ = false;
  const std::byte* gradient_ = nullptr;
  std::size_t next_chunk_ = 0;
  std::uint64_t t_ = 0;
};

}  // namespace evergrad::ps_server
