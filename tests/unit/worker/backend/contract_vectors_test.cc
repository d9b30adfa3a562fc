// Tests the contract of Backend for sums, copies, products of vectors, embeddings, and activations
// inside layers. The results are compared with the definitions in float64.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/unit/worker/backend/fixtures/contract_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

const std::vector<std::size_t>& Sizes() {
  static const std::vector<std::size_t> sizes = {1, 3, 4, 31, 257, 4099, 70001};
  return sizes;
}

TEST_CASE("copy, scale, add, sum and multiply equal their definitions, bit for bit") {
  ForEachBackend([](Backend& backend) {
    for (const std::size_t n : Sizes()) {
      const auto a = Draw(1, n), b = Draw(2, n), c = Draw(3, n);
      std::vector<float> y = Poison(n), want(n);
      backend.Copy(a, y);
      CHECK(SameBits(y, a));
      y = Poison(n);
      backend.Scale(1.7f, a, y);
      for (std::size_t i = 0; i < n; ++i) want[i] = 1.7f * a[i];
      CHECK(SameBits(y, want));
      y = b;
      backend.AddScaled(0.3f, a, y);
      for (std::size_t i = 0; i < n; ++i) {
        const float product = 0.3f * a[i];
        want[i] = b[i] + product;
      }
      CHECK(SameBits(y, want));
      y = b;
      backend.AddScaled(1, a, y);
      for (std::size_t i = 0; i < n; ++i) want[i] = b[i] + a[i];
      CHECK(SameBits(y, want));
      const std::vector<AnyIn> inputs = {a, b, c, a};
      for (std::size_t count = 1; count <= inputs.size(); ++count) {
        y = Poison(n);
        backend.Sum(std::span(inputs).first(count), y);
        want = a;
        for (std::size_t k = 1; k < count; ++k) {
          for (std::size_t i = 0; i < n; ++i) want[i] += inputs[k].floats()[i];
        }
        CHECK(SameBits(y, want));
      }
      y = Poison(n);
      backend.Multiply(a, b, y);
      for (std::size_t i = 0; i < n; ++i) want[i] = a[i] * b[i];
      CHECK(SameBits(y, want));
      y = a;  // in place
      backend.Multiply(y, b, y);
      CHECK(SameBits(y, want));
      backend.Multiply(a, a, y);
      for (std::size_t i = 0; i < n; ++i) want[i] = a[i] * a[i];
      CHECK(SameBits(y, want));
      backend.Zero(std::as_writable_bytes(std::span(y)));
      CHECK(SameBits(y, std::vector<float>(n)));
    }
    std::vector<std::byte> bytes(13, std::byte{9});
    backend.Zero(std::span(bytes).subspan(1, 11));
    CHECK((bytes[0] == std::byte{9} && bytes[1] == std::byte{0} && bytes[11] == std::byte{0} &&
           bytes[12] == std::byte{9}));
  });
}

TEST_CASE(
    "columns are copied to and from the given positions, and nothing beside them is written") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [rows, width, x_columns, x_begin, y_columns, y_begin] :
         {std::array<std::int64_t, 6>{1, 1, 1, 0, 1, 0},
          {7, 3, 3, 0, 11, 5},
          {5, 4, 9, 5, 4, 0},
          {300, 33, 40, 7, 64, 31},
          {3, 1, 2, 1, 5, 4}}) {
      const auto x = Draw(1, static_cast<std::size_t>(rows * x_columns)),
                 before = Draw(2, static_cast<std::size_t>(rows * y_columns));
      std::vector<float> y = before, want = before;
      backend.CopyColumns(rows, width, x, x_columns, x_begin, y, y_columns, y_begin);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < width; ++c)
          want[static_cast<std::size_t>(r * y_columns + y_begin + c)] =
              x[static_cast<std::size_t>(r * x_columns + x_begin + c)];
      }
      CHECK(SameBits(y, want));
    }
  });
}

