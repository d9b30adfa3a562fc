#include "common/tensor/tensor.h"

#include <catch2/catch.hpp>

namespace evergrad::tensor {
namespace {

TEST_CASE("a shape counts its elements and rows") {
  const Shape scalar;
  CHECK(scalar.rank() == 0);
  CHECK(scalar.elements() == 1);
  CHECK(scalar.rows() == 1);
  CHECK(scalar.row_elements() == 1);
  CHECK(scalar.ToString() == "()");
  const Shape image{28, 28, 3};
  CHECK(image.elements() == 2352);
  CHECK(image.rows() == 28);
  CHECK(image.row_elements() == 84);
  CHECK(image.ToString() == "(28, 28, 3)");
  CHECK(Shape{0, 5}.elements() == 0);
  CHECK(Shape{0, 5}.row_elements() == 5);
}

TEST_CASE("a shape from a peer has at most eight dimensions and a size without overflow") {
  CHECK(Shape::Checked({1, 2, 3, 4, 5, 6, 7, 8}).ok());
  CHECK_FALSE(Shape::Checked({1, 1, 1, 1, 1, 1, 1, 1, 1}).ok());
  CHECK_FALSE(Shape::Checked({1ull << 32, 1ull << 32}).ok());
  CHECK_FALSE(Shape::Checked({1ull << 62}).ok());                 // The number of bytes overflows.
  CHECK_FALSE(Shape::Checked({0, 1ull << 40, 1ull << 40}).ok());  // The zero hides no overflow.
  CHECK(Shape::Checked({}).ok());
  CHECK(Shape::Checked({0}).ok());
}

TEST_CASE("a buffer is aligned, can be moved, and frees its memory once") {
  for (std::size_t bytes : {1u, 63u, 64u, 65u, 4096u}) {
    AlignedBuffer buffer = AlignedBuffer::Zeroed(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment == 0);
    CHECK(buffer.size() == bytes);
    CHECK(buffer.data()[bytes - 1] == std::byte{0});
    const std::byte* where = buffer.data();
    AlignedBuffer moved = std::move(buffer);
    CHECK(moved.data() == where);
    AlignedBuffer other(8);
    other = std::move(moved);
    CHECK(other.data() == where);
    CHECK(other.floats().size() == bytes / 4);
    AlignedBuffer& self = other;
    other = std::move(self);  // A buffer that is assigned to itself must keep its contents.
    CHECK(other.data() == where);
  }
  AlignedBuffer empty(0);
  CHECK(empty.size() == 0);
  CHECK(empty.floats().empty());
}

}  // namespace
}  // namespace evergrad::tensor
