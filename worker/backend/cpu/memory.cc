#include "worker/backend/cpu/memory.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::worker::cpu {
namespace {

// The limit of an allocation. No CPU addresses more memory, and some allocators end the process for
// a larger size instead of reporting an error.
constexpr std::size_t kBytesMax = std::size_t{1} << 47;

std::uint64_t FreeBytes() {
  const long pages = ::sysconf(_SC_AVPHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages < 0 || page < 0
             ? 0
             : static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
}

}  // namespace

absl::StatusOr<tensor::AlignedBuffer> Heap::Allocate(const std::shared_ptr<Heap>& self,
                                                     std::size_t bytes, absl::string_view what) {
  EG_CHECK(bytes > 0);
  void* const data =
      bytes > kBytesMax ? nullptr
                        : ::operator new(bytes, std::align_val_t(tensor::kAlignment), std::nothrow);
  if (data == nullptr)
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: what=", what, " bytes=", bytes, " free=", FreeBytes()));
  const std::uint64_t used = self->used_ += bytes;
  std::uint64_t peak = self->peak_;
  while (peak < used && !self->peak_.compare_exchange_weak(peak, used)) {
  }
  return tensor::AlignedBuffer(static_cast<std::byte*>(data), bytes, self);
}

void Heap::TakeBack(std::byte* data, std::size_t bytes) {
  ::operator delete(data, std::align_val_t(tensor::kAlignment));
  used_ -= bytes;
}

MemoryUse Heap::use() const { return {used_, peak_, used_, FreeBytes()}; }

}  // namespace evergrad::worker::cpu
