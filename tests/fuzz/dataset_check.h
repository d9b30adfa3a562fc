// Checks a data set that a fuzz target was able to open.
#pragma once

#include <vector>

#include "common/base/check.h"
#include "worker/data/dataset.h"

namespace evergrad::fuzz {

inline constexpr std::uint64_t kDataBytesMax = 1u << 20;

// Checks that the memory of `data` is within the limit, and that each of its examples can be read.
inline void CheckDataset(const worker::Dataset& data) {
  EG_CHECK(data.bytes_held() <= kDataBytesMax);
  EG_CHECK(data.examples() > 0);
  EG_CHECK(!data.Fingerprint().empty());
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::span<std::byte>> spans;
  for (const worker::Field& field : data.fields()) buffers.emplace_back(field.example_bytes());
  for (std::vector<std::byte>& buffer : buffers) spans.emplace_back(buffer);
  for (std::uint64_t i = 0; i < data.examples(); ++i) EG_CHECK(data.Read({i}, spans).ok());
  EG_CHECK(!data.Read({data.examples()}, spans).ok());
}

}  // namespace evergrad::fuzz
