// A weights file that is generated on demand. Any part of the file can be read, so the file can be
// sent or written without a second copy of the values.
//
// Immutable, therefore thread-safe. The tensors' values must outlive the image. The bytes equal
// those of the files that weight_files.h writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/weight_files.h"
#include "common/weights/weight_stream.h"

namespace evergrad::weights {

class WeightImage {
 public:
  // Returns InvalidArgument for no tensors or a duplicate name. An .npz file has a checksum before
  // the values of each tensor, so Make reads all values once.
  static absl::StatusOr<WeightImage> Make(Format format, const std::vector<NamedTensor>& tensors);

  std::uint64_t bytes() const { return bytes_; }
  // Fills `to` with the bytes from `offset` on, all of which must lie inside the file.
  void Read(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  struct Piece {
    std::uint64_t begin = 0;
    std::string text;                     // bytes between values
    std::span<const std::byte> values{};  // a tensor's values, if `text` is empty
    std::span<const std::byte> view() const {
      return text.empty() ? values : std::as_bytes(std::span(text));
    }
  };
  void Add(std::string text);
  void Add(std::span<const float> values);

  std::vector<Piece> pieces_;  // in order, none empty
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::weights
