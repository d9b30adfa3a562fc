// Copies between the host and the device.
//
// Host memory that is not page-locked is copied into a page-locked ring first, piece by piece, so
// that the caller waits for the device only if the ring is full. Used on the context's thread; the
// arguments of the constructors outlive the objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/first_error.h"
#include "worker/backend/cuda/staging_ring.h"
#include "worker/backend/cuda/step_times.h"

namespace evergrad::worker {

class DeviceCopies {
 public:
  // Size of a piece in the ring. One piece is filled while the previous one is transferred.
  static constexpr std::uint64_t kStagingPiece = 4ull << 20;

  DeviceCopies(const EgCudaApi* api, EgContext* context, std::uint64_t staging_bytes,
               DeviceMemory* memory, PinnedMemory* pinned, StepTimes* times, FirstError* error)
      : api_(api),
        context_(context),
        memory_(memory),
        pinned_(pinned),
        times_(times),
        error_(error),
        ring_(staging_bytes) {}
  ~DeviceCopies();  // the queues must have done all work

  // See Backend. After an error Upload and Download do nothing.
  void Upload(DeviceQueue queue, std::span<const std::byte> from, std::span<std::byte> to);
  void Download(DeviceQueue queue, std::span<const std::byte> from, std::span<std::byte> to);

  // Bytes uploaded so far, and the part of them that went through the ring.
  std::uint64_t in_bytes() const { return in_bytes_; }
  std::uint64_t staged_bytes() const { return staged_bytes_; }
  StagingRing::Stats ring_stats() const { return ring_.stats(); }

 private:
  bool HaveRing();
  std::optional<StagingRing::StagingBlock> Stage(std::size_t bytes);
  void Unstage();

  const EgCudaApi* const api_;
  EgContext* const context_;
  DeviceMemory* const memory_;
  PinnedMemory* const pinned_;
  StepTimes* const times_;
  FirstError* const error_;
  StagingRing ring_;
  tensor::AlignedBuffer ring_memory_;
  std::uint64_t in_bytes_ = 0, staged_bytes_ = 0;
  // The event is nullptr if the copy was refused.
  std::deque<std::pair<StagingRing::Ticket, EgEvent*>> staged_;
};

// Waits for the end of a step and copies its results to the host.
class ResultCopy {
 public:
  ResultCopy(const EgCudaApi* api, EgContext* context, PinnedMemory* pinned, FirstError* error)
      : api_(api), context_(context), pinned_(pinned), error_(error) {}
  ~ResultCopy();

  // Stores an error if the device has failed. Waits after an error, too, because no part of the
  // step may still run when the caller continues.
  void Fetch(std::span<const std::byte> result, std::span<std::byte> to);

 private:
  const EgCudaApi* const api_;
  EgContext* const context_;
  PinnedMemory* const pinned_;
  FirstError* const error_;
  tensor::AlignedBuffer buffer_;  // page-locked
  EgEvent* finished_ = nullptr;
};

}  // namespace evergrad::worker
