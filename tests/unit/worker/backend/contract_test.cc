// Tests the contract of Backend over every implementation (contract_fixture.h). Dense layers,
// windows, activations and normalization are compared with their definitions in float64. Repeated
// calls must give the same bits, and a NaN must not be lost.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/status.h"
#include "common/random/philox.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {
namespace {

using namespace test;

double Act(Activation a, double x) {
  switch (a) {
    case Activation::kRelu: return std::max(x, 0.0);
    case Activation::kTanh: return std::tanh(x);
    case Activation::kSigmoid: return 1.0 / (1.0 + std::exp(-x));
    default: return x;
  }
}

Conv2dShape Conv(std::int64_t batch, std::int64_t h, std::int64_t w, std::int64_t c,
                 std::int64_t filters, std::int64_t kh, std::int64_t kw, std::int64_t sh,
                 std::int64_t sw, std::int64_t top, std::int64_t left, std::int64_t bottom,
                 std::int64_t right) {
  return {batch,
          h,
          w,
          c,
          (h + top + bottom - kh) / sh + 1,
          (w + left + right - kw) / sw + 1,
          filters,
          kh,
          kw,
          sh,
          sw,
          top,
          left,
          bottom,
          right};
}

const std::vector<Conv2dShape>& ConvShapes() {
  static const std::vector<Conv2dShape> shapes = {
      Conv(1, 5, 4, 1, 1, 3, 2, 1, 1, 0, 0, 0, 0),
      Conv(3, 7, 9, 3, 5, 3, 3, 2, 1, 1, 0, 1, 1),
      Conv(2, 8, 8, 16, 32, 3, 3, 1, 1, 0, 0, 0, 0),
      Conv(1, 6, 6, 17, 9, 1, 1, 2, 3, 0, 0, 0, 0),
      Conv(2, 11, 10, 8, 16, 5, 4, 1, 2, 2, 1, 2, 2),
      Conv(4, 3, 3, 2, 64, 3, 3, 1, 1, 0, 0, 0, 0),
      Conv(2, 13, 13, 1, 16, 7, 7, 2, 2, 2, 2, 3, 3),
      Conv(2, 14, 12, 3, 8, 7, 7, 2, 2, 2, 2, 3, 3),
      Conv(3, 10, 9, 16, 8, 3, 4, 2, 1, 0, 2, 1, 1),
      Conv(2, 14, 14, 8, 16, 3, 3, 2, 2, 1, 1, 1, 1),
  };
  return shapes;
}

template <typename Visit>  // calls `visit(output index, input index, kernel index)`
void VisitConv(const Conv2dShape& s, Visit visit) {
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t a = 0; a < s.out_h; ++a)
      for (std::int64_t b = 0; b < s.out_w; ++b)
        for (std::int64_t p = 0; p < s.kernel_h; ++p)
          for (std::int64_t q = 0; q < s.kernel_w; ++q) {
            const std::int64_t r = a * s.stride_h - s.pad_top + p,
                               c = b * s.stride_w - s.pad_left + q;
            if (r < 0 || c < 0 || r >= s.in_h || c >= s.in_w) continue;
            for (std::int64_t i = 0; i < s.in_c; ++i)
              for (std::int64_t f = 0; f < s.filters; ++f)
                visit(
                    static_cast<std::size_t>(((n * s.out_h + a) * s.out_w + b) * s.filters + f),
                    static_cast<std::size_t>(((n * s.in_h + r) * s.in_w + c) * s.in_c + i),
                    static_cast<std::size_t>(((p * s.kernel_w + q) * s.in_c + i) * s.filters + f));
          }
}

struct ConvData {
  explicit ConvData(const Conv2dShape& s)
      : x(Draw(1, static_cast<std::size_t>(s.batch * s.in_h * s.in_w * s.in_c))),
        w(Draw(2, static_cast<std::size_t>(s.kernel_h * s.kernel_w * s.in_c * s.filters))),
        b(Draw(3, static_cast<std::size_t>(s.filters))),
        dy(Draw(4, static_cast<std::size_t>(s.batch * s.out_h * s.out_w * s.filters))) {}
  std::vector<float> x, w, b, dy;
};

