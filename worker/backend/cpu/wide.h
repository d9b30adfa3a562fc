// Gives access to 16-bit elements in loops that are written for float32. float32 arrays are used in
// place, other arrays in pieces, through a buffer that stays in the cache. Each thread has one
// object per array.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/tensor/convert.h"
#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

inline tensor::WireType ToWire(Element e) { return static_cast<tensor::WireType>(e); }

class WideIn {
 public:
  explicit WideIn(AnyIn all) : all_(all) {}
  // Returns elements [begin, begin + n), valid until the next call.
  const float* Load(std::int64_t begin, std::int64_t n) {
    if (all_.is_float32()) return static_cast<const float*>(all_.data()) + begin;
    if (buffer_.size() < static_cast<std::size_t>(n)) buffer_.resize(static_cast<std::size_t>(n));
    tensor::Widen(ToWire(all_.type()), static_cast<const std::byte*>(all_.data()) + 2 * begin,
                  static_cast<std::size_t>(n), buffer_.data());
    return buffer_.data();
  }

 private:
  const AnyIn all_;
  std::vector<float> buffer_;
};

class WideOut {
 public:
  explicit WideOut(AnyOut all) : all_(all) {}
  // Returns memory for new values of [begin, begin + n), with unspecified contents. Store() must
  // follow.
  float* At(std::int64_t begin, std::int64_t n) {
    begin_ = begin, n_ = n;
    if (all_.is_float32()) return static_cast<float*>(all_.data()) + begin;
    if (buffer_.size() < static_cast<std::size_t>(n)) buffer_.resize(static_cast<std::size_t>(n));
    return buffer_.data();
  }
  // Does the same as At, but the memory holds the current values.
  float* Load(std::int64_t begin, std::int64_t n) {
    float* const at = At(begin, n);
    if (!all_.is_float32())
      tensor::Widen(ToWire(all_.type()), Bytes(), static_cast<std::size_t>(n), at);
    return at;
  }
  void Store() {
    if (!all_.is_float32())
      tensor::Narrow(ToWire(all_.type()), buffer_.data(), static_cast<std::size_t>(n_), Bytes());
  }

 private:
  std::byte* Bytes() const { return static_cast<std::byte*>(all_.data()) + 2 * begin_; }
  const AnyOut all_;
  std::int64_t begin_ = 0, n_ = 0;
  std::vector<float> buffer_;
};

// Calls body(begin, count) over [begin, end): once for float32, otherwise in pieces of the size of
// the buffers.
template <typename Body>
void ForPieces(bool whole, std::int64_t begin, std::int64_t end, Body body) {
  constexpr std::int64_t kPiece = 2048;
  for (const std::int64_t piece = whole ? std::max<std::int64_t>(end - begin, 1) : kPiece;
       begin < end; begin += piece)
    body(begin, std::min(piece, end - begin));
}

}  // namespace evergrad::worker::cpu