TEST_CASE(
    "scalar products and cosines equal their definitions forward and backward, also for short "
    "vectors") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [batch, elements] :
         {std::array<std::size_t, 2>{1, 1}, {5, 3}, {64, 17}, {3, 1025}}) {
      for (const bool normalize : {false, true}) {
        auto a = Draw(1, batch * elements);
        const auto b = Draw(2, batch * elements), dy = Draw(3, batch);
        for (std::size_t e = 0; e < elements; ++e) a[e] *= 1e-9f;  // the first vector is short
        std::vector<double> want(batch), want_da(batch * elements);
        for (std::size_t n = 0; n < batch; ++n) {
          double ab = 0, aa = 0, bb = 0;
          for (std::size_t i = n * elements; i < (n + 1) * elements; ++i) {
            ab += static_cast<double>(a[i]) * b[i], aa += static_cast<double>(a[i]) * a[i],
                bb += static_cast<double>(b[i]) * b[i];
          }
          const bool held = aa <= 1e-12;
          const double length =
              normalize ? std::sqrt(std::max(aa, 1e-12) * std::max(bb, 1e-12)) : 1;
          want[n] = ab / length;
          for (std::size_t i = n * elements; i < (n + 1) * elements; ++i)
            want_da[i] =
                dy[n] * (b[i] / length - (normalize && !held ? a[i] * ab / (length * aa) : 0.0));
        }
        std::vector<float> y = Poison(batch), da = Poison(batch * elements);
        const std::int64_t rows = static_cast<std::int64_t>(batch),
                           columns = static_cast<std::int64_t>(elements);
        backend.DotForward(rows, columns, normalize, a, b, y);
        CheckClose(y, want, 2e-5);
        backend.DotBackward(rows, columns, normalize, a, b, dy, da);
        for (std::size_t i = 0; i < da.size(); ++i)
          CHECK(da[i] == Approx(want_da[i]).epsilon(1e-5).margin(1e-6));
        std::vector<float> self = Poison(batch);
        backend.DotForward(rows, columns, normalize, b, b, self);
        if (normalize) {
          for (const float v : self) CHECK(v == Approx(1));
        }
      }
    }
  });
}

TEST_CASE("the factorization machine equals the sum over all pairs, forward and backward") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [batch, dimension] : {std::array<std::size_t, 2>{1, 1}, {4, 5}, {33, 16}}) {
      const std::vector<std::size_t> fields = {1, 4, 2};
      std::vector<std::vector<float>> v;
      for (std::size_t i = 0; i < fields.size(); ++i)
        v.push_back(Draw(10 + i, batch * fields[i] * dimension));
      const auto dy = Draw(2, batch);
      std::vector<double> want(batch), want_sums(batch * dimension);
      std::vector<std::vector<double>> want_dv;
      for (const auto& input : v) want_dv.emplace_back(input.size());
      for (std::size_t n = 0; n < batch; ++n) {
        std::vector<std::pair<std::size_t, std::size_t>> vectors;  // input, position in it
        for (std::size_t i = 0; i < v.size(); ++i) {
          for (std::size_t f = 0; f < fields[i]; ++f)
            vectors.emplace_back(i, (n * fields[i] + f) * dimension);
        }
        for (const auto& [i, at] : vectors) {
          for (std::size_t d = 0; d < dimension; ++d) want_sums[n * dimension + d] += v[i][at + d];
          for (const auto& [k, other] : vectors) {
            if (k == i && other == at) continue;
            for (std::size_t d = 0; d < dimension; ++d) {
              want[n] += 0.5 * v[i][at + d] * v[k][other + d];
              want_dv[i][at + d] += static_cast<double>(dy[n]) * v[k][other + d];
            }
          }
        }
      }
      const std::vector<In> inputs(v.begin(), v.end());
      std::vector<float> y = Poison(batch), sums = Poison(batch * dimension);
      const std::int64_t examples = static_cast<std::int64_t>(batch),
                         width = static_cast<std::int64_t>(dimension);
      backend.FactorizationForward(examples, width, inputs, sums, y);
      CheckClose(y, want, 1e-4);
      CheckClose(sums, want_sums, 1e-5);
      for (std::size_t i = 0; i < v.size(); ++i) {
        std::vector<float> dv = Poison(v[i].size());
        backend.FactorizationBackward(examples, width, v[i], sums, dy, dv);
        CheckClose(dv, want_dv[i], 1e-5);
      }
    }
  });
}

