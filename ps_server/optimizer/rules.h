// The update rules: one struct for each formula of README.md. Optimizer (optimizer.h) chooses a
// rule by a job's settings, and runs the rule over dense shards and rows of tables. Private to this
// room.
//
// A rule is a value that holds the constants of its formula (such as the learning rate), rounded to
// float32. There are two kinds. A rule of elements is called with (gradient, value, state 0, state
// 1) of one element and changes the last three. The rule has kStates states; the remaining state
// arguments are dummies, which the compiler drops. The call is compiled into the loops of
// optimizer.cc, so the rule must be branchless to be vectorised. A rule of rows has UpdateRow,
// which changes the values and the state of one row of a table.
//
// A rule with At(t) depends on t, the number of gradients that were applied, including the present
// one: 1, 2, ... At must be a pure function of t and of the settings, so that every partition of a
// variable and every replay give the same bits. Rules use only operations that are correctly
// rounded on every processor: + - * /, square roots and PortablePow, and never pow, exp or log of
// the C library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/optimizers/settings.h"
#include "ps_server/optimizer/portable_pow.h"

namespace evergrad::ps_server::optimizer {

// Returns base^n, computed by squaring and multiplying.
inline double Power(double base, std::uint64_t n) {
  double result = 1;
  for (; n != 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

struct Sgd {
  static constexpr int kStates = 0;
  float rate = 0;
  void operator()(float g, float& w, float&, float&) const { w = w - rate * g; }
};

struct Momentum {
  static constexpr int kStates = 1;
  float rate, momentum;
  void operator()(float g, float& w, float& v, float&) const {
    v = momentum * v - rate * g;
    w = w + v;
  }
};

struct Nesterov {
  static constexpr int kStates = 1;
  float rate, momentum;
  void operator()(float g, float& w, float& v, float&) const {
    v = momentum * v - rate * g;
    w = w + (momentum * v - rate * g);
  }
};

// The learning rate of adam and adamw, corrected for moments that begin with 0.
struct AdamRate {
  double learning_rate, beta_1, beta_2;
  float At(std::uint64_t t) const {
    return static_cast<float>(learning_rate * std::sqrt(1.0 - Power(beta_2, t)) /
                              (1.0 - Power(beta_1, t)));
  }
};

struct Adam {
  static constexpr int kStates = 2;
  AdamRate corrected;
  float one_minus_beta_1, one_minus_beta_2, epsilon, rate = 0;
  void At(std::uint64_t t) { rate = corrected.At(t); }
  void operator()(float g, float& w, float& m, float& v) const {
    m = m + (g - m) * one_minus_beta_1;
    v = v + (g * g - v) * one_minus_beta_2;
    w = w - rate * m / (std::sqrt(v) + epsilon);
  }
};

struct AdamW {
  static constexpr int kStates = 2;
  AdamRate corrected;
  float one_minus_beta_1, one_minus_beta_2, epsilon, decay, rate = 0;
  void At(std::uint64_t t) { rate = corrected.At(t); }
  void operator()(float g, float& w, float& m, float& v) const {
    m = m + (g - m) * one_minus_beta_1;
    v = v + (g * g - v) * one_minus_beta_2;
    w = w - w * decay;
    w = w - rate * m / (std::sqrt(v) + epsilon);
  }
};

// Keras' Nadam: adam with Nesterov's momentum, whose decay mu follows a schedule over t.
struct Nadam {
  static constexpr int kStates = 2;
  double learning_rate, beta_1, beta_2;
  float one_minus_beta_1, one_minus_beta_2, epsilon;
  float gradient_rate = 0, moment_rate = 0, correction = 0;  // valid for t

  // Keras keeps the product of mu(1) ... mu(t) as a variable of the optimizer. Here the product is
  // computed from t, so that no shard or row needs a state for it.
  void At(std::uint64_t t) {
    const double next = Mu(Power(kDecay, t + 1)), product = ProductOfMu(t);
    gradient_rate =
        static_cast<float>(learning_rate * (1.0 - Mu(Power(kDecay, t))) / (1.0 - product));
    moment_rate = static_cast<float>(learning_rate * next / (1.0 - product * next));
    correction = static_cast<float>(1.0 / std::sqrt(1.0 - Power(beta_2, t)));
  }
  void operator()(float g, float& w, float& m, float& v) const {
    m = m + (g - m) * one_minus_beta_1;
    v = v + (g * g - v) * one_minus_beta_2;
    w = w - (gradient_rate * g + moment_rate * m) / (std::sqrt(v) * correction + epsilon);
  }

 private:
  // 0.96^0.004, where 0.004 is Keras' schedule_decay.
  static constexpr double kDecay = 0.99983672535256527842;
  // Each of the first 64 factors mu is below 0.506. For t >= 64 the product is therefore below
  // 2^-62, and 1 - product is 1 in float64.
  static constexpr std::uint64_t kProductMax = 64;

  double Mu(double decay_to_t) const { return beta_1 * (1.0 - 0.5 * decay_to_t); }
  double ProductOfMu(std::uint64_t t) const {
    if (t >= kProductMax) return 0;
    double product = 1, decay = 1;
    for (std::uint64_t i = 1; i <= t; ++i) {
      decay *= kDecay;
      product *= Mu(decay);
    }
    return product;
  }
};

struct Adagrad {
  static constexpr int kStates = 1;
  float rate, epsilon;
  void operator()(float g, float& w, float& a, float&) const {
    a = a + g * g;
    w = w - rate * g / (std::sqrt(a) + epsilon);
  }
};

// A row has one accumulator after its values: the sum of the means of its squared gradients.
struct RowwiseAdagrad {
  static constexpr int kStates = 0;
  float rate, epsilon;
  void UpdateRow(std::size_t dimension, const float* __restrict g, float* __restrict w) const {
    float& accumulator = w[dimension];
    accumulator = accumulator + MeanSquare(g, dimension);
    const float denominator = std::sqrt(accumulator) + epsilon;
    for (std::size_t k = 0; k < dimension; ++k) w[k] = w[k] - rate * g[k] / denominator;
  }

 private:
  // Returns the mean of the squares. The squares are added into eight partial sums. The order of
  // the additions is then the same for every vector width of the processor.
  static float MeanSquare(const float* g, std::size_t n) {
    float sums[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      for (std::size_t k = 0; k < 8; ++k) sums[k] += g[i + k] * g[i + k];
    }
    for (std::size_t k = 0; i < n; ++i, ++k) sums[k] += g[i] * g[i];
    const float even = (sums[0] + sums[4]) + (sums[2] + sums[6]),
                odd = (sums[1] + sums[5]) + (sums[3] + sums[7]);
    return (even + odd) / static_cast<float>(n);
  }
};

struct Rmsprop {
  static constexpr int kStates = 1;
  float rate, rho, one_minus_rho, epsilon;
  void operator()(float g, float& w, float& rms, float&) const {
    rms = rho * rms + one_minus_rho * (g * g);
    w = w - rate * g / (std::sqrt(rms) + epsilon);
  }
};

struct RmspropMomentum {
  static constexpr int kStates = 2;
  float rate, momentum, one_minus_rho, epsilon;
  void operator()(float g, float& w, float& rms, float& v) const {
    rms = rms + (g * g - rms) * one_minus_rho;
    v = momentum * v + rate * g / std::sqrt(rms + epsilon);
    w = w - v;
  }
};

// The value that both rules of ftrl choose: (sign(linear) l1 - linear) / (power / rate + 2 l2), and
// 0 if |linear| <= l1. The code has no branch, so that it can be vectorised. If the initial
// accumulator is 0 and all gradients so far were 0, the quotient is 0 / 0, and the value is 0.
struct FtrlValue {
  float rate, l1, two_l2;
  float operator()(float linear, float power) const {
    const float beyond = std::fabs(linear) - l1, divisor = power / rate + two_l2;
    return -std::copysign(beyond > 0.0f ? beyond : 0.0f, linear) /
           (divisor > 0.0f ? divisor : 1.0f);
  }
};

struct Ftrl {
  static constexpr int kStates = 2;
  FtrlValue value;
  void operator()(float g, float& w, float& a, float& linear) const {
    const float next = a + g * g;
    const float power = std::sqrt(next);
    linear = linear + (g - (power - std::sqrt(a)) / value.rate * w);
    a = next;
    w = value(linear, power);
  }
};

struct FtrlPower {
  static constexpr int kStates = 2;
  FtrlValue value;
  double minus_power;
  void operator()(float g, float& w, float& a, float& linear) const {
    const float next = a + g * g;
    const float power = PortablePow(next, minus_power);
    linear = linear + (g - (power - PortablePow(a, minus_power)) / value.rate * w);
    a = next;
    w = value(linear, power);
  }
};

// The moving average of Keras' batch normalization (assign_moving_average). The "gradient" of an
// update is the value towards which the variable moves.
struct MovingAverage {
  static constexpr int kStates = 0;
  float one_minus_momentum;
  void operator()(float g, float& w, float&, float&) const { w = w - (w - g) * one_minus_momentum; }
};

struct Counting {
  static constexpr int kStates = 1;
  void operator()(float g, float& w, float& s, float&) const {
    s = s + 2 * g;
    w = w + g;
  }
};

using Rule = std::variant<Sgd, Momentum, Nesterov, Adam, AdamW, Nadam, Adagrad, RowwiseAdagrad,
                          Rmsprop, RmspropMomentum, Ftrl, FtrlPower, MovingAverage, Counting>;

template <class R>
concept OfRows = requires(const R& rule) {
  rule.UpdateRow(std::size_t{}, nullptr, nullptr);
};
template <class R>
concept CountsGradients = requires(R& rule) {
  rule.At(std::uint64_t{});
};

// Returns the rule for settings that have passed optimizers::Check. The caller must call At before
// it uses a rule that has At.
Rule RuleOf(const optimizers::Settings& settings);

}  // namespace evergrad::ps_server::optimizer