TEST_CASE("conv2d forward equals its definition, with and without bias, with every activation") {
  ForEachBackend([](Backend& backend) {
    for (const Conv2dShape& s : ConvShapes()) {
      const ConvData d(s);
      for (const bool bias : {true, false}) {
        for (const Activation a :
             {Activation::kLinear, Activation::kRelu, Activation::kTanh, Activation::kSigmoid}) {
          std::vector<double> want(d.dy.size());
          for (std::size_t i = 0; i < want.size(); ++i) want[i] = bias ? d.b[i % d.b.size()] : 0.0;
          VisitConv(s, [&](std::size_t o, std::size_t i, std::size_t k) {
            want[o] += static_cast<double>(d.x[i]) * d.w[k];
          });
          for (double& v : want) v = Act(a, v);
          std::vector<float> y(want.size(), std::nanf(""));
          backend.Conv2dForward(s, d.x, d.w, bias ? In(d.b) : In(), a, y);
          CheckClose(y, want, 3e-5);
        }
      }
    }
  });
}

TEST_CASE("conv2d backward equals its definition, and overwrites its outputs") {
  ForEachBackend([](Backend& backend) {
    for (const Conv2dShape& s : ConvShapes()) {
      const ConvData d(s);
      std::vector<double> want_dx(d.x.size()), want_dw(d.w.size()), want_db(d.b.size());
      VisitConv(s, [&](std::size_t o, std::size_t i, std::size_t k) {
        want_dx[i] += static_cast<double>(d.dy[o]) * d.w[k];
        want_dw[k] += static_cast<double>(d.dy[o]) * d.x[i];
      });
      for (std::size_t o = 0; o < d.dy.size(); ++o) want_db[o % d.b.size()] += d.dy[o];
      std::vector<float> dx(d.x.size(), std::nanf("")), dw(d.w.size(), std::nanf("")),
          db(d.b.size(), std::nanf(""));
      std::vector<float> dy = d.dy;
      backend.Conv2dBackward(s, d.x, d.w, Activation::kLinear, {}, dy, dx, dw, db);
      CheckClose(dx, want_dx, 1e-4);
      CheckClose(dw, want_dw, 1e-4);
      CheckClose(db, want_db, 1e-4);
      std::vector<float> dw2(d.w.size(), std::nanf(""));
      dy = d.dy;
      // The first layer of a model does not need the gradient for its input. Here it also has no
      // bias.
      backend.Conv2dBackward(s, d.x, d.w, Activation::kLinear, {}, dy, {}, dw2, {});
      CheckClose(dw2, want_dw, 1e-4);
    }
  });
}

TEST_CASE("dense forward and backward equal their definition") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [batch, in, out] : {std::array<std::int64_t, 3>{1, 1, 1},
                                         {1, 7, 5},
                                         {5, 33, 17},
                                         {64, 100, 10},
                                         {3, 1, 64}}) {
      const auto x = Draw(1, static_cast<std::size_t>(batch * in)),
                 w = Draw(2, static_cast<std::size_t>(in * out)),
                 b = Draw(3, static_cast<std::size_t>(out)),
                 dy = Draw(4, static_cast<std::size_t>(batch * out));
      std::vector<double> want(dy.size()), want_dx(x.size()), want_dw(w.size()), want_db(b.size());
      for (std::int64_t r = 0; r < batch; ++r)
        for (std::int64_t o = 0; o < out; ++o) {
          const std::size_t y = static_cast<std::size_t>(r * out + o);
          want[y] = b[static_cast<std::size_t>(o)];
          want_db[static_cast<std::size_t>(o)] += dy[y];
          for (std::int64_t i = 0; i < in; ++i) {
            const std::size_t xi = static_cast<std::size_t>(r * in + i),
                              wi = static_cast<std::size_t>(i * out + o);
            want[y] += static_cast<double>(x[xi]) * w[wi];
            want_dx[xi] += static_cast<double>(dy[y]) * w[wi];
            want_dw[wi] += static_cast<double>(dy[y]) * x[xi];
          }
        }
      std::vector<float> y(dy.size(), std::nanf("")), dx(x.size(), std::nanf("")),
          dw(w.size(), std::nanf("")), db(b.size(), std::nanf(""));
      backend.DenseForward(batch, in, out, x, w, b, Activation::kLinear, y);
      CheckClose(y, want, 3e-5);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = std::tanh(want[i] - b[i % b.size()]);
      backend.DenseForward(batch, in, out, x, w, {}, Activation::kTanh, y);
      CheckClose(y, want, 3e-5);
      std::vector<float> spoilt = dy;
      backend.DenseBackward(batch, in, out, x, w, Activation::kLinear, {}, spoilt, dx, dw, db);
      CheckClose(dx, want_dx, 3e-5);
      CheckClose(dw, want_dw, 3e-5);
      CheckClose(db, want_db, 3e-5);
      std::fill(dw.begin(), dw.end(), std::nanf(""));
      spoilt = dy;
      backend.DenseBackward(batch, in, out, x, w, Activation::kLinear, {}, spoilt, {}, dw, {});
      CheckClose(dw, want_dw, 3e-5);
    }
  });
}