struct Bags {
  std::vector<std::int64_t> widths;
  std::int64_t batch, dimension;
  std::uint32_t rows;
};

TEST_CASE(
    "embeddings gather rows or bags and scatter gradients, with weights, duplicates and padding") {
  ForEachBackend([](Backend& backend) {
    for (const Bags& bags : {Bags{{1}, 1, 1, 1}, Bags{{3}, 5, 7, 4}, Bags{{1, 1, 1}, 9, 16, 5},
                             Bags{{4, 2}, 65, 33, 40}, Bags{{26}, 128, 8, 500}}) {
      std::size_t ids = 0;
      for (const std::int64_t width : bags.widths) ids += static_cast<std::size_t>(width);
      const std::size_t batch = static_cast<std::size_t>(bags.batch),
                        dimension = static_cast<std::size_t>(bags.dimension);
      std::vector<std::uint32_t> position(batch * ids);
      for (std::size_t i = 0; i < position.size(); ++i) {
        const float u = random::Uniform(7, i);
        position[i] =
            u < 0.2f ? kAbsent : static_cast<std::uint32_t>(random::Bits64(8, i) % bags.rows);
      }
      for (std::size_t e = 0; batch > 2 && e < static_cast<std::size_t>(bags.widths[0]); ++e)
        position[static_cast<std::size_t>(bags.widths[0]) + e] = kAbsent;
      const auto rows = Draw(1, bags.rows * dimension), before = Draw(5, bags.rows * dimension);
      auto weights = Draw(2, position.size());
      for (float& w : weights) w = std::abs(w) + 0.25f;
      for (const Combiner combiner :
           {Combiner::kNone, Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
        for (const bool weighted : {false, true}) {
          if (weighted && combiner == Combiner::kNone) continue;
          const bool bag = combiner != Combiner::kNone;
          const std::size_t stride = bag ? dimension : ids * dimension;
          const auto dy = Draw(3, batch * stride);
          std::vector<double> want(batch * stride), want_gradients(before.begin(), before.end());
          for (std::size_t n = 0; n < batch; ++n) {
            struct Id {
              std::uint32_t row;
              std::size_t element;
              double weight;
            };
            std::vector<Id> there;
            std::size_t begin = 0, element = 0;
            double sum = 0, squares = 0;
            for (const std::int64_t w : bags.widths) {
              const std::size_t width = static_cast<std::size_t>(w);
              for (std::size_t e = 0; e < width; ++e, ++element) {
                const std::size_t at = begin + n * width + e;
                const double weight = weighted ? weights[at] : 1.0;
                if (position[at] == kAbsent) continue;
                there.push_back({position[at], element, weight});
                sum += weight, squares += weight * weight;
              }
              begin += batch * width;
            }
            const double divisor = combiner == Combiner::kMean    ? sum
                                   : combiner == Combiner::kSqrtN ? std::sqrt(squares)
                                                                  : 1.0;
            for (const Id& id : there) {
              for (std::size_t d = 0; d < dimension; ++d) {
                const std::size_t out = n * stride + (bag ? 0 : id.element * dimension) + d;
                const double factor = bag ? id.weight / divisor : 1.0;
                want[out] += factor * rows[id.row * dimension + d];
                want_gradients[id.row * dimension + d] += factor * dy[out];
              }
            }
          }
          const EmbeddingShape shape{bags.batch, bags.dimension, bags.widths, combiner};
          const In w = weighted ? In(weights) : In();
          std::vector<float> y = Poison(batch * stride), gradients = before;
          backend.EmbeddingGather(shape, position, rows, w, y);
          CheckClose(y, want, bag ? 1e-5 : 0);
          backend.EmbeddingScatter(shape, position, w, dy, gradients);
          CheckClose(gradients, want_gradients, 2e-4);
          std::vector<float> again = before;
          backend.EmbeddingScatter(shape, position, w, dy, again);
          CHECK(SameBits(again, gradients));
        }
      }
    }
  });
}

TEST_CASE("gradients of a row are added in the order of examples, inputs and elements") {
  ForEachBackend([](Backend& backend) {
    // If the sum were computed in another order, the 1 would be lost beside 1e8.
    const std::vector<std::int64_t> widths = {2, 1};
    const std::vector<std::uint32_t> position = {
        0, 0, 0, 0, 0, 0};  // input 0 has two ids for each of two examples, input 1 has one
    const std::vector<float> dy = {
        // for each example the elements of input 0, then those of input 1
        1e8f, -1e8f, 1, 1, 1e8f, -1e8f};
    std::vector<float> gradient = {0};
    backend.EmbeddingScatter({2, 1, widths, Combiner::kNone}, position, {}, dy, gradient);
    CHECK(gradient[0] == 0);  // (((((1e8 - 1e8) + 1) + 1) + 1e8) - 1e8): 2 + 1e8 rounds to 1e8
    const std::vector<float> other = {1e8f, -1e8f, 1, 1e8f, -1e8f, 1};
    gradient = {0};
    backend.EmbeddingScatter({2, 1, widths, Combiner::kNone}, position, {}, other, gradient);
    CHECK(gradient[0] == 1);
  });
}

TEST_CASE("a bag whose weights sum to zero is zero") {
  ForEachBackend([](Backend& backend) {
    const std::vector<std::int64_t> widths = {2};
    const std::vector<std::uint32_t> position = {0, 1};
    const std::vector<float> rows = {1, 2}, weights = {1.5f, -1.5f}, zero = {0, 0}, dy = {1};
    std::vector<float> y = Poison(1), gradients = {3, 4};
    backend.EmbeddingGather({1, 1, widths, Combiner::kMean}, position, rows, weights, y);
    CHECK(y[0] == 0);
    backend.EmbeddingGather({1, 1, widths, Combiner::kSqrtN}, position, rows, zero, y);
    CHECK(y[0] == 0);
    backend.EmbeddingScatter({1, 1, widths, Combiner::kMean}, position, weights, dy, gradients);
    CHECK(SameBits(gradients, {3, 4}));
  });
}

TEST_CASE("the backward pass of a layer includes its activation") {
  ForEachBackend([](Backend& backend) {
    const std::size_t n = 7 * 5;
    const auto x = Draw(1, 7 * 9), w = Draw(2, 9 * 5), b = Draw(3, 5), dy = Draw(4, n);
    // With only one window, the convolution is the same matrix product.
    const Conv2dShape s{7, 3, 3, 1, 1, 1, 5, 3, 3, 1, 1, 0, 0, 0, 0};
    for (const Activation a : {Activation::kLinear, Activation::kRelu, Activation::kTanh,
                               Activation::kSigmoid, Activation::kSoftmax}) {
      std::vector<float> y = Poison(n), before = Poison(n);
      backend.DenseForward(7, 9, 5, x, w, b, a, y);
      backend.ActivationBackward(a, 7, 5, y, dy, before);
      std::vector<double> want_dx(x.size()), want_dw(w.size()), want_db(b.size());
      for (std::size_t r = 0; r < 7; ++r) {
        for (std::size_t o = 0; o < 5; ++o) {
          want_db[o] += before[r * 5 + o];
          for (std::size_t i = 0; i < 9; ++i) {
            want_dx[r * 9 + i] += static_cast<double>(before[r * 5 + o]) * w[i * 5 + o];
            want_dw[i * 5 + o] += static_cast<double>(before[r * 5 + o]) * x[r * 9 + i];
          }
        }
      }
      for (const bool conv : {false, true}) {
        std::vector<float> dx = Poison(x.size()), dw = Poison(w.size()), db = Poison(b.size()),
                           spoilt = dy;
        const In y_or_none = a == Activation::kLinear ? In() : In(y);
        if (conv)
          backend.Conv2dBackward(s, x, w, a, y_or_none, spoilt, dx, dw, db);
        else
          backend.DenseBackward(7, 9, 5, x, w, a, y_or_none, spoilt, dx, dw, db);
        CheckClose(dx, want_dx, 1e-5);
        CheckClose(dw, want_dw, 1e-5);
        CheckClose(db, want_db, 1e-5);
      }
    }
  });
}

}  // namespace
}  // namespace evergrad::worker
