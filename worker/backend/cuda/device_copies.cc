#include "worker/backend/cuda/device_copies.h"

#include <algorithm>
#include <cstring>

#include "worker/backend/cuda/cuda_types.h"

namespace evergrad::worker {

DeviceCopies::~DeviceCopies() {
  while (!staged_.empty()) Unstage();
}

void DeviceCopies::Upload(DeviceQueue queue, std::span<const std::byte> from,
                          std::span<std::byte> to) {
  if (from.empty() || !error_->ok()) return;
  memory_->UsedBy(queue, to.data());
  if (queue != DeviceQueue::kCompute) times_->BeforeCopy(queue);
  EgCudaError error{};
  in_bytes_ += from.size();
  if (pinned_->Holds(from.data(), from.size()) || !HaveRing()) {
    error_->Check("upload",
                  api_->copy(context_, QueueNumber(queue), EG_COPY_IN, to.data(), from.data(),
                             from.size(), &error),
                  error);
    return;
  }
  for (std::size_t at = 0; at < from.size() && error_->ok();) {
    const std::size_t bytes =
        std::min<std::size_t>(from.size() - at, std::min(kStagingPiece, ring_.capacity()));
    const std::optional<StagingRing::StagingBlock> block = Stage(bytes);
    if (!block) return;
    std::byte* const piece = ring_memory_.data() + block->offset;
    std::memcpy(piece, from.data() + at, bytes);
    staged_bytes_ += bytes;
    EgEvent* event = nullptr;
    if (error_->Check("upload", api_->make_event(context_, 0, &event, &error), error) &&
        (!error_->Check("upload",
                        api_->copy(context_, QueueNumber(queue), EG_COPY_IN, to.data() + at, piece,
                                   bytes, &error),
                        error) ||
         !error_->Check("upload", api_->record(context_, QueueNumber(queue), event, &error),
                        error)))
      api_->drop_event(std::exchange(event, nullptr));
    ring_.Submit(block->ticket);
    staged_.emplace_back(block->ticket, event);
    at += bytes;
  }
}

void DeviceCopies::Download(DeviceQueue queue, std::span<const std::byte> from,
                            std::span<std::byte> to) {
  if (from.empty() || !error_->ok()) return;
  memory_->UsedBy(queue, from.data());
  if (queue != DeviceQueue::kCompute) times_->BeforeCopy(queue);
  EgCudaError error{};
  error_->Check("download",
                api_->copy(context_, QueueNumber(queue), EG_COPY_OUT, to.data(), from.data(),
                           from.size(), &error),
                error);
}

// Returns false if there is no page-locked memory for the ring. The driver then copies through its
// own memory, slowly.
bool DeviceCopies::HaveRing() {
  if (ring_memory_.size() > 0) return true;
  absl::StatusOr<tensor::AlignedBuffer> memory = pinned_->Allocate(ring_.capacity());
  if (memory.ok()) ring_memory_ = *std::move(memory);
  return memory.ok();
}

std::optional<StagingRing::StagingBlock> DeviceCopies::Stage(std::size_t bytes) {
  EgCudaError error{};
  // Frees the places of the copies that have completed, without waiting.
  while (!staged_.empty()) {
    std::int32_t passed = 0;
    EgEvent* const event = staged_.front().second;
    if (event != nullptr && (api_->passed(event, &passed, &error) != EG_CUDA_OK || passed == 0))
      break;
    Unstage();
  }
  for (;;) {
    if (const auto block = ring_.Acquire(bytes)) return block;
    if (staged_.empty()) {
      error_->Refuse("upload", absl::InternalError("the staging ring is full but holds no copies"));
      return std::nullopt;
    }
    EgEvent* const event = staged_.front().second;
    if (event != nullptr && !error_->Check("upload", api_->wait(event, &error), error))
      return std::nullopt;
    Unstage();
  }
}

void DeviceCopies::Unstage() {
  ring_.Reached(staged_.front().first);
  if (staged_.front().second != nullptr) api_->drop_event(staged_.front().second);
  staged_.pop_front();
}

ResultCopy::~ResultCopy() {
  if (finished_ != nullptr) api_->drop_event(finished_);
}

void ResultCopy::Fetch(std::span<const std::byte> result, std::span<std::byte> to) {
  EgCudaError error{};
  if (error_->ok() && buffer_.size() < result.size()) {
    if (absl::StatusOr<tensor::AlignedBuffer> grown = pinned_->Allocate(result.size()); grown.ok())
      buffer_ = *std::move(grown);
  }
  // Without page-locked memory the driver copies the result.
  const bool direct = buffer_.size() < result.size();
  std::byte* const result_to = direct ? to.data() : buffer_.data();
  if (finished_ == nullptr)
    error_->Check("finish", api_->make_event(context_, 0, &finished_, &error), error);
  if (error_->ok() && !result.empty())
    error_->Check("finish",
                  api_->copy(context_, EG_LANE_COMPUTE, EG_COPY_OUT, result_to, result.data(),
                             result.size(), &error),
                  error);
  if (finished_ != nullptr &&
      (api_->record(context_, EG_LANE_COMPUTE, finished_, &error) != EG_CUDA_OK ||
       api_->wait(finished_, &error) != EG_CUDA_OK))
    error_->Fail("finish", error);
  if (error_->ok() && !result.empty() && !direct)
    std::memcpy(to.data(), buffer_.data(), result.size());
}

}  // namespace evergrad::worker