PoolShape Pool(std::int64_t batch, std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t ph,
               std::int64_t pw, std::int64_t sh, std::int64_t sw, std::int64_t top,
               std::int64_t left, std::int64_t bottom, std::int64_t right) {
  return {batch,
          h,
          w,
          c,
          (h + top + bottom - ph) / sh + 1,
          (w + left + right - pw) / sw + 1,
          ph,
          pw,
          sh,
          sw,
          top,
          left,
          bottom,
          right};
}

TEST_CASE("max pooling takes the maximum of each window and passes its gradient to that element") {
  ForEachBackend([](Backend& backend) {
    for (const PoolShape& s :
         {Pool(1, 4, 4, 1, 2, 2, 2, 2, 0, 0, 0, 0), Pool(3, 5, 7, 3, 2, 3, 2, 3, 0, 0, 0, 0),
          Pool(2, 7, 6, 19, 3, 3, 2, 1, 1, 0, 1, 1), Pool(2, 9, 9, 8, 2, 2, 3, 4, 0, 0, 0, 0),
          Pool(2, 5, 5, 4, 2, 2, 2, 2, 0, 0, 1, 1), Pool(2, 26, 26, 16, 2, 2, 2, 2, 0, 0, 0, 0)}) {
      auto x = Draw(1, static_cast<std::size_t>(s.batch * s.in_h * s.in_w * s.channels));
      // The numbers have only a few different values, so that several maxima of a window can be
      // equal.
      for (float& v : x) v = std::round(v * 4.0f);
      const std::size_t outputs =
          static_cast<std::size_t>(s.batch * s.out_h * s.out_w * s.channels);
      const auto dy = Draw(2, outputs);
      std::vector<float> y(outputs, std::nanf("")), dx(x.size(), std::nanf(""));
      std::vector<std::int32_t> argmax(outputs, -1), want_argmax(outputs);
      std::vector<double> want(outputs), want_dx(x.size());
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::int64_t at = static_cast<std::int64_t>(o), c = at % s.channels,
                           ox = at / s.channels % s.out_w, oy = at / s.channels / s.out_w % s.out_h,
                           n = at / s.channels / s.out_w / s.out_h;
        double best = -std::numeric_limits<double>::infinity();
        for (std::int64_t p = 0; p < s.pool_h; ++p)
          for (std::int64_t q = 0; q < s.pool_w; ++q) {
            const std::int64_t r = oy * s.stride_h - s.pad_top + p,
                               k = ox * s.stride_w - s.pad_left + q;
            if (r < 0 || k < 0 || r >= s.in_h || k >= s.in_w) continue;
            const std::int64_t i = ((n * s.in_h + r) * s.in_w + k) * s.channels + c;
            if (x[static_cast<std::size_t>(i)] > best)
              best = x[static_cast<std::size_t>(i)], want_argmax[o] = static_cast<std::int32_t>(i);
          }
        want[o] = best;
        want_dx[static_cast<std::size_t>(want_argmax[o])] += dy[o];
      }
      backend.MaxPoolForward(s, x, y, argmax);
      CheckClose(y, want, 0);
      CHECK(argmax == want_argmax);
      backend.MaxPoolBackward(s, dy, argmax, dx);
      CheckClose(dx, want_dx, 1e-6);
    }
  });
}

