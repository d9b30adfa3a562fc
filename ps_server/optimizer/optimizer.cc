#include "ps_server/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ps_server/optimizer/portable_pow.h"
#include "ps_server/optimizer/prefetch.h"

// from and to are the same array or disjoint, so no element depends on another: without this the
// compiler takes its slow path exactly when an update is in place.
#if defined(__clang__)
#define EG_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EG_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace evergrad::ps_server::optimizer {
namespace {

absl::Status OutOfRange(absl::string_view type, absl::string_view name, double value,
                        absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer number out of range: type=", type, " ",
                                                 name, "=", value, " want=", want));
}

// Squaring and multiplying only: the C library's pow may differ in the last bit between processors.
double Power(double base, std::uint64_t n) {
  double result = 1;
  for (; n != 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// ---------------------------------------------------------------- one element: (gradient, value,
// slot 0, slot 1), all in place
//
// A rule with kSlots < 2 gets dummies for the rest, which the compiler drops.

struct Sgd {
  static constexpr int kSlots = 0;
  float rate;
  void operator()(float g, float& w, float&, float&) const { w = w - rate * g; }
};

struct Momentum {
  static constexpr int kSlots = 1;
  float rate, momentum;
  void operator()(float g, float& w, float& v, float&) const {
    v = momentum * v - rate * g;
    w = w + v;
  }
};

struct Nesterov {
  static constexpr int kSlots = 1;
  float rate, momentum;
  void operator()(float g, float& w, float& v, float&) const {
    v = momentum * v - rate * g;
    w = w + (momentum * v - rate * g);
  }
};

struct Adam {
  static constexpr int kSlots = 2;
  float rate, one_minus_beta_1, one_minus_beta_2, epsilon;
  void operator()(float g, float& w, float& m, float& v) const {
    m = m + (g - m) * one_minus_beta_1;
    v = v + (g * g - v) * one_minus_beta_2;
    w = w - rate * m / (std::sqrt(v) + epsilon);
  }
};

struct AdamW {
  static constexpr int kSlots = 2;
  float rate, one_minus_beta_1, one_minus_beta_2, epsilon, decay;
  void operator()(float g, float& w, float& m, float& v) const {
    m = m + (g - m) * one_minus_beta_1;
    v = v + (g * g - v) * one_minus_beta_2;
    w = w - w * decay;
    w = w - rate * m / (std::sqrt(v) + epsilon);
  }
};

struct Adagrad {
  static constexpr int kSlots = 1;
  float rate, epsilon;
  void operator()(float g, float& w, float& a, float&) const {
    a = a + g * g;
    w = w - rate * g / (std::sqrt(a) + epsilon);
  }
};

struct Rmsprop {
  static constexpr int kSlots = 1;
  float rate, rho, one_minus_rho, epsilon;
  void operator()(float g, float& w, float& rms, float&) const {
    rms = rho * rms + one_minus_rho * (g * g);
    w = w - rate * g / (std::sqrt(rms) + epsilon);
  }
};

struct RmspropMomentum {
  static constexpr int kSlots = 2;
  float rate, momentum, one_minus_rho, epsilon;
  void operator()(float g, float& w, float& rms, float& v) const {
    rms = rms + (g * g - rms) * one_minus_rho;
    v = momentum * v + rate * g / std::sqrt(rms + epsilon);
    w = w - v;
  }
};

struct Ftrl {
  static constexpr int kSlots = 2;
  float rate, l1, two_l2;
  void operator()(float g, float& w, float& a, float& linear) const {
    const float next = a + g * g;
    const float power = std::sqrt(next);
    linear = linear + (g - (power - std::sqrt(a)) / rate * w);
    a = next;
    // (sign(linear) l1 - linear) / (power / rate + 2 l2), and 0 where |linear| <= l1: without a
    // branch, so that it is vectorised. (No gradient yet and no initial accumulator: 0 / 0 is 0.)
    const float beyond = std::fabs(linear) - l1, divisor = power / rate + two_l2;
    w = -std::copysign(beyond > 0.0f ? beyond : 0.0f, linear) / (divisor > 0.0f ? divisor : 1.0f);
  }
};

struct FtrlPower {
  static constexpr int kSlots = 2;
  float rate, l1, two_l2;
  double minus_power;
  void operator()(float g, float& w, float& a, float& linear) const {
    const float next = a + g * g;
    const float power = PortablePow(next, minus_power);
    linear = linear + (g - (power - PortablePow(a, minus_power)) / rate * w);
    a = next;
    // (sign(linear) l1 - linear) / (power / rate + 2 l2), and 0 where |linear| <= l1: without a
    // branch, so that it is vectorised. (No gradient yet and no initial accumulator: 0 / 0 is 0.)
    const float beyond = std::fabs(linear) - l1, divisor = power / rate + two_l2;
    w = -std::copysign(beyond > 0.0f ? beyond : 0.0f, linear) / (divisor > 0.0f ? divisor : 1.0f);
  }
};

// Keras' batch normalisation: assign_moving_average. The "gradient" is the value that it moves
// towards.
struct MovingAverage {
  static constexpr int kSlots = 0;
  float one_minus_momentum;
  void operator()(float g, float& w, float&, float&) const { w = w - (w - g) * one_minus_momentum; }
};

struct Counting {
  static constexpr int kSlots = 1;
  void operator()(float g, float& w, float& s, float&) const {
    s = s + 2 * g;
    w = w + g;
  }
};

// ---------------------------------------------------------------- runs of a dense shard

template <class Rule>
void ApplyRun(const Rule rule, const Run& r) {
  const float *g = r.gradient, *w = r.value_from, *a = r.slot_from[0], *b = r.slot_from[1];
  float *w_out = r.value_to, *a_out = r.slot_to[0], *b_out = r.slot_to[1];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) {
    float value = w[i], first = 0, second = 0;
    if constexpr (Rule::kSlots > 0) first = a[i];
    if constexpr (Rule::kSlots > 1) second = b[i];
    rule(g[i], value, first, second);
    w_out[i] = value;
    if constexpr (Rule::kSlots > 0) a_out[i] = first;
    if constexpr (Rule::kSlots > 1) b_out[i] = second;
  }
}

// ---------------------------------------------------------------- rows of a table

class Ahead {
 public:
  Ahead(const Rows& r, std::size_t numbers)
      : rows_(r), bytes_((r.dimension + numbers) * sizeof(float)) {}
  void Ask(std::size_t i) const {
    if (i < rows_.next_count) PrefetchRow<1>(rows_.next[i], bytes_);
  }
  void AskRest() const {
    for (std::size_t i = rows_.count; i < rows_.next_count; ++i) Ask(i);
  }

 private:
  const Rows& rows_;
  const std::size_t bytes_;
};

// kDimension 0: any. A dimension that the compiler knows needs no loop.
template <std::size_t kDimension, class Rule>
inline void ApplyRow(const Rule& rule, std::size_t dimension, const float* __restrict g,
                     float* __restrict w) {
  const std::size_t n = kDimension == 0 ? dimension : kDimension;
  float* __restrict a = w + n;
  float* __restrict b = a + n;
  EG_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) {
    float value = w[i], first = 0, second = 0;
    if constexpr (Rule::kSlots > 0) first = a[i];
    if constexpr (Rule::kSlots > 1) second = b[i];
    rule(g[i], value, first, second);
    w[i] = value;
    if constexpr (Rule::kSlots > 0) a[i] = first;
    if constexpr (Rule::kSlots > 1) b[i] = second;
  }
}

