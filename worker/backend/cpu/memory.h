// Allocates heap memory, and counts the memory in use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

// A heap that counts its memory in use. The buffers in use share its ownership, because they may
// outlive the backend and be freed on any thread.
class Heap final : public tensor::BufferHome {
 public:
  // Allocates memory. Returns ResourceExhausted as Backend::Allocate does.
  static absl::StatusOr<tensor::AlignedBuffer> Allocate(const std::shared_ptr<Heap>& self,
                                                        std::size_t bytes, absl::string_view what);
  void TakeBack(std::byte* data, std::size_t bytes) override;
  MemoryUse use() const;

 private:
  std::atomic<std::uint64_t> used_{0}, peak_{0};
};

}  // namespace evergrad::worker::cpu
