#include "common/tensor/tensor.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"

namespace evergrad::tensor {

absl::StatusOr<Shape> Shape::Checked(std::vector<std::uint64_t> dims) {
  if (dims.size() > kRankMax)
    return absl::InvalidArgumentError(
        absl::StrCat("the rank is too high: rank=", dims.size(), " limit=", kRankMax));
  // The size in bytes and the number of elements must fit into 64 bits, so that holders of a
  // checked shape need no further checks. A zero must not hide an overflow of the other dimensions,
  // because rows and row elements are used separately.
  std::vector<std::uint64_t> factors{sizeof(std::uint64_t)};
  for (std::uint64_t d : dims) factors.push_back(d == 0 ? 1 : d);
  if (!CheckedProduct(factors))
    return absl::InvalidArgumentError(
        absl::StrCat("the shape is too large: shape=(", absl::StrJoin(dims, ", "), ")"));
  return Shape(std::move(dims));
}

std::uint64_t Shape::elements() const {
  const auto product = CheckedProduct(dims_);
  EG_CHECK_MSG(product.has_value(), ToString());
  return *product;
}

std::uint64_t Shape::row_elements() const {
  if (dims_.empty()) return 1;
  const auto product = CheckedProduct(std::span(dims_).subspan(1));
  EG_CHECK_MSG(product.has_value(), ToString());
  return *product;
}

std::string Shape::ToString() const { return absl::StrCat("(", absl::StrJoin(dims_, ", "), ")"); }

AlignedBuffer::AlignedBuffer(std::size_t bytes) : size_(bytes) {
  if (bytes > 0)
    data_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment)));
}

AlignedBuffer AlignedBuffer::Zeroed(std::size_t bytes) {
  AlignedBuffer buffer(bytes);
  if (bytes > 0) std::memset(buffer.data(), 0, bytes);
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      home_(std::move(other.home_)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  AlignedBuffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(home_, taken.home_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
  if (home_ != nullptr) {
    home_->TakeBack(data_, size_);
  } else {
    ::operator delete(data_, std::align_val_t(kAlignment));
  }
}

}  // namespace evergrad::tensor
