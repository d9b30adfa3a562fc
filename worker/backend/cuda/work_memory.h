// The device memory that a backend itself needs on kCompute. Each piece only grows. When a piece
// gets larger memory, its former memory may be used again only by work that is queued later in
// kCompute. Used on the context's thread; `recorder` and `error` outlive the object's last call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/tensor/tensor.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/first_error.h"
#include "worker/backend/cuda/step_recorder.h"

namespace evergrad::worker {

enum class WorkPiece { kScratch, kFilters, kNarrowed, kWidened, kPadded, kWorkspace };

class WorkMemory {
 public:
  static constexpr std::size_t kPieces = 6;

  WorkMemory(std::shared_ptr<DeviceMemory> memory, StepRecorder* recorder, FirstError* error)
      : memory_(std::move(memory)), recorder_(recorder), error_(error) {}
  ~WorkMemory();  // no other object may own device() any more

  // Returns the piece with at least `bytes`. If the piece grows, the capture of a step ends.
  // Returns nullptr after an error.
  std::byte* Grow(WorkPiece piece, std::int64_t bytes);
  std::byte* data(WorkPiece piece) { return pieces_[static_cast<std::size_t>(piece)].data(); }
  std::array<std::uint64_t, kPieces> addresses() const;
  // The buffers of the memory share this object.
  const std::shared_ptr<DeviceMemory>& device() const { return memory_; }

 private:
  std::shared_ptr<DeviceMemory> memory_;
  StepRecorder* const recorder_;
  FirstError* const error_;
  std::array<tensor::AlignedBuffer, kPieces> pieces_;
};

}  // namespace evergrad::worker
