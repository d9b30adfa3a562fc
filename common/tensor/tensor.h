// Shapes, and aligned memory for values. Values in memory are float32, and ids are int64 (DType).
// The types that values have on the wire are in wire_type.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace evergrad::tensor {

inline constexpr std::size_t kAlignment = 64;
inline constexpr std::size_t kRankMax = 8;

enum class DType : std::uint8_t { kFloat32 = 1, kInt64 = 5 };
constexpr std::size_t DTypeBytes(DType t) { return t == DType::kFloat32 ? 4 : 8; }

// The dimensions of a tensor, outermost first. A scalar has rank 0.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::uint64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<std::uint64_t> dims) : dims_(std::move(dims)) {}
  // Returns InvalidArgument for a rank above 8 or an overflow of the product.
  static absl::StatusOr<Shape> Checked(std::vector<std::uint64_t> dims);

  std::size_t rank() const { return dims_.size(); }
  std::uint64_t operator[](std::size_t i) const { return dims_[i]; }
  const std::vector<std::uint64_t>& dims() const { return dims_; }
  // Returns the number of elements, which is 1 for a scalar. The number must not overflow
  // (EG_CHECK); use Checked for numbers from outside.
  std::uint64_t elements() const;
  std::uint64_t rows() const { return dims_.empty() ? 1 : dims_[0]; }
  std::uint64_t row_elements() const;  // elements / rows; 1 for a scalar
  std::string ToString() const;        // "(28, 28, 1)", "()" for a scalar
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<std::uint64_t> dims_;
};

// The owner of a buffer's memory that is not on the heap, such as the pool of a transport.
// Thread-safe. The pool's owner and the buffers in use share this object.
class BufferHome {
 public:
  virtual ~BufferHome() = default;
  virtual void TakeBack(std::byte* data, std::size_t bytes) = 0;
};

// Memory aligned to 64 bytes, uninitialized unless requested. Movable, not copyable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);
  // Takes ownership of `bytes` at `data`. The destructor returns the memory to `home`.
  AlignedBuffer(std::byte* data, std::size_t bytes, std::shared_ptr<BufferHome> home)
      : data_(data), size_(bytes), home_(std::move(home)) {}
  static AlignedBuffer Zeroed(std::size_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<float> floats() { return {reinterpret_cast<float*>(data_), size_ / sizeof(float)}; }
  std::span<const float> floats() const {
    return {reinterpret_cast<const float*>(data_), size_ / sizeof(float)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<BufferHome> home_;  // nullptr if the memory is on the heap
};

// Read-only bytes with a shared owner, for results of a pull and other data that is sent without a
// copy. The owner is shared because the transport's slices, snapshots and readers may still need a
// chunk after the shard has applied its next update.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

}  // namespace evergrad::tensor
