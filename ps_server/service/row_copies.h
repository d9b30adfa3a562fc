// Copies the rows that the pulls of one request read from tables. The rows are copied into memory
// that all sections of the request share.
//
// The rows of all sections of a request are read together, because many lookups in flight hide the
// latency of memory. The caller calls Finish before it changes a shard. Runs on the shards'
// executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/tensor/tensor.h"
#include "ps_server/service/data_call.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

class RowCopies {
 public:
  // The memory of large answers comes from the pool, which may be null.
  explicit RowCopies(std::shared_ptr<storage::ChunkPool> pool) : pool_(std::move(pool)) {}

  // Returns whether rows of this request wait to be copied.
  bool HasRowsOf(const std::shared_ptr<DataCall>& call) const { return call_ == call; }
  // Adds the rows of one section, for which the call has reserved bytes of its answer, and returns
  // the memory to which Finish copies them. Rows of another request must have been finished.
  tensor::SharedBytes Add(const PullPlan& plan, std::shared_ptr<DataCall> call);
  // Copies the rows that have been added, and tells the call that their sections have outcomes
  // (DataCall::FinishSections).
  void Finish() {
    if (call_ != nullptr) Copy();
  }
  // Stops adding rows to the current memory. The answers still own that memory.
  void ReleaseMemory() { memory_ = nullptr; }

 private:
  tensor::SharedBytes Place(const DataCall& call, std::uint64_t bytes);
  void Copy();

  const std::shared_ptr<storage::ChunkPool> pool_;  // shared with the shards of the server
  std::vector<storage::RowReading> readings_;
  // The call whose rows wait to be copied, shared as in RequestSection; null if there is none.
  std::shared_ptr<DataCall> call_;
  std::size_t sections_ = 0;
  // A block for the rows of one request. The rows of each section begin at a multiple of 64 bytes.
  std::shared_ptr<const void> memory_;  // shared with the answers
  std::span<std::byte> left_;
  const DataCall* memory_of_ = nullptr;  // the call of memory_; only compared
};

}  // namespace evergrad::ps_server
