// A weights file that is written piece by piece. The file may be larger than memory, and its
// tensors may be filled in any interleaving.
//
// Blocking, not thread-safe. The data is written beside the target until Finish, which syncs it and
// renames it over the target. A reader therefore sees the old file or the complete new one. An
// unfinished stream leaves the target unchanged, and leaves no other file. The same tensors give
// the same file, however they are divided into pieces. Errors name the path, as in weight_files.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"

namespace evergrad::weights {

enum class Format { kNpz, kSafetensors };
enum class Element { kFloat32, kInt64 };

struct StreamedTensor {
  std::string name;  // "movies/ids"; unique in the file
  Element element = Element::kFloat32;
  tensor::Shape shape;
  std::uint64_t bytes() const { return shape.elements() * (element == Element::kInt64 ? 8 : 4); }
};

class WeightStream {
 public:
  // Returns InvalidArgument for no tensors or a duplicate name.
  static absl::StatusOr<std::unique_ptr<WeightStream>> Create(const std::string& path,
                                                              Format format,
                                                              std::vector<StreamedTensor> tensors);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Appends the next bytes of a tensor, row-major, little-endian. A tensor must not get more bytes
  // than its shape has, and all tensors must be full at Finish (EG_CHECK).
  absl::Status Append(std::size_t tensor, std::span<const std::byte> bytes);
  absl::Status Finish();

  const std::vector<StreamedTensor>& tensors() const { return tensors_; }

 private:
  struct Place {
    // Offset of the tensor's head (npz), offset of its first byte, and number of bytes so far.
    std::uint64_t head = 0, begin = 0, filled = 0;
    std::string npy;        // npz: the bytes before the values
    std::uint32_t crc = 0;  // checksum of `npy` and of the values so far
  };
  WeightStream(std::string path, Format format, std::vector<StreamedTensor> tensors);
  absl::Status Begin();
  absl::Status Put(std::uint64_t at, std::span<const std::byte> bytes);
  absl::Status Put(std::uint64_t at, const std::string& bytes);
  absl::Status FinishNpz();
  std::string EntryName(std::size_t i) const;

  const std::string path_, beside_;
  const Format format_;
  const std::vector<StreamedTensor> tensors_;
  std::vector<Place> places_;
  std::uint64_t end_ = 0;  // end of the last tensor
  int fd_ = -1;
};

}  // namespace evergrad::weights
