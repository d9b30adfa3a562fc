// One slot: the partitions of all tables of a job that have the number of the slot.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ps_server/shard/contents.h"
#include "ps_server/storage/embedding_table.h"

namespace evergrad::ps_server {

class SlotContents final : public Contents {
 public:
  // See Shard::FromSeed and Shard::Restore. A cut has whole tables (ShardCut::tables).
  static absl::StatusOr<std::unique_ptr<SlotContents>> FromSeed(
      const ShardSettings& settings, const std::shared_ptr<storage::MemoryBudget>& budget);
  static absl::StatusOr<std::unique_ptr<SlotContents>> FromCut(const ShardSettings& settings,
                                                               ShardCut cut);

  std::optional<Refusal> Prepare(const Push& push, absl::string_view where) override;
  std::uint64_t Begin(const Push& push, std::uint64_t t) override;
  bool applying() const override { return applying_; }
  std::uint64_t Continue(std::uint64_t bytes_max) override;
  PullPlan Read(const Pull& pull, absl::string_view where) const override;
  void Cut(std::uint64_t preimage_bytes_max, ShardCut* cut) override;
  absl::StatusOr<SlotSlice> NextSlice(std::uint64_t serial, std::uint64_t bytes_max) override;
  void EndCut(std::uint64_t serial) override;
  std::unique_ptr<Contents> Copy() const override;
  std::uint64_t value_bytes() const override;
  std::uint64_t state_bytes() const override;
  std::uint64_t Digest() const override;
  std::uint64_t StateDigest() const override;  // includes stamps and counts
  std::vector<float> Values() const override { return {}; }
  std::vector<const storage::EmbeddingTable*> Tables() const override;

 private:
  // Checks that the slot has the tables that a section names, and that the numbers of rows add up
  // to the number of ids. Returns the defect, or "". Sets `bytes` to the size of the rows on the
  // wire, and `wire` to their common type, or to kSeveral.
  std::string Misfit(const TableRows& rows, std::uint64_t* bytes, tensor::WireType* wire) const;
  tensor::WireType wire_of(std::size_t table) const {
    return table < wire_.size() ? wire_[table] : tensor::WireType::kFloat32;
  }

  std::vector<tensor::WireType> wire_;  // as in SlotSettings
  // No pointer is null. The contents are the only owner.
  std::vector<std::shared_ptr<storage::EmbeddingTable>> tables_;
  struct TablePart {
    storage::EmbeddingTable* table = nullptr;
    tensor::WireType wire = tensor::WireType::kFloat32;
    std::size_t first_byte = 0;  // offset of the table's gradient in the payload
  };
  // Parts of the prepared push; the parts before next_part_ are applied.
  std::vector<TablePart> parts_;
  std::size_t next_part_ = 0;
  bool applying_ = false, evicts_ = false;
  const std::byte* gradient_ = nullptr;
  std::uint64_t cut_serial_ = 0;  // number of the newest cut
  std::size_t cut_table_ = 0;     // all tables before this one have been captured
  bool cut_open_ = false;
};

}  // namespace evergrad::ps_server
