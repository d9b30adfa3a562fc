#include "common/weights/weight_image.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/weights/weight_format.h"

namespace evergrad::weights {

void WeightImage::Add(std::string text) {
  if (text.empty()) return;
  pieces_.push_back({bytes_, std::move(text), {}});
  bytes_ += pieces_.back().text.size();
}

void WeightImage::Add(std::span<const float> values) {
  if (values.empty()) return;
  pieces_.push_back({bytes_, "", std::as_bytes(values)});
  bytes_ += values.size_bytes();
}

absl::StatusOr<WeightImage> WeightImage::Make(Format format,
                                              const std::vector<NamedTensor>& tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("no variables to write");
  std::set<absl::string_view> names;
  std::vector<StreamedTensor> streamed;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return absl::InvalidArgumentError(
          absl::StrCat("duplicate variable name: name=", tensor.name));
    streamed.push_back({tensor.name, Element::kFloat32, tensor.shape});
    EG_CHECK(tensor.values.size_bytes() == streamed.back().bytes());
  }
  WeightImage image;
  if (format == Format::kSafetensors) {
    std::vector<std::uint64_t> begins;
    image.Add(SafetensorsHead(streamed, &begins));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EG_CHECK(begins[i] == image.bytes_);
      image.Add(tensors[i].values);
    }
    return image;
  }
  std::string directory;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string npy = NpyHeader(streamed[i]), name = absl::StrCat(tensors[i].name, ".npy");
    const std::uint64_t bytes = npy.size() + streamed[i].bytes();
    const std::uint32_t crc = Crc(Crc(0, npy.data(), npy.size()), tensors[i].values.data(),
                                  tensors[i].values.size_bytes());
    directory += DirectoryEntry(name, crc, bytes, image.bytes_);
    image.Add(LocalHeader(name, crc, bytes) + npy);
    image.Add(tensors[i].values);
  }
  image.Add(directory + DirectoryEnd(tensors.size(), image.bytes_, directory.size()));
  return image;
}

void WeightImage::Read(std::uint64_t offset, std::span<std::byte> to) const {
  EG_CHECK(offset <= bytes_ && to.size() <= bytes_ - offset);
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                [](std::uint64_t at, const Piece& p) { return at < p.begin; });
  if (piece != pieces_.begin()) --piece;
  for (; !to.empty(); ++piece) {
    const std::span<const std::byte> view = piece->view();
    const std::uint64_t skip = offset - piece->begin;
    const std::size_t n = std::min<std::size_t>(to.size(), view.size() - skip);
    std::memcpy(to.data(), view.data() + skip, n);
    to = to.subspan(n);
    offset += n;
  }
}

}  // namespace evergrad::weights
