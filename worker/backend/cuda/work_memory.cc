#include "worker/backend/cuda/work_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::worker {
namespace {

const char* NameOf(WorkPiece piece) {
  switch (piece) {
    case WorkPiece::kScratch: return "scratch";
    case WorkPiece::kFilters: return "filters";
    case WorkPiece::kNarrowed: return "narrowed gradient";
    case WorkPiece::kWidened: return "widened operands";
    case WorkPiece::kPadded: return "padded images";
    case WorkPiece::kWorkspace: return "workspace";
  }
  return "";
}

}  // namespace

WorkMemory::~WorkMemory() {
  for (tensor::AlignedBuffer& piece : pieces_) piece = tensor::AlignedBuffer();
  EG_CHECK(memory_.use_count() == 1);  // nothing else outlives a backend
}

std::byte* WorkMemory::Grow(WorkPiece piece, std::int64_t bytes) {
  if (!error_->ok()) return nullptr;
  tensor::AlignedBuffer& buffer = pieces_[static_cast<std::size_t>(piece)];
  const std::size_t want = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16));
  if (buffer.size() >= want) return buffer.data();
  const char* const what = NameOf(piece);
  // Nothing is allocated while a step is captured.
  recorder_->StopCapture(absl::StrCat(what, " grew"));
  absl::StatusOr<tensor::AlignedBuffer> grown =
      DeviceMemory::Allocate(memory_, std::max(want, 2 * buffer.size()), what);
  if (!grown.ok()) return error_->Refuse(what, grown.status()), nullptr;
  buffer = *std::move(grown);
  return buffer.data();
}

std::array<std::uint64_t, WorkMemory::kPieces> WorkMemory::addresses() const {
  std::array<std::uint64_t, kPieces> all{};
  std::transform(pieces_.begin(), pieces_.end(), all.begin(),
                 [](const auto& piece) { return reinterpret_cast<std::uint64_t>(piece.data()); });
  return all;
}

}  // namespace evergrad::worker