TEST_CASE(
    "activations and their gradients equal their definition, also in place and for odd sizes") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [rows, columns] :
         {std::array<std::int64_t, 2>{1, 1}, {3, 10}, {7, 33}, {300, 257}}) {
      const std::size_t n = static_cast<std::size_t>(rows * columns);
      auto x = Draw(1, n);
      for (float& v : x) v *= 6.0f;
      const auto dy = Draw(2, n);
      for (const Activation a : {Activation::kLinear, Activation::kRelu, Activation::kTanh,
                                 Activation::kSigmoid, Activation::kSoftmax}) {
        std::vector<double> want(n), want_dx(n);
        for (std::size_t i = 0; i < n; ++i) want[i] = Act(a, x[i]);
        for (std::int64_t r = 0; a == Activation::kSoftmax && r < rows; ++r) {
          double sum = 0, dot = 0;
          const std::size_t begin = static_cast<std::size_t>(r * columns),
                            end = begin + static_cast<std::size_t>(columns);
          for (std::size_t i = begin; i < end; ++i) sum += std::exp(static_cast<double>(x[i]));
          for (std::size_t i = begin; i < end; ++i)
            want[i] = std::exp(static_cast<double>(x[i])) / sum, dot += want[i] * dy[i];
          for (std::size_t i = begin; i < end; ++i) want_dx[i] = want[i] * (dy[i] - dot);
        }
        for (std::size_t i = 0; a != Activation::kSoftmax && i < n; ++i) {
          const double slope = a == Activation::kRelu      ? (want[i] > 0 ? 1 : 0)
                               : a == Activation::kTanh    ? 1 - want[i] * want[i]
                               : a == Activation::kSigmoid ? want[i] * (1 - want[i])
                                                           : 1;
          want_dx[i] = slope * dy[i];
        }
        std::vector<float> y(n, std::nanf("")), dx(n, std::nanf(""));
        backend.ActivationForward(a, rows, columns, x, y);
        CheckClose(y, want, 1e-6 * (a == Activation::kRelu || a == Activation::kLinear ? 0 : 1));
        backend.ActivationBackward(a, rows, columns, y, dy, dx);
        CheckClose(dx, want_dx, 2e-6);
        std::vector<float> in_place = x, gradient_in_place = dy;
        backend.ActivationForward(a, rows, columns, in_place, in_place);
        CHECK(SameBits(in_place, y));
        backend.ActivationBackward(a, rows, columns, y, gradient_in_place, gradient_in_place);
        CHECK(SameBits(gradient_in_place, dx));
      }
    }
  });
}

TEST_CASE(
    "the bits of an activation do not depend on the position of an element in memory or in the "
    "array") {
  ForEachBackend([](Backend& backend) {
    std::vector<float> x(41, 0.7310586f), y(41);
    for (const Activation a : {Activation::kTanh, Activation::kSigmoid}) {
      for (std::size_t offset = 0; offset < 9; ++offset) {
        const std::size_t n = x.size() - offset;
        backend.ActivationForward(a, 1, static_cast<std::int64_t>(n), In(x).subspan(offset),
                                  Out(y).subspan(offset));
        for (std::size_t i = offset; i < x.size(); ++i) CHECK(y[i] == y[offset]);
        CHECK(y[offset] == y[x.size() - 1]);
      }
    }
  });
}

TEST_CASE("every primitive gives the same bits on every call, also on a new backend") {
  for (const Implementation& implementation : Implementations()) {
    const Conv2dShape s = Conv(16, 14, 13, 16, 32, 3, 3, 1, 1, 1, 1, 1, 1);
    const ConvData d(s);
    const std::int64_t in = 800, out = 128, batch = 32;
    const auto x = Draw(5, static_cast<std::size_t>(batch * in)),
               w = Draw(6, static_cast<std::size_t>(in * out)),
               dy = Draw(7, static_cast<std::size_t>(batch * out));
    std::vector<std::vector<float>> first;
    for (int round = 0; round < 3; ++round) {
      auto backend = implementation.make();
      REQUIRE(backend.ok());
      for (int call = 0; call < 3; ++call) {
        std::vector<std::vector<float>> got = {
            std::vector<float>(d.dy.size()), std::vector<float>(d.x.size()),
            std::vector<float>(d.w.size()),  std::vector<float>(d.b.size()),
            std::vector<float>(dy.size()),   std::vector<float>(x.size()),
            std::vector<float>(w.size()),    std::vector<float>(static_cast<std::size_t>(out)),
            std::vector<float>(dy.size())};
        (*backend)->Conv2dForward(s, d.x, d.w, d.b, Activation::kRelu, got[0]);
        std::vector<float> spoilt = d.dy;
        (*backend)->Conv2dBackward(s, d.x, d.w, Activation::kRelu, got[0], spoilt, got[1], got[2],
                                   got[3]);
        (*backend)->DenseForward(batch, in, out, x, w, {}, Activation::kTanh, got[4]);
        spoilt = dy;
        (*backend)->DenseBackward(batch, in, out, x, w, Activation::kTanh, got[4], spoilt, got[5],
                                  got[6], got[7]);
        (*backend)->ActivationForward(Activation::kSoftmax, batch, out, dy, got[8]);
        if (first.empty()) first = got;
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(SameBits(got[i], first[i]));
      }
    }
  }
}

