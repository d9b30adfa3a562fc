// Losses and metrics. A warp processes an example; its threads share the row (classes, or
// elements). The result of an example is stored in scratch memory. One thread adds the examples in
// order, because the contract fixes the order. This thread reads 24 bytes per example, several
// examples before it adds them. A batch of 8,192 examples takes about 50 µs (one addition of
// doubles after another), in parallel with the rest of a step. Logits are read three times
// (maximum, sum, gradient); the second and third reads are from the first-level cache.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

inline constexpr double kClip = 1e-7;  // Keras' backend.epsilon()

EG_HD double Clip(double p) { return p < kClip ? kClip : p > 1.0 - kClip ? 1.0 - kClip : p; }
EG_HD bool Clipped(double p) { return p < kClip || p > 1.0 - kClip; }

struct Largest {
  float value;
  std::int64_t at;
};
// Selects the first of the largest values.
struct FirstLargest {
  EG_HD Largest operator()(const Largest& a, const Largest& b) const {
    if (a.value > b.value) return a;
    if (b.value > a.value) return b;
    return a.at <= b.at ? a : b;
  }
};
struct LeastOf {
  EG_HD std::int64_t operator()(std::int64_t a, std::int64_t b) const { return Least(a, b); }
};

struct LossTeam {
  EgLoss a;
  static constexpr std::int64_t kNone = INT64_MAX;

  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t example) const {
    const ExampleLoss result =
        a.type == EG_SPARSE_CATEGORICAL ? Sparse(team, example) : Elements(team, example);
    team.Once([&] { static_cast<ExampleLoss*>(a.scratch)[example] = result; });
  }

  template <typename Team>
  EG_HD ExampleLoss Sparse(const Team& team, std::int64_t example) const {
    ExampleLoss result{0, 1, -1};
    const double scale = 1.0 / static_cast<double>(a.batch * a.rows);
    for (std::int64_t r = 0; r < a.rows; ++r) {
      const std::int64_t at = example * a.rows + r;
      const float label = a.labels[at];
      const float* const x = a.output + at * a.columns;
      float* const g = a.gradient == nullptr ? nullptr : a.gradient + at * a.columns;
      if (!(label >= 0 && label < static_cast<float>(a.columns)) || label != floorf(label)) {
        if (result.bad < 0) result.bad = at;
        if (g != nullptr) team.For(a.columns, [&](std::int64_t c) { g[c] = 0; });
        continue;
      }
      const std::int64_t index = static_cast<std::int64_t>(label);
      const Largest largest = team.Reduce(
          a.columns, Largest{x[0], 0},
          [&](std::int64_t c) {
            return Largest{x[c], c};
          },
          FirstLargest{});
      if (largest.at != index) result.correct = 0;
      if (a.from_logits != 0) {
        const double sum = team.Reduce(
            a.columns, 0.0,
            [&](std::int64_t c) { return static_cast<double>(expf(x[c] - largest.value)); },
            Plus{});
        result.loss += log(sum) - (static_cast<double>(x[index]) - largest.value);
        const double factor = scale / sum;
        if (g != nullptr)
          team.For(a.columns, [&](std::int64_t c) {
            const float p = static_cast<float>(expf(x[c] - largest.value) * factor);
            g[c] = c == index ? p - static_cast<float>(scale) : p;
          });
      } else {
        const double sum = team.Reduce(
            a.columns, 0.0, [&](std::int64_t c) { return Clip(x[c]); }, Plus{});
        result.loss += log(sum) - log(Clip(x[index]));
        if (g != nullptr)
          team.For(a.columns, [&](std::int64_t c) {
            const double slope = 1.0 / sum - (c == index ? 1.0 / Clip(x[c]) : 0.0);
            g[c] = Clipped(x[c]) ? 0.0f : static_cast<float>(scale * slope);
          });
      }
    }
    result.loss /= static_cast<double>(a.rows);
    if (a.accuracy == 0) result.correct = 0;
    return result;
  }

  template <typename Team>
  EG_HD ExampleLoss Elements(const Team& team, std::int64_t example) const {
    const std::int64_t n = a.rows * a.columns, begin = example * n;
    const double scale = 1.0 / static_cast<double>(a.batch * n);
    const bool binary = a.type == EG_BINARY;
    const double sum = team.Reduce(
        n, 0.0, [&](std::int64_t e) { return LossOf(a.output[begin + e], a.labels[begin + e]); },
        Plus{});
    ExampleLoss result{sum / static_cast<double>(n), 0, -1};
    if (binary) {
      const auto bad = [&](std::int64_t e) {
        const double t = a.labels[begin + e];
        return t >= 0 && t <= 1 ? kNone : begin + e;
      };
      const std::int64_t first = team.Reduce(n, kNone, bad, LeastOf{});
      if (first != kNone) result.bad = first;
      const auto wrong = [&](std::int64_t e) {
        const bool predicted = a.output[begin + e] > (a.from_logits != 0 ? 0.0f : 0.5f);
        return predicted == (a.labels[begin + e] > 0.5f) ? std::int64_t{0} : std::int64_t{1};
      };
      result.correct =
          a.accuracy != 0 && team.Reduce(n, std::int64_t{0}, wrong, Plus{}) == 0 ? 1 : 0;
    }
    if (a.gradient != nullptr)
      team.For(n, [&](std::int64_t e) {
        const double t = a.labels[begin + e];
        const bool good = !binary || (t >= 0 && t <= 1);
        a.gradient[begin + e] =
            good ? static_cast<float>(scale * SlopeOf(a.output[begin + e], t)) : 0.0f;
      });
    return result;
  }
  EG_HD double LossOf(double x, double t) const {
    if (a.type == EG_MEAN_SQUARED) return (x - t) * (x - t);
    if (a.from_logits != 0) return (x > 0 || x != x ? x : 0.0) - x * t + log1p(exp(-fabs(x)));
    const double p = Clip(x);  // Keras adds epsilon inside the logarithms, after clipping
    return -(t * log(p + kClip) + (1.0 - t) * log(1.0 - p + kClip));
  }
  EG_HD double SlopeOf(double x, double t) const {
    if (a.type == EG_MEAN_SQUARED) return 2.0 * (x - t);
    if (a.from_logits != 0) return 1.0 / (1.0 + exp(-x)) - t;
    if (Clipped(x)) return 0;
    const double p = Clip(x);
    return (1.0 - t) / (1.0 - p + kClip) - t / (p + kClip);
  }
};

