#include "ps_server/optimizer/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"

// from and to are the same array or disjoint, so no element depends on another: without this the compiler takes its slow
// path exactly when an update is in place.
#if defined(__clang__)
#define EG_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EG_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace evergrad::ps_server::optimizer {
namespace {

absl::Status OutOfRange(absl::string_view type, absl::string_view name, double value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer number out of range: type=", type, " ", name, "=", value, " want=", want));
}

// Squaring and multiplying only: the C library's pow may differ in the last bit between processors.
double Power(double base, std::uint64_t n) {
  double result = 1;
  for (; n != 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

void Sgd(float rate, const Run& r) {
  const float *g = r.gradient, *w = r.value_from;
  float* out = r.value_to;
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) out[i] = w[i] - rate * g[i];
}

void Momentum(float rate, float momentum, const Run& r) {
  const float *g = r.gradient, *w = r.value_from, *v = r.slot_from[0];
  float *out = r.value_to, *v_out = r.slot_to[0];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) {
    const float next = momentum * v[i] - rate * g[i];
    v_out[i] = next;
    out[i] = w[i] + next;
  }
}

void Nesterov(float rate, float momentum, const Run& r) {
  const float *g = r.gradient, *w = r.value_from, *v = r.slot_from[0];
  float *out = r.value_to, *v_out = r.slot_to[0];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) {
    const float next = momentum * v[i] - rate * g[i];
    v_out[i] = next;
    out[i] = w[i] + (momentum * next - rate * g[i]);
  }
}

void Adam(float rate, float one_minus_beta_1, float one_minus_beta_2, float epsilon, const Run& r) {
  const float *g = r.gradient, *w = r.value_from, *m = r.slot_from[0], *v = r.slot_from[1];
  float *out = r.value_to, *m_out = r.slot_to[0], *v_out = r.slot_to[1];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) {
    const float m_next = m[i] + (g[i] - m[i]) * one_minus_beta_1;
    const float v_next = v[i] + (g[i] * g[i] - v[i]) * one_minus_beta_2;
    m_out[i] = m_next;
    v_out[i] = v_next;
    out[i] = w[i] - rate * m_next / (std::sqrt(v_next) + epsilon);
  }
}

void Counting(const Run& r) {
  const float *g = r.gradient, *w = r.value_from, *s = r.slot_from[0];
  float *out = r.value_to, *s_out = r.slot_to[0];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < r.size; ++i) {
    s_out[i] = s[i] + 2 * g[i];
    out[i] = w[i] + g[i];
  }
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const OptimizerSettings& settings) {
  Optimizer o;
  if (settings.type == "counting") {
    o.kind_ = Kind::kCounting;
    o.slots_ = 1;
    return o;
  }
  if (settings.type != "sgd" && settings.type != "adam") {
    return absl::InvalidArgumentError(absl::StrCat("unknown optimizer, expected sgd, adam or counting: type=", settings.type.substr(0, 64)));
  }
  if (!std::isfinite(static_cast<float>(settings.learning_rate)) || settings.learning_rate < 0) {
    return OutOfRange(settings.type, "learning_rate", settings.learning_rate, "a finite number >= 0");
  }
  o.learning_rate_ = settings.learning_rate;
  if (settings.type == "sgd") {
    if (!(settings.momentum >= 0 && settings.momentum <= 1)) return OutOfRange("sgd", "momentum", settings.momentum, "0 to 1");
    o.momentum_ = static_cast<float>(settings.momentum);
    // Nesterov without momentum is plain sgd by its own formula: the term that it adds is zero.
    o.kind_ = settings.momentum == 0 ? Kind::kSgd : settings.nesterov ? Kind::kNesterov : Kind::kMomentum;
    o.slots_ = settings.momentum == 0 ? 0 : 1;
    return o;
  }
  if (!(settings.beta_1 >= 0 && settings.beta_1 < 1)) return OutOfRange("adam", "beta_1", settings.beta_1, "0 to below 1");
  if (!(settings.beta_2 >= 0 && settings.beta_2 < 1)) return OutOfRange("adam", "beta_2", settings.beta_2, "0 to below 1");
  if (!(static_cast<float>(settings.epsilon) > 0) || !std::isfinite(static_cast<float>(settings.epsilon))) {
    return OutOfRange("adam", "epsilon", settings.epsilon, "a finite number > 0");
  }
  o.kind_ = Kind::kAdam;
  o.slots_ = 2;
  o.beta_1_ = settings.beta_1;
  o.beta_2_ = settings.beta_2;
  o.one_minus_beta_1_ = static_cast<float>(1.0 - settings.beta_1);
  o.one_minus_beta_2_ = static_cast<float>(1.0 - settings.beta_2);
  o.epsilon_ = static_cast<float>(settings.epsilon);
  return o;
}

Optimizer::Step Optimizer::Begin(std::uint64_t t) const {
  if (kind_ != Kind::kAdam) return {static_cast<float>(learning_rate_)};
  return {static_cast<float>(learning_rate_ * std::sqrt(1.0 - Power(beta_2_, t)) / (1.0 - Power(beta_1_, t)))};
}

void Optimizer::Apply(const Step& step, const Run& run) const {
  switch (kind_) {
    case Kind::kSgd: return Sgd(step.rate, run);
    case Kind::kMomentum: return Momentum(step.rate, momentum_, run);
    case Kind::kNesterov: return Nesterov(step.rate, momentum_, run);
    case Kind::kAdam: return Adam(step.rate, one_minus_beta_1_, one_minus_beta_2_, epsilon_, run);
    case Kind::kCounting: return Counting(run);
  }
}

}  // namespace evergrad::ps_server::optimizer