// `rule_of(i)`: the rule of row i.
template <std::size_t kDimension, class RuleOf>
void ApplyRowsOf(const Rows& r, RuleOf rule_of) {
  const std::size_t dimension = kDimension == 0 ? r.dimension : kDimension;
  const Ahead ahead(r, std::decay_t<decltype(rule_of(0))>::kSlots * dimension);
  for (std::size_t i = 0; i < r.count; ++i) {
    ahead.Ask(i);
    const auto rule = rule_of(i);
    ApplyRow<kDimension>(rule, dimension, r.gradients[i], r.rows[i]);
  }
  ahead.AskRest();
}

template <class RuleOf>
void ApplyRowsBy(const Rows& r, RuleOf rule_of) {
  switch (r.dimension) {
    case 8: return ApplyRowsOf<8>(r, rule_of);
    case 16: return ApplyRowsOf<16>(r, rule_of);
    case 32: return ApplyRowsOf<32>(r, rule_of);
    case 64: return ApplyRowsOf<64>(r, rule_of);
    default: return ApplyRowsOf<0>(r, rule_of);
  }
}

// The mean of the squares in eight sums, so that every vector width adds in this order.
float MeanSquare(const float* g, std::size_t n) {
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

void ApplyRowwiseAdagrad(float learning_rate, float epsilon, const Rows& r) {
  const Ahead ahead(r, 1);
  for (std::size_t i = 0; i < r.count; ++i) {
    ahead.Ask(i);
    float* __restrict w = r.rows[i];
    const float* __restrict g = r.gradients[i];
    float& accumulator = w[r.dimension];
    accumulator = accumulator + MeanSquare(g, r.dimension);
    const float denominator = std::sqrt(accumulator) + epsilon;
    for (std::size_t k = 0; k < r.dimension; ++k) w[k] = w[k] - learning_rate * g[k] / denominator;
  }
  ahead.AskRest();
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const optimizers::Settings& settings) {
  Optimizer o;
  const std::string& type = settings.type;
  if (type == "counting") {
    o.kind_ = Kind::kCounting;
    o.slots_ = 1;
    return o;
  }
  if (type == "moving_average") {
    if (!(settings.momentum >= 0 && settings.momentum < 1))
      return OutOfRange(type, "momentum", settings.momentum, "0 to below 1");
    o.kind_ = Kind::kMovingAverage;
    o.one_minus_momentum_ = static_cast<float>(1.0 - settings.momentum);
    return o;
  }
  static constexpr const char* kTypes[] = {"sgd",     "adam", "adamw", "adagrad", "rowwise_adagrad",
                                           "rmsprop", "ftrl"};
  if (std::none_of(std::begin(kTypes), std::end(kTypes),
                   [&](const char* known) { return type == known; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown optimizer, expected sgd, adam, adamw, adagrad, rowwise_adagrad, "
                     "rmsprop, ftrl, moving_average or counting: type=",
                     type.substr(0, 64)));
  }
  const auto not_negative = [](double x) { return std::isfinite(static_cast<float>(x)) && x >= 0; };
  if (!not_negative(settings.learning_rate))
    return OutOfRange(type, "learning_rate", settings.learning_rate, "a finite number >= 0");
  o.learning_rate_ = settings.learning_rate;
  const bool is_adam = type == "adam" || type == "adamw",
             is_adagrad = type == "adagrad" || type == "rowwise_adagrad";
  if (type == "sgd" || type == "rmsprop") {
    if (!(settings.momentum >= 0 && settings.momentum <= 1))
      return OutOfRange(type, "momentum", settings.momentum, "0 to 1");
    o.momentum_ = static_cast<float>(settings.momentum);
  }
  if (is_adam || is_adagrad || type == "rmsprop") {
    if (!(static_cast<float>(settings.epsilon) > 0) ||
        !std::isfinite(static_cast<float>(settings.epsilon)))
      return OutOfRange(type, "epsilon", settings.epsilon, "a finite number > 0");
    o.epsilon_ = static_cast<float>(settings.epsilon);
  }
  if (is_adagrad || type == "ftrl") {
    if (!not_negative(settings.initial_accumulator_value))
      return OutOfRange(type, "initial_accumulator_value", settings.initial_accumulator_value,
                        "a finite number >= 0");
    o.first_initial_ = static_cast<float>(settings.initial_accumulator_value);
  }
  if (type == "sgd") {
    // Nesterov without momentum is plain sgd by its own formula: the term that it adds is zero.
    o.kind_ = settings.momentum == 0 ? Kind::kSgd
              : settings.nesterov    ? Kind::kNesterov
                                     : Kind::kMomentum;
    o.slots_ = settings.momentum == 0 ? 0 : 1;
  } else if (is_adam) {
    if (!(settings.beta_1 >= 0 && settings.beta_1 < 1))
      return OutOfRange(type, "beta_1", settings.beta_1, "0 to below 1");
    if (!(settings.beta_2 >= 0 && settings.beta_2 < 1))
      return OutOfRange(type, "beta_2", settings.beta_2, "0 to below 1");
    o.kind_ = type == "adam" ? Kind::kAdam : Kind::kAdamW;
    o.slots_ = 2;
    o.beta_1_ = settings.beta_1;
    o.beta_2_ = settings.beta_2;
    o.one_minus_beta_1_ = static_cast<float>(1.0 - settings.beta_1);
    o.one_minus_beta_2_ = static_cast<float>(1.0 - settings.beta_2);
    if (type == "adamw") {
      if (!not_negative(settings.weight_decay))
        return OutOfRange(type, "weight_decay", settings.weight_decay, "a finite number >= 0");
      o.decay_ = static_cast<float>(settings.weight_decay * settings.learning_rate);
    }
  } else if (type == "rmsprop") {
    if (!(settings.rho >= 0 && settings.rho < 1))
      return OutOfRange(type, "rho", settings.rho, "0 to below 1");
    o.kind_ = settings.momentum == 0 ? Kind::kRmsprop : Kind::kRmspropMomentum;
    o.slots_ = settings.momentum == 0 ? 1 : 2;
    o.rho_ = static_cast<float>(settings.rho);
    o.one_minus_rho_ = static_cast<float>(1.0 - settings.rho);
  } else if (type == "ftrl") {
    if (!(static_cast<float>(settings.learning_rate) > 0))
      return OutOfRange(type, "learning_rate", settings.learning_rate, "a finite number > 0");
    if (!(settings.learning_rate_power <= 0 && settings.learning_rate_power >= -64))
      return OutOfRange(type, "learning_rate_power", settings.learning_rate_power, "-64 to 0");
    if (!not_negative(settings.l1_regularization_strength))
      return OutOfRange(type, "l1_regularization_strength", settings.l1_regularization_strength,
                        "a finite number >= 0");
    if (!not_negative(settings.l2_regularization_strength))
      return OutOfRange(type, "l2_regularization_strength", settings.l2_regularization_strength,
                        "a finite number >= 0");
    if (!not_negative(settings.beta))
      return OutOfRange(type, "beta", settings.beta, "a finite number >= 0");
    o.kind_ = settings.learning_rate_power == -0.5 ? Kind::kFtrl : Kind::kFtrlPower;
    o.slots_ = 2;
    o.minus_power_ = -settings.learning_rate_power;
    o.l1_ = static_cast<float>(settings.l1_regularization_strength);
    o.two_l2_ = static_cast<float>(2 * settings.l2_regularization_strength +
                                   settings.beta / settings.learning_rate);
  } else {
    o.kind_ = type == "adagrad" ? Kind::kAdagrad : Kind::kRowwiseAdagrad;
    o.slots_ = type == "adagrad" ? 1 : 0;
  }
  return o;
}

Optimizer::Step Optimizer::Begin(std::uint64_t t) const {
  if (!counts_per_row()) return {static_cast<float>(learning_rate_)};
  return {static_cast<float>(learning_rate_ * std::sqrt(1.0 - Power(beta_2_, t)) /
                             (1.0 - Power(beta_1_, t)))};
}

void Optimizer::FillRowNumbers(std::size_t dimension, float* numbers) const {
  if (for_tables_only()) {
    numbers[0] = first_initial_;
    return;
  }
  for (int k = 0; k < slots_; ++k, numbers += dimension)
    std::fill_n(numbers, dimension, slot_initial(k));
}

template <class With>
void Optimizer::WithRule(const Step& step, With with) const {
  switch (kind_) {
    case Kind::kSgd: return with(Sgd{step.rate});
    case Kind::kMomentum: return with(Momentum{step.rate, momentum_});
    case Kind::kNesterov: return with(Nesterov{step.rate, momentum_});
    case Kind::kAdam: return with(Adam{step.rate, one_minus_beta_1_, one_minus_beta_2_, epsilon_});
    case Kind::kAdamW:
      return with(AdamW{step.rate, one_minus_beta_1_, one_minus_beta_2_, epsilon_, decay_});
    case Kind::kAdagrad: return with(Adagrad{step.rate, epsilon_});
    case Kind::kRmsprop: return with(Rmsprop{step.rate, rho_, one_minus_rho_, epsilon_});
    case Kind::kRmspropMomentum:
      return with(RmspropMomentum{step.rate, momentum_, one_minus_rho_, epsilon_});
    case Kind::kFtrl: return with(Ftrl{step.rate, l1_, two_l2_});
    case Kind::kFtrlPower: return with(FtrlPower{step.rate, l1_, two_l2_, minus_power_});
    case Kind::kMovingAverage: return with(MovingAverage{one_minus_momentum_});
    case Kind::kCounting: return with(Counting{});
    case Kind::kRowwiseAdagrad: EG_CHECK_MSG(false, "rowwise_adagrad has no rule for one element");
  }
}

void Optimizer::Apply(const Step& step, const Run& run) const {
  WithRule(step, [&](auto rule) { ApplyRun(rule, run); });
}

void Optimizer::ApplyRows(const Rows& rows) const {
  if (for_tables_only())
    return ApplyRowwiseAdagrad(static_cast<float>(learning_rate_), epsilon_, rows);
  WithRule(Begin(1), [&](auto rule) {
    if constexpr (requires { rule.one_minus_beta_1; }) {
      std::uint32_t t = 1;
      ApplyRowsBy(rows, [&, rule](std::size_t i) mutable {
        if (rows.t[i] != t) rule.rate = Begin(t = rows.t[i]).rate;
        return rule;
      });
    } else {
      ApplyRowsBy(rows, [rule](std::size_t) { return rule; });
    }
  });
}

}  // namespace evergrad::ps_server::optimizer