// One thread adds in order. The thread reads kAtOnce values at a time, so it waits for memory only
// once per kAtOnce values.
inline constexpr int kAtOnce = 16;
struct LossSumMap {
  EgLoss a;
  EG_HD void operator()(std::int64_t) const {
    const ExampleLoss* const examples = static_cast<const ExampleLoss*>(a.scratch);
    EgLossResult result{0, 0, -1, 0};
    const auto add = [&result](const ExampleLoss& one) {
      result.sum += one.loss;
      result.correct += one.correct;
      if (result.bad_label < 0 && one.bad >= 0) result.bad_label = one.bad;
    };
    std::int64_t n = 0;
    for (; n + kAtOnce <= a.batch; n += kAtOnce) {
      ExampleLoss some[kAtOnce];
      EG_UNROLL
      for (int i = 0; i < kAtOnce; ++i) some[i] = examples[n + i];
      EG_UNROLL
      for (int i = 0; i < kAtOnce; ++i) add(some[i]);
    }
    for (; n < a.batch; ++n) add(examples[n]);
    if (result.bad_label >= 0) result.bad_value = a.labels[result.bad_label];
    *a.result = result;
  }
};

// Returns the bin of p, (b / bins, (b + 1) / bins].
EG_HD int AucBin(double x, bool from_logits, int bins) {
  const double p = from_logits ? 1.0 / (1.0 + exp(-x)) : x;
  const double bin = ceil(p * bins) - 1;
  // NaN is counted in the first bin.
  return bin > 0 ? static_cast<int>(bin < bins - 1 ? bin : bins - 1) : 0;
}

// One warp counts the positive or the negative elements of one bin. Each of the 398 warps reads
// every element. The first read brings an element into the second-level cache, where the other
// warps find it. A batch has a few thousand elements. Counts are integers, so the order has no
// effect.
struct AucTeam {
  EgAuc a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t i) const {
    const int bin = static_cast<int>(i % a.bins);
    const bool positive = i < a.bins;
    const auto one = [&](std::int64_t e) {
      const bool here = (a.labels[e] > 0.5f) == positive &&
                        AucBin(a.output[e], a.from_logits != 0, a.bins) == bin;
      return here ? std::int64_t{1} : std::int64_t{0};
    };
    const std::int64_t count = team.Reduce(a.n, std::int64_t{0}, one, Plus{});
    team.Once([&] { a.counts[i] = count; });
  }
};

struct MeanSquaresTeam {
  EgMeanSquares a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t n) const {
    const float *const x = a.output + n * a.elements, *const t = a.labels + n * a.elements;
    const auto square = [&](std::int64_t e) {
      const double difference = static_cast<double>(x[e]) - t[e];
      return difference * difference;
    };
    const double sum = team.Reduce(a.elements, 0.0, square, Plus{});
    team.Once([&] { a.scratch[n] = sum / static_cast<double>(a.elements); });
  }
};
struct OrderedSumMap {
  const double* parts;
  std::int64_t n;
  double* sum;
  EG_HD void operator()(std::int64_t) const {
    double all = 0;
    std::int64_t i = 0;
    for (; i + kAtOnce <= n; i += kAtOnce) {
      double some[kAtOnce];
      EG_UNROLL
      for (int k = 0; k < kAtOnce; ++k) some[k] = parts[i + k];
      EG_UNROLL
      for (int k = 0; k < kAtOnce; ++k) all += some[k];
    }
    for (; i < n; ++i) all += parts[i];
    *sum = all;
  }
};

}  // namespace evergrad::cuda
