#include "ps_server/service/row_copies.h"

#include <algorithm>
#include <utility>

#include "common/base/checked_math.h"

namespace evergrad::ps_server {

tensor::SharedBytes RowCopies::Add(const PullPlan& plan, std::shared_ptr<DataCall> call) {
  tensor::SharedBytes place = Place(*call, plan.rows_bytes);
  plan.ReadTo(const_cast<std::byte*>(place.bytes.data()), &readings_);
  call_ = std::move(call);
  ++sections_;
  return place;
}

tensor::SharedBytes RowCopies::Place(const DataCall& call, std::uint64_t bytes) {
  if (memory_ == nullptr || memory_of_ != &call || left_.size() < bytes) {
    memory_ = nullptr;
    memory_of_ = &call;
    // Large answers use a spare block of the pool, whose pages are mapped; small answers do not
    // need one.
    if (bytes <= storage::kChunkBytes && call.answer_bytes_max() >= storage::kChunkBytes / 2) {
      if (auto block = std::make_shared<storage::ChunkRef>(
              storage::ChunkRef::New(storage::kChunkFloats, pool_));
          *block) {
        left_ = std::as_writable_bytes(std::span((*block)->data(), storage::kChunkFloats));
        memory_ = std::move(block);
      }
    }
    if (memory_ == nullptr) {
      auto buffer = std::make_shared<tensor::AlignedBuffer>(
          std::max(bytes, std::min<std::uint64_t>(call.answer_bytes_max(), storage::kChunkBytes)));
      left_ = {buffer->data(), buffer->size()};
      memory_ = std::move(buffer);
    }
  }
  tensor::SharedBytes place{memory_, left_.first(bytes)};
  const std::span<std::byte> padding = left_.subspan(
      bytes, std::min<std::uint64_t>(left_.size(), RoundUp(bytes, tensor::kAlignment)) - bytes);
  // The padding must have defined bytes, because the frame may continue after it.
  std::fill(padding.begin(), padding.end(), std::byte{0});
  left_ = left_.subspan(bytes + padding.size());
  return place;
}

void RowCopies::Copy() {
  storage::ReadRows(readings_);
  readings_.clear();
  std::exchange(call_, nullptr)->FinishSections(std::exchange(sections_, 0));
}

}  // namespace evergrad::ps_server
