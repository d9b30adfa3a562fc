#include "ps_server/optimizer/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/optimizers/registry.h"
#include "ps_server/optimizer/prefetch.h"

// `from` and `to` are the same array or disjoint, so no element depends on another. Without this
// pragma the compiled code would check at run time whether the arrays overlap. In an update in
// place they do, so the code would run a loop that is not vectorised.
#if defined(__clang__)
#define EG_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EG_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace evergrad::ps_server::optimizer {
namespace {

// ---------------------------------------------------------------- elements of a dense shard

template <class R>
void ApplySpan(const R rule, const ElementSpan& s) {
  const float *g = s.gradient, *w = s.value_from, *a = s.state_from[0], *b = s.state_from[1];
  float *w_out = s.value_to, *a_out = s.state_to[0], *b_out = s.state_to[1];
  EG_INDEPENDENT
  for (std::size_t i = 0; i < s.size; ++i) {
    float value = w[i], first = 0, second = 0;
    if constexpr (R::kStates > 0) first = a[i];
    if constexpr (R::kStates > 1) second = b[i];
    rule(g[i], value, first, second);
    w_out[i] = value;
    if constexpr (R::kStates > 0) a_out[i] = first;
    if constexpr (R::kStates > 1) b_out[i] = second;
  }
}

// ---------------------------------------------------------------- rows of a table

class Ahead {
 public:
  Ahead(const Rows& r, std::size_t state)
      : rows_(r), bytes_((r.dimension + state) * sizeof(float)) {}
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

// kDimension 0 means any dimension. With a constant dimension the compiler can unroll the loop.
template <std::size_t kDimension, class R>
inline void ApplyRow(const R& rule, std::size_t dimension, const float* __restrict g,
                     float* __restrict w) {
  const std::size_t n = kDimension == 0 ? dimension : kDimension;
  float* __restrict a = w + n;
  float* __restrict b = a + n;
  EG_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) {
    float value = w[i], first = 0, second = 0;
    if constexpr (R::kStates > 0) first = a[i];
    if constexpr (R::kStates > 1) second = b[i];
    rule(g[i], value, first, second);
    w[i] = value;
    if constexpr (R::kStates > 0) a[i] = first;
    if constexpr (R::kStates > 1) b[i] = second;
  }
}

// `rule_of(i)` returns the rule of row i.
template <std::size_t kDimension, class RowRule>
void ApplyRowsOf(const Rows& r, RowRule rule_of) {
  const std::size_t dimension = kDimension == 0 ? r.dimension : kDimension;
  const Ahead ahead(r, std::decay_t<decltype(rule_of(0))>::kStates * dimension);
  for (std::size_t i = 0; i < r.count; ++i) {
    ahead.Ask(i);
    const auto rule = rule_of(i);
    ApplyRow<kDimension>(rule, dimension, r.gradients[i], r.rows[i]);
  }
  ahead.AskRest();
}

template <class RowRule>
void ApplyRowsBy(const Rows& r, RowRule rule_of) {
  switch (r.dimension) {
    case 8: return ApplyRowsOf<8>(r, rule_of);
    case 16: return ApplyRowsOf<16>(r, rule_of);
    case 32: return ApplyRowsOf<32>(r, rule_of);
    case 64: return ApplyRowsOf<64>(r, rule_of);
    default: return ApplyRowsOf<0>(r, rule_of);
  }
}

// Runs a rule of rows, which keeps `state` floats after the values of each row.
template <class R>
void ApplyWholeRows(const R rule, std::size_t state, const Rows& r) {
  const Ahead ahead(r, state);
  for (std::size_t i = 0; i < r.count; ++i) {
    ahead.Ask(i);
    rule.UpdateRow(r.dimension, r.gradients[i], r.rows[i]);
  }
  ahead.AskRest();
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const optimizers::Settings& settings) {
  EG_RETURN_IF_ERROR(optimizers::Check(settings));
  const optimizers::Descriptor& descriptor = *optimizers::Find(settings.type);
  Optimizer o;
  o.rule_ = RuleOf(settings);
  for (const optimizers::State& state : optimizers::StatesOf(settings)) {
    const int k = o.states_ + o.row_states_;
    EG_CHECK(k < kStatesMax);
    if (state.initial != nullptr) o.initial_[k] = static_cast<float>(settings.*state.initial);
    ++(state.one_per_row ? o.row_states_ : o.states_);
  }
  o.for_tables_only_ = descriptor.use == optimizers::Use::kTablesOnly;
  o.is_moving_average_ = descriptor.is_moving_average;
  o.counts_per_row_ = descriptor.counts_gradients;
  // The rule and the descriptor (common/optimizers) state the same properties twice. This check
  // fails if they differ.
  std::visit(
      [&]<class R>(const R&) {
        EG_CHECK_MSG(R::kStates == o.states_, settings.type);
        EG_CHECK_MSG(CountsGradients<R> == o.counts_per_row_, settings.type);
        EG_CHECK_MSG(OfRows<R> == o.for_tables_only_, settings.type);
      },
      o.rule_);
  return o;
}

Optimizer::Step Optimizer::Begin(std::uint64_t t) const {
  Step step{rule_};
  std::visit(
      [t]<class R>(R& rule) {
        if constexpr (CountsGradients<R>) rule.At(t);
      },
      step.rule);
  return step;
}

void Optimizer::FillRowState(std::size_t dimension, float* state) const {
  for (int k = 0; k < states_; ++k, state += dimension)
    std::fill_n(state, dimension, state_initial(k));
  for (int k = states_; k < states_ + row_states_; ++k) *state++ = state_initial(k);
}

void Optimizer::Apply(const Step& step, const ElementSpan& span) const {
  std::visit(
      [&]<class R>(const R& rule) {
        if constexpr (OfRows<R>)
          EG_CHECK_MSG(false, "the rule applies to rows, not to elements");
        else
          ApplySpan(rule, span);
      },
      step.rule);
}

void Optimizer::ApplyRows(const Rows& rows) const {
  std::visit(
      [&]<class R>(const R& rule) {
        if constexpr (OfRows<R>) {
          ApplyWholeRows(rule, state_per_row(rows.dimension), rows);
        } else if constexpr (CountsGradients<R>) {
          const std::uint32_t t = 1;
          R first = rule;
          first.At(t);
          ApplyRowsBy(rows, [&rows, t = t, r = first](std::size_t i) mutable {
            if (rows.t[i] != t) r.At(t = rows.t[i]);
            return r;
          });
        } else {
          ApplyRowsBy(rows, [r = rule](std::size_t) { return r; });
        }
      },
      rule_);
}

}  // namespace evergrad::ps_server::optimizer