TEST_CASE(
    "dropout's mask depends only on key and element, is equal on every backend, and has mean 1") {
  const std::size_t n = 100003;
  std::vector<float> ones(n, 1.0f), first(n);
  const std::vector<std::uint64_t> key = {42}, other_key = {43};
  bool have_first = false;
  ForEachBackend([&](Backend& backend) {
    for (const double rate : {0.1, 0.5, 0.9}) {
      std::vector<float> y(n, std::nanf("")), again(n), other(n);
      backend.Dropout(rate, key, ones, y);
      std::int64_t kept = 0;
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const bool keep = random::Uniform(42, i) >= rate;
        if (y[i] != (keep ? static_cast<float>(1.0 / (1.0 - rate)) : 0.0f)) FAIL("element " << i);
        kept += keep ? 1 : 0;
        sum += y[i];
      }
      // This is the standard error of the fraction of elements that dropout keeps.
      const double deviation = std::sqrt(rate * (1 - rate) / static_cast<double>(n));
      CHECK(std::abs(static_cast<double>(kept) / static_cast<double>(n) - (1 - rate)) <
            4 * deviation);
      CHECK(sum / static_cast<double>(n) == Approx(1.0).margin(4 * deviation / (1 - rate)));
      backend.Dropout(rate, key, ones, again);
      CHECK(SameBits(y, again));
      backend.Dropout(rate, other_key, ones, other);
      CHECK_FALSE(SameBits(y, other));
      if (rate == 0.5) {
        if (!have_first) first = y, have_first = true;
        CHECK(SameBits(y, first));
      }
    }
  });
}

TEST_CASE("every primitive propagates a NaN or infinity in any operand to its result") {
  ForEachBackend([](Backend& backend) {
    const float nan = std::nanf("");
    const auto has_nan = [](const std::vector<float>& values) {
      return std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
    };
    for (const Activation a : {Activation::kLinear, Activation::kRelu, Activation::kTanh,
                               Activation::kSigmoid, Activation::kSoftmax}) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{5}, std::size_t{18}}) {
        std::vector<float> x = Draw(1, 19), y(19);
        x[at] = nan;
        backend.ActivationForward(a, 1, 19, x, y);
        CHECK(std::isnan(y[at]));
        if (a == Activation::kLinear) continue;  // its backward pass does not read y
        std::vector<float> dx(19);
        backend.ActivationBackward(a, 1, 19, y, Draw(2, 19), dx);
        CHECK(std::isnan(dx[at]));
      }
    }
    for (const Activation a : {Activation::kLinear, Activation::kRelu}) {
      for (const Conv2dShape& s : ConvShapes()) {
        ConvData d(s);
        d.w[0] = nan;
        std::vector<float> y(d.dy.size());
        backend.Conv2dForward(s, d.x, d.w, d.b, a, y);
        CHECK(has_nan(y));
        d = ConvData(s);
        d.x.back() = d.x.front() = nan;
        d.x[d.x.size() / 2] = nan;
        backend.Conv2dForward(s, d.x, d.w, d.b, a, y);
        CHECK(has_nan(y));
        // The operands are finite. Their partial sums overflow in both directions, which gives Inf
        // - Inf, that is, NaN.
        d = ConvData(s);
        for (std::size_t i = 0; i < d.w.size(); ++i)
          d.w[i] = i / static_cast<std::size_t>(s.filters) % 2 == 0 ? 3e38f : -3e38f;
        std::fill(d.x.begin(), d.x.end(), 1e3f);
        backend.Conv2dForward(s, d.x, d.w, d.b, Activation::kLinear, y);
        const auto diverged = [&y] {
          return std::count_if(y.begin(), y.end(), [](float v) {
            return std::isnan(v) || v == std::numeric_limits<float>::infinity();
          });
        };
        const auto want = diverged();
        backend.Conv2dForward(s, d.x, d.w, d.b, a, y);
        CHECK(diverged() == want);
      }
      std::vector<float> x = Draw(1, 20), w = Draw(2, 40), y(8);
      w[39] = nan;
      backend.DenseForward(2, 10, 4, x, w, {}, a, y);
      CHECK(has_nan(y));
    }
    const PoolShape s = Pool(1, 4, 4, 3, 2, 2, 2, 2, 0, 0, 0, 0);
    for (std::size_t at = 0; at < 48; ++at) {
      std::vector<float> x = Draw(1, 48), y(12);
      x[at] = nan;
      std::vector<std::int32_t> argmax(12);
      backend.MaxPoolForward(s, x, y, argmax);
      CHECK(has_nan(y));
      CHECK(std::count(argmax.begin(), argmax.end(), static_cast<std::int32_t>(at)) == 1);
    }
  });
}

