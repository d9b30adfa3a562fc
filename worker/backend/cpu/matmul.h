// Products of 16-bit matrices, accumulated in float32: one oneDNN primitive per shape. (Products of
// float32 use dnnl::sgemm.)
#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "dnnl.hpp"
#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

// c[m,n] = op(a) op(b) (+ bias[n]), row-major. a is [m,k], or [k,m] if transposed; b is [k,n], or
// [n,k] if transposed. a and b have type `in`, c has type `out`.
struct MatmulShape {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, with_bias;
  Element in, out;
  friend auto operator<=>(const MatmulShape&, const MatmulShape&) = default;
};

// The methods throw dnnl::error, which the backend catches. Not thread-safe. `engine` and `stream`
// outlive the object.
class Matmul {
 public:
  Matmul(const dnnl::engine& engine, dnnl::stream& stream) : engine_(engine), stream_(stream) {}
  // `bias` is float32.
  void Multiply(const MatmulShape& s, AnyIn a, AnyIn b, In bias, AnyOut c);

 private:
  struct Plan {
    dnnl::matmul primitive;
    dnnl::memory a, b, bias, c;
  };
  Plan Make(const MatmulShape& s) const;
  const dnnl::engine& engine_;
  dnnl::stream& stream_;
  std::map<MatmulShape, Plan> plans_;
};

dnnl::memory::data_type ToDnnl(Element e);

}  // namespace evergrad::worker::cpu
