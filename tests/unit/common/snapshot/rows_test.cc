// Tests blocks of rows, which come from outside the process. A block of the right size is read in
// place, and any other block is refused.
#include "common/snapshot/rows.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

namespace evergrad::snapshot {
namespace {

// Returns n rows, each with `dimension` values and `numbers` numbers of optimizer state, in the
// layout of FORMAT.md.
std::string Block(std::uint32_t n, std::uint32_t dimension, std::uint32_t numbers) {
  std::string block;
  const auto put = [&](auto value) {
    block.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(n);
  put(std::uint32_t{0});
  for (std::uint32_t i = 0; i < n; ++i) put(std::int64_t{-5} + i);
  for (std::uint32_t i = 0; i < 2 * n; ++i) put(std::uint64_t{9});
  for (std::uint32_t i = 0; i < n * dimension; ++i) put(static_cast<float>(i));
  for (std::uint32_t i = 0; i < n * numbers; ++i) put(-1.f);
  return block;
}
std::span<const std::byte> BytesOf(const std::string& block) {
  return std::as_bytes(std::span(block));
}

TEST_CASE("a block gives its ids and values, whatever optimizer state it contains") {
  for (const std::uint32_t numbers : {0u, 1u, 3u}) {
    const std::string block = Block(4, 3, numbers);
    const auto view = ParseRows(BytesOf(block), 3);
    REQUIRE(view);
    CHECK(view->rows == 4);
    std::int64_t last = 0;
    std::memcpy(&last, view->ids.data() + 3 * sizeof(last), sizeof(last));
    CHECK(last == -2);
    CHECK(view->ids.size() == 4 * sizeof(std::int64_t));
    float value = 0;
    REQUIRE(view->values.size() == 12 * sizeof(float));
    std::memcpy(&value, view->values.data() + 11 * sizeof(float), sizeof(value));
    CHECK(value == 11);
  }
}

TEST_CASE("a block of another length, without rows, or with nonzero padding is refused") {
  const std::string block = Block(4, 3, 1);
  for (std::size_t size = 0; size < block.size(); ++size) {
    // A valid block of as many rows, but with fewer numbers of optimizer state, has this size.
    if (size == Block(4, 3, 0).size()) continue;
    CHECK_FALSE(ParseRows(BytesOf(block.substr(0, size)), 3));
  }
  CHECK_FALSE(ParseRows(BytesOf(block), 5));  // such rows need more bytes than the block has
  std::string none = block, padded = block, many = block;
  none[0] = 0;
  padded[4] = 1;
  many[3] = 0x7f;
  for (const std::string& bad : {none, padded, many}) CHECK_FALSE(ParseRows(BytesOf(bad), 3));
}

}  // namespace
}  // namespace evergrad::snapshot