TEST_CASE("saturated activations stay finite") {
  ForEachBackend([](Backend& backend) {
    std::vector<float> x = {-1e30f, -200.0f, -88.5f, 0.0f, 88.5f, 200.0f, 1e30f}, y(7);
    for (const Activation a : {Activation::kTanh, Activation::kSigmoid, Activation::kSoftmax}) {
      backend.ActivationForward(a, 1, 7, x, y);
      for (const float v : y) CHECK(std::isfinite(v));
      CHECK(y[6] == 1.0f);
    }
  });
}

TEST_CASE("results stay correct with more shapes than the cache holds") {
  ForEachBackend([](Backend& backend) {
    for (std::int64_t batch = 1; batch <= 300; ++batch) {
      const Conv2dShape s = Conv(batch, 2, 2, 1, 1, 2, 2, 1, 1, 0, 0, 0, 0);
      const ConvData d(s);
      std::vector<float> y(static_cast<std::size_t>(batch));
      backend.Conv2dForward(s, d.x, d.w, d.b, Activation::kLinear, y);
      const std::size_t last = static_cast<std::size_t>(batch - 1);
      double want = d.b[0];
      for (std::size_t i = 0; i < 4; ++i) want += static_cast<double>(d.x[last * 4 + i]) * d.w[i];
      if (std::abs(y[last] - want) > 1e-5) FAIL("batch " << batch);
    }
  });
}

