// Tests that an image of a weights file has the bytes of that file, whichever parts of it are read.
#include "common/weights/weight_image.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "common/random/philox.h"
#include "tests/support/temp_folder.h"

namespace evergrad::weights {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("an image of a weights file has that file's bytes, in whatever parts it is read") {
  const test::TempFolder folder;
  const std::vector<float> values{1, -2, 3, 4, 5, 6, 7.5f, 8, 9, 10};
  const std::vector<NamedTensor> tensors = {
      {"dense/kernel", tensor::Shape{2, 3}, std::span(values).first(6)},
      {"none", tensor::Shape{0, 4}, {}},
      {"scale", tensor::Shape{}, std::span(values).subspan(6, 1)},
      {"dense/bias", tensor::Shape{3}, std::span(values).subspan(7, 3)}};
  REQUIRE(WriteNpz(folder / "w.npz", tensors).ok());
  REQUIRE(WriteSafetensors(folder / "w.safetensors", tensors).ok());
  for (const auto& [format, name] :
       {std::pair{Format::kNpz, "w.npz"}, std::pair{Format::kSafetensors, "w.safetensors"}}) {
    const std::string whole = Contents(folder / name);
    const auto image = WeightImage::Make(format, tensors);
    REQUIRE(image.ok());
    REQUIRE(image->bytes() == whole.size());
    for (std::uint64_t i = 0; i < 500; ++i) {
      const auto offset = static_cast<std::uint64_t>(random::Uniform(7, 2 * i) *
                                                     static_cast<double>(whole.size() + 1));
      const auto bytes = static_cast<std::size_t>(random::Uniform(7, 2 * i + 1) *
                                                  static_cast<double>(whole.size() - offset + 1));
      std::string part(bytes, '?');
      image->Read(offset, std::as_writable_bytes(std::span(part)));
      REQUIRE(part == whole.substr(offset, bytes));
    }
  }
}

TEST_CASE("an image without tensors or with a duplicate name is refused") {
  const std::vector<float> values{1};
  CHECK(absl::IsInvalidArgument(WeightImage::Make(Format::kNpz, {}).status()));
  CHECK(absl::IsInvalidArgument(WeightImage::Make(Format::kNpz, {{"a", tensor::Shape{}, values},
                                                                 {"a", tensor::Shape{}, values}})
                                    .status()));
}

}  // namespace
}  // namespace evergrad::weights
