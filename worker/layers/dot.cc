// The scalar product of two vectors an example: Keras' Dot over axis 1. `normalize` divides each by its length first, which makes it the
// cosine; like Keras', a length below 1e-6 counts as 1e-6.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

constexpr double kSquareMin = 1e-12;

class Dot final : public MergeLayer {
 public:
  Dot(const config::LayerSpec& spec, const tensor::Shape& input)
      : MergeLayer(spec, "Dot", input, tensor::Shape{1}), normalize_(spec.normalize), elements_(input.elements()) {}

  void Merge(const Pass& pass, const std::vector<In>& inputs, Out y) override {
    for (std::size_t n = 0; n < static_cast<std::size_t>(pass.batch); ++n) {
      const In a = Row(inputs[0], n), b = Row(inputs[1], n);
      double product = Product(a, b);
      if (normalize_) product /= std::sqrt(Square(a) * Square(b));
      y[n] = static_cast<float>(product);
    }
  }
  void Unmerge(const Pass& pass, const std::vector<In>& inputs, In, In dy, std::size_t input, Out dx) override {
    for (std::size_t n = 0; n < static_cast<std::size_t>(pass.batch); ++n) {
      const In a = Row(inputs[input], n), b = Row(inputs[1 - input], n);
      float* to = dx.data() + n * elements_;
      if (!normalize_) {
        for (std::size_t e = 0; e < elements_; ++e) to[e] = dy[n] * b[e];
        continue;
      }
      // d(a·b / |a||b|) / da = b / |a||b| - a (a·b) / |a|^3 |b|; the second term is absent where the length is held at its least.
      const double square = Square(a), scale = dy[n] / std::sqrt(square * Square(b));
      const double along = square > kSquareMin ? scale * Product(a, b) / square : 0;
      for (std::size_t e = 0; e < elements_; ++e) to[e] = static_cast<float>(scale * b[e] - along * a[e]);
    }
  }

 private:
  In Row(In values, std::size_t n) const { return values.subspan(n * elements_, elements_); }
  static double Product(In a, In b) {
    double sum = 0;
    for (std::size_t e = 0; e < a.size(); ++e) sum += static_cast<double>(a[e]) * b[e];
    return sum;
  }
  static double Square(In a) { return std::max(Product(a, a), kSquareMin); }

  const bool normalize_;
  const std::size_t elements_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDot(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs) {
  if (inputs.size() != 2) return LayerError(spec, absl::StrCat("dot takes two inputs, got ", inputs.size()));
  if (inputs[0].rank() != 1 || inputs[0] != inputs[1])
    return LayerError(spec, absl::StrCat("dot needs two vectors of one size, got ", ShapeList(inputs)));
  return std::make_unique<Dot>(spec, inputs[0]);
}

}  // namespace evergrad::worker