TEST_CASE("MakeBackend refuses an impossible backend by name") {
  const auto gpu = MakeBackend({"gpu", 1, false, "/nowhere/libevergrad_cuda.so"});
  CHECK(gpu.status().message() ==
        "device gpu is not usable: /nowhere/libevergrad_cuda.so does not exist");
  CHECK(BlameOf(gpu.status()) == Blame::kUser);
  const auto unknown = MakeBackend({"tpu", 1});
  CHECK(unknown.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(unknown.status().message() == "unknown device: want=auto, cpu, gpu or gpu:N got=tpu");
  CHECK(BlameOf(unknown.status()) == Blame::kUser);
  for (const int threads : {0, -1, 1025}) {
    const auto refused = MakeBackend({"cpu", threads});
    CHECK(refused.status().message() ==
          "threads out of range: want=1..1024 got=" + std::to_string(threads));
  }
}

struct NormShape {
  std::int64_t rows, columns;
};
// The shapes have one row, one column, odd sizes, or several blocks of partial sums. A block has
// 65,536 elements, and the last block is shorter.
const std::vector<NormShape>& NormShapes() {
  static const std::vector<NormShape> shapes = {{1, 3}, {7, 1}, {5, 17}, {3000, 64}, {70001, 3}};
  return shapes;
}

// Draws numbers far from zero. A variance that is computed from sums of squares would lose its
// significant digits with such numbers.
std::vector<float> DrawAround(std::uint64_t key, std::size_t n, float centre) {
  std::vector<float> values = Draw(key, n);
  for (float& v : values) v += centre;
  return values;
}

TEST_CASE(
    "batch normalization equals its definition forward and backward, with and without gamma and "
    "beta") {
  ForEachBackend([](Backend& backend) {
    for (const NormShape& s : NormShapes()) {
      INFO(s.rows << " x " << s.columns);
      const std::size_t n = static_cast<std::size_t>(s.rows * s.columns),
                        columns = static_cast<std::size_t>(s.columns);
      const std::vector<float> x = DrawAround(1, n, 300), gamma = Draw(2, columns),
                               beta = Draw(3, columns), dy = Draw(4, n);
      for (const bool affine : {true, false}) {
        constexpr double kEpsilon = 1e-3;
        const In g = affine ? In(gamma) : In(), b = affine ? In(beta) : In();
        std::vector<double> mean(columns), variance(columns), want_y(n), want_dx(n),
            dgamma(columns), dbeta(columns);
        const double rows = static_cast<double>(s.rows);
        for (std::size_t i = 0; i < n; ++i) mean[i % columns] += x[i] / rows;
        for (std::size_t i = 0; i < n; ++i)
          variance[i % columns] += std::pow(x[i] - mean[i % columns], 2) / rows;
        const auto normal = [&](std::size_t i) {
          return (x[i] - mean[i % columns]) / std::sqrt(variance[i % columns] + kEpsilon);
        };
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t c = i % columns;
          want_y[i] = normal(i) * (affine ? gamma[c] : 1.0) + (affine ? beta[c] : 0.0);
          dbeta[c] += dy[i];
          dgamma[c] += dy[i] * normal(i);
        }
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t c = i % columns;
          want_dx[i] = (affine ? gamma[c] : 1.0) / std::sqrt(variance[c] + kEpsilon) *
                       (dy[i] - dbeta[c] / rows - normal(i) * dgamma[c] / rows);
        }
        std::vector<float> m(columns, std::nanf("")), v(m), y(n, std::nanf("")), dx(y),
            dg(affine ? columns : 0, std::nanf("")), db(dg);
        backend.BatchNormForward(s.rows, s.columns, kEpsilon, x, g, b, m, v, y);
        CheckClose(m, mean, 3e-5);
        CheckClose(v, variance, 3e-5);
        CheckClose(y, want_y, s.rows == 1 ? 1e-3 : 2e-4);
        backend.BatchNormBackward(s.rows, s.columns, kEpsilon, x, g, m, v, dy, dx, dg, db);
        CheckClose(dx, want_dx, s.rows == 1 ? 1e-2 : 2e-4);
        if (affine) {
          for (std::size_t c = 0; c < columns; ++c) {
            CHECK(dg[c] == Approx(dgamma[c]).epsilon(1e-4).margin(2e-3));
            CHECK(db[c] == Approx(dbeta[c]).epsilon(1e-4).margin(1e-4));
          }
        }
        std::vector<float> again(n), told(n);
        backend.BatchNormForward(s.rows, s.columns, kEpsilon, x, g, b, m, v, again);
        CHECK(SameBits(y, again));
        backend.BatchNormInference(s.rows, s.columns, kEpsilon, x, g, b, m, v, told);
        CHECK(SameBits(y, told));
        // If the gradient for the input is not requested, the other gradients must have the same
        // bits.
        std::vector<float> dg2(dg.size()), db2(db.size());
        backend.BatchNormBackward(s.rows, s.columns, kEpsilon, x, g, m, v, dy, {}, dg2, db2);
        CHECK((SameBits(dg, dg2) && SameBits(db, db2)));
      }
    }
  });
}

TEST_CASE(
    "layer normalization equals its definition forward and backward, with and without gamma and "
    "beta") {
  ForEachBackend([](Backend& backend) {
    for (const NormShape& s : NormShapes()) {
      INFO(s.rows << " x " << s.columns);
      const std::size_t n = static_cast<std::size_t>(s.rows * s.columns),
                        columns = static_cast<std::size_t>(s.columns),
                        rows = static_cast<std::size_t>(s.rows);
      const std::vector<float> x = DrawAround(1, n, 30), gamma = Draw(2, columns),
                               beta = Draw(3, columns), dy = Draw(4, n);
      for (const bool affine : {true, false}) {
        constexpr double kEpsilon = 1e-3;
        const In g = affine ? In(gamma) : In(), b = affine ? In(beta) : In();
        std::vector<double> want_y(n), want_dx(n), dgamma(columns), dbeta(columns);
        for (std::size_t r = 0; r < rows; ++r) {
          double mean = 0, variance = 0, sum = 0, products = 0;
          for (std::size_t c = 0; c < columns; ++c)
            mean += x[r * columns + c] / static_cast<double>(columns);
          for (std::size_t c = 0; c < columns; ++c)
            variance += std::pow(x[r * columns + c] - mean, 2) / static_cast<double>(columns);
          const double inverse = 1 / std::sqrt(variance + kEpsilon);
          for (std::size_t c = 0; c < columns; ++c) {
            const std::size_t i = r * columns + c;
            const double normal = (x[i] - mean) * inverse,
                         scaled = dy[i] * (affine ? gamma[c] : 1.0);
            want_y[i] = normal * (affine ? gamma[c] : 1.0) + (affine ? beta[c] : 0.0);
            dbeta[c] += dy[i], dgamma[c] += dy[i] * normal, sum += scaled,
                products += scaled * normal;
          }
          for (std::size_t c = 0; c < columns; ++c) {
            const std::size_t i = r * columns + c;
            want_dx[i] = inverse * (dy[i] * (affine ? gamma[c] : 1.0) -
                                    (sum + (x[i] - mean) * inverse * products) /
                                        static_cast<double>(columns));
          }
        }
        std::vector<float> m(rows), v(rows), y(n, std::nanf("")), dx(y),
            dg(affine ? columns : 0, std::nanf("")), db(dg);
        backend.LayerNormForward(s.rows, s.columns, kEpsilon, x, g, b, m, v, y);
        CheckClose(y, want_y, 1e-4);
        backend.LayerNormBackward(s.rows, s.columns, kEpsilon, x, g, m, v, dy, dx, dg, db);
        CheckClose(dx, want_dx, 1e-3);
        if (affine) {
          for (std::size_t c = 0; c < columns; ++c) {
            CHECK(dg[c] == Approx(dgamma[c]).epsilon(1e-4).margin(2e-3));
            CHECK(db[c] == Approx(dbeta[c]).epsilon(1e-4).margin(1e-4));
          }
        }
        std::vector<float> again(n);
        backend.LayerNormForward(s.rows, s.columns, kEpsilon, x, g, b, m, v, again);
        CHECK(SameBits(y, again));
      }
    }
  });
}

TEST_CASE("global average pooling equals its definition and divides its gradient evenly") {
  ForEachBackend([](Backend& backend) {
    for (const auto& [batch, positions, channels] :
         std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {3, 49, 17}, {40, 7, 640}}) {
      const std::size_t outputs = static_cast<std::size_t>(batch * channels),
                        inputs = outputs * static_cast<std::size_t>(positions);
      const std::vector<float> x = Draw(1, inputs), dy = Draw(2, outputs);
      std::vector<double> want(outputs), want_dx(inputs);
      const std::size_t p = static_cast<std::size_t>(positions),
                        c = static_cast<std::size_t>(channels);
      for (std::size_t i = 0; i < inputs; ++i) {
        const std::size_t o = i / (p * c) * c + i % c;
        want[o] += x[i] / static_cast<double>(positions);
        want_dx[i] = dy[o] / static_cast<double>(positions);
      }
      std::vector<float> y(outputs, std::nanf("")), dx(inputs, std::nanf(""));
      backend.GlobalAveragePoolForward(batch, positions, channels, x, y);
      CheckClose(y, want, 1e-6);
      backend.GlobalAveragePoolBackward(batch, positions, channels, dy, dx);
      CheckClose(dx, want_dx, 1e-6);
    }
  });
}

TEST_CASE("a NaN in the input reaches all outputs of normalization for its channel or row") {
  ForEachBackend([](Backend& backend) {
    std::vector<float> x = Draw(1, 6);
    x[2] = std::nanf("");  // row 1 of 3, column 0 of 2
    std::vector<float> m(2), v(2), y(6), rows_m(3), rows_v(3);
    backend.BatchNormForward(3, 2, 1e-3, x, {}, {}, m, v, y);
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(y[i]) == (i % 2 == 0));
    backend.LayerNormForward(3, 2, 1e-3, x, {}, {}, rows_m, rows_v, y);
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(y[i]) == (i / 2 == 1));
    std::vector<float> pooled(2);
    backend.GlobalAveragePoolForward(1, 3, 2, x, pooled);
    CHECK((std::isnan(pooled[0]) && !std::isnan(pooled[1])));
  });
}

}  // namespace
}  // namespace evergrad::worker
