// The launches of each operation of cuda_ops.h, written once for the device and for the emulation
// on the host.
//
// A Launcher has these functions, which return a kind (0 for ok). A count of 0 launches nothing.
//   int32_t Map(std::int64_t count, Op op)            op(i) for each i below count
//   int32_t Teams<Warp or Block>(count, Op op)        a team for each i below count
//   int32_t Zero(void* to, bytes), Copy(to, from, bytes)
//   int32_t Sort(keys, values, sorted_keys, sorted_values, n, bits, scratch)
//                                                     a stable sort by key
#pragma once

#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/columns.h"
#include "worker/backend/cuda/kernels/elementwise.h"
#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/losses.h"
#include "worker/backend/cuda/kernels/rows.h"
#include "worker/backend/cuda/kernels/windows.h"

namespace evergrad::cuda {

// Returns from the calling function with the error of `expression`, if there is one.
#define EG_LAUNCH(expression)                     \
  do {                                            \
    const std::int32_t eg_failed_ = (expression); \
    if (eg_failed_ != 0) return eg_failed_;       \
  } while (0)

inline constexpr std::int64_t kWarpColumnsMax = 1024;  // longer rows use a block

// Launches one team per row, of a width that suits the length of a row.
template <typename L, typename Op>
std::int32_t Rows(L& l, std::int64_t rows, std::int64_t columns, const Op& op) {
  return columns <= kWarpColumnsMax ? l.template Teams<kWarp>(rows, op)
                                    : l.template Teams<kBlock>(rows, op);
}

template <int kInputs, bool kReads, typename L, typename F, typename X, typename Y>
std::int32_t Elementwise(L& l, std::int64_t n, F f, const X* const (&inputs)[kInputs], Y* y) {
  const Chain<kInputs, kReads, F, X, Y> chain(f, n, inputs, y);
  return l.Map(chain.threads(), chain);
}

// Launches an operation for elements of the type that its arguments name, as By<T>(l, a).
#define EG_BY_TYPE(Arguments)                      \
  template <typename L>                            \
  std::int32_t Launch(L& l, const Arguments& a) {  \
    switch (a.type) {                              \
      case EG_FLOAT16: return By<Float16>(l, a);   \
      case EG_BFLOAT16: return By<BFloat16>(l, a); \
      default: return By<float>(l, a);             \
    }                                              \
  }
// Does the same for two types, as By<X, Y>. No operation mixes the two 16-bit types.
#define EG_BY_TYPES(Arguments)                                             \
  template <typename L>                                                    \
  std::int32_t Launch(L& l, const Arguments& a) {                          \
    const bool from = a.x_type != EG_FLOAT32, to = a.y_type != EG_FLOAT32; \
    if (!from && !to) return By<float, float>(l, a);                       \
    if ((from ? a.x_type : a.y_type) == EG_FLOAT16)                        \
      return from && to ? By<Float16, Float16>(l, a)                       \
             : from     ? By<Float16, float>(l, a)                         \
                        : By<float, Float16>(l, a);                            \
    return from && to ? By<BFloat16, BFloat16>(l, a)                       \
           : from     ? By<BFloat16, float>(l, a)                          \
                      : By<float, BFloat16>(l, a);                             \
  }

// If a column has more parts than this, a block adds the parts, because there are few columns then.
// Otherwise a warp adds the parts.
inline constexpr std::int64_t kWarpPartsMax = 256;

template <int kSums, typename L, typename Term, typename Finish>
std::int32_t Columns(L& l, std::int64_t rows, std::int64_t columns, double* scratch, Term term,
                     Finish finish) {
  const ColumnPartsMap<kSums, Term> parts(rows, columns, scratch, term);
  EG_LAUNCH(l.Map(parts.threads(), parts));
  const ColumnFinishTeam<kSums, Finish> finishing{columns, parts.parts, scratch, finish};
  return parts.parts <= kWarpPartsMax ? l.template Teams<kWarp>(columns, finishing)
                                      : l.template Teams<kBlock>(columns, finishing);
}

// ---- elementwise.cu

template <typename T, typename L>
std::int32_t By(L& l, const EgActivate& a) {
  return Elementwise<1, false>(l, a.n, ActivateF{a.activation}, {As<T>(a.x)}, As<T>(a.y));
}
EG_BY_TYPE(EgActivate)
template <typename T, typename L>
std::int32_t By(L& l, const EgActivateBack& a) {
  return Elementwise<2, false>(l, a.n, ActivateBackF{a.activation}, {As<T>(a.y), As<T>(a.dy)},
                               As<T>(a.dx));
}
EG_BY_TYPE(EgActivateBack)
template <typename T, typename L>
std::int32_t By(L& l, const EgDropout& a) {
  const DropoutMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgDropout)
template <typename L>
std::int32_t Launch(L& l, const EgZero& a) {
  return a.bytes == 0 ? 0 : l.Zero(a.to, a.bytes);
}
template <typename X, typename Y, typename L>
std::int32_t By(L& l, const EgCast& a) {
  if (sizeof(X) == sizeof(Y))
    return a.n == 0 ? 0 : l.Copy(a.y, a.x, sizeof(X) * static_cast<std::uint64_t>(a.n));
  return Elementwise<1, false>(l, a.n, CastF{}, {As<X>(a.x)}, As<Y>(a.y));
}
EG_BY_TYPES(EgCast)
template <typename X, typename Y, typename L>
std::int32_t By(L& l, const EgScale& a) {
  if (a.add != 0)
    return Elementwise<1, true>(l, a.n, AddScaledF{a.factor}, {As<X>(a.x)}, As<Y>(a.y));
  return Elementwise<1, false>(l, a.n, ScaleF{a.factor}, {As<X>(a.x)}, As<Y>(a.y));
}
EG_BY_TYPES(EgScale)
template <typename X, typename Y, typename L>
std::int32_t By(L& l, const EgSum& a) {
  const SumMap<X, Y> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPES(EgSum)
template <typename T, typename L>
std::int32_t By(L& l, const EgMultiply& a) {
  return Elementwise<2, false>(l, a.n, MultiplyF{}, {As<T>(a.a), As<T>(a.b)}, As<T>(a.y));
}
EG_BY_TYPE(EgMultiply)
template <typename T, typename L>
std::int32_t By(L& l, const EgCopyColumns& a) {
  constexpr std::int64_t kWide = kAccess<T>;
  const auto whole = [](std::int64_t n) { return n % kWide == 0; };
  if (whole(a.width) && whole(a.x_columns) && whole(a.x_begin) && whole(a.y_columns) &&
      whole(a.y_begin) && Aligned(a.x) && Aligned(a.y)) {
    const EgCopyColumns pieces{a.rows,
                               a.width / kWide,
                               a.x_columns / kWide,
                               a.x_begin / kWide,
                               a.y_columns / kWide,
                               a.y_begin / kWide,
                               a.x,
                               a.y,
                               a.type,
                               0};
    return l.Map(a.rows * pieces.width, CopyColumnsMap<Pack<T, kWide>>{pieces});
  }
  return l.Map(a.rows * a.width, CopyColumnsMap<T>{a});
}
EG_BY_TYPE(EgCopyColumns)
template <typename X, typename Y, typename L>
std::int32_t By(L& l, const EgTranspose& a) {
  return l.Map(a.rows * a.columns, TransposeMap<X, Y>{a});
}
EG_BY_TYPES(EgTranspose)
template <typename T, typename L>
std::int32_t By(L& l, const EgPad& a) {
  const PadMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgPad)
template <typename T, typename L>
std::int32_t By(L& l, const EgBiasActivate& a) {
  const BiasActivateMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgBiasActivate)
template <typename T, typename L>
std::int32_t By(L& l, const EgNotFinite& a) {
  const NotFiniteMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgNotFinite)
template <typename T, typename L>
std::int32_t By(L& l, const EgMaxPool& a) {
  const MaxPoolMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgMaxPool)
template <typename T, typename L>
std::int32_t By(L& l, const EgMaxPoolBack& a) {
  const MaxPoolBackMap<T> map(a);
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgMaxPoolBack)
template <typename T, typename L>
std::int32_t By(L& l, const EgAveragePool& a) {
  return l.Map(a.batch * a.channels, AveragePoolMap<T>{a});
}
EG_BY_TYPE(EgAveragePool)
template <typename T, typename L>
std::int32_t By(L& l, const EgAveragePoolBack& a) {
  return l.Map(a.batch * a.positions * a.channels, AveragePoolBackMap<T>{a});
}
EG_BY_TYPE(EgAveragePoolBack)

// ---- rows.cu

template <typename T, typename L>
std::int32_t By(L& l, const EgSoftmax& a) {
  return Rows(l, a.rows, a.columns, SoftmaxTeam<T>{a});
}
EG_BY_TYPE(EgSoftmax)
template <typename T, typename L>
std::int32_t By(L& l, const EgSoftmaxBack& a) {
  return Rows(l, a.rows, a.columns, SoftmaxBackTeam<T>{a});
}
EG_BY_TYPE(EgSoftmaxBack)
template <typename T, typename L>
std::int32_t By(L& l, const EgLayerNorm& a) {
  return Rows(l, a.rows, a.columns, LayerNormTeam<T>{a});
}
EG_BY_TYPE(EgLayerNorm)
template <typename L>
std::int32_t Launch(L& l, const EgDot& a) {
  return Rows(l, a.batch, a.elements, DotTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgDotBack& a) {
  return Rows(l, a.batch, a.elements, DotBackTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgSquares& a) {
  const std::int64_t parts = DivideUp(a.n, kElementsPerPart);
  EG_LAUNCH(l.template Teams<kBlock>(parts, SquaresPartTeam{a}));
  return l.template Teams<kBlock>(1, PartsTeam{a.scratch, parts, a.sum});
}
template <typename L>
std::int32_t Launch(L& l, const EgLoss& a) {
  EG_LAUNCH(l.template Teams<kWarp>(a.batch, LossTeam{a}));
  return l.Map(1, LossSumMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgAuc& a) {
  return l.template Teams<kWarp>(2 * a.bins, AucTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgMeanSquares& a) {
  EG_LAUNCH(l.template Teams<kWarp>(a.batch, MeanSquaresTeam{a}));
  return l.Map(1, OrderedSumMap{a.scratch, a.batch, a.sum});
}

// ---- columns.cu

template <typename T, typename L>
std::int32_t By(L& l, const EgColumnSums& a) {
  return Columns<1>(l, a.rows, a.columns, a.scratch, SumTerm<T>{As<T>(a.x), a.columns},
                    StoreSum{a.y, 1});
}
EG_BY_TYPE(EgColumnSums)
template <typename T, typename L>
std::int32_t By(L& l, const EgBatchNormInference& a) {
  const RowsOfChannelsMap<BatchNormApply<T>, T> map(a.rows, a.channels, {a});
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgBatchNormInference)
template <typename T, typename L>
std::int32_t By(L& l, const EgBatchNorm& a) {
  EG_LAUNCH(
      Columns<2>(l, a.rows, a.channels, a.scratch, MomentsTerm<T>{As<T>(a.x), a.channels},
                 StoreMoments<T>{As<T>(a.x), a.mean, a.variance, static_cast<double>(a.rows)}));
  return By<T>(l, EgBatchNormInference{a.rows, a.channels, a.epsilon, a.x, a.gamma, a.beta, a.mean,
                                       a.variance, a.y, a.type, 0});
}
EG_BY_TYPE(EgBatchNorm)
template <typename T, typename L>
std::int32_t By(L& l, const EgBatchNormBack& a) {
  double* const sums = a.scratch + ColumnScratch(a.rows, a.channels, 2) / 8;
  EG_LAUNCH(
      Columns<2>(l, a.rows, a.channels, a.scratch, BatchNormBackTerm<T>{a},
                 StoreNormSums{a.dgamma, a.dbeta, sums, a.channels, static_cast<double>(a.rows)}));
  if (a.dx == nullptr) return 0;
  const RowsOfChannelsMap<BatchNormBackApply<T>, T> map(a.rows, a.channels, {a, sums});
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgBatchNormBack)
template <typename T, typename L>
std::int32_t By(L& l, const EgLayerNormBack& a) {
  if (a.dgamma != nullptr || a.dbeta != nullptr)
    EG_LAUNCH(Columns<2>(l, a.rows, a.columns, a.scratch, LayerNormBackTerm<T>{a},
                         StoreNormSums{a.dgamma, a.dbeta, nullptr, a.columns, 1}));
  return a.dx == nullptr ? 0 : Rows(l, a.rows, a.columns, LayerNormBackTeam<T>{a});
}
EG_BY_TYPE(EgLayerNormBack)

// ---- embedding.cu

template <typename L>
std::int32_t Launch(L& l, const EgFactorization& a) {
  return Rows(l, a.batch, a.dimension, FactorizationTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgFactorizationBack& a) {
  return l.Map(a.batch * a.fields * a.dimension, FactorizationBackMap{a});
}
template <typename T, typename L>
std::int32_t By(L& l, const EgGather& a) {
  const GatherMap<T> map{a};
  return l.Map(map.threads(), map);
}
EG_BY_TYPE(EgGather)
template <typename T, typename L>
std::int32_t By(L& l, const EgScatter& a) {
  const std::int64_t n = a.s.batch * a.s.ids;
  if (n == 0) return 0;
  const ScatterScratch at = ScatterScratch::Of(a.s.batch, a.s.ids, L::SortBytes(n));
  char* const base = static_cast<char*>(a.scratch);
  const auto ids = [&](std::int64_t offset) {
    return reinterpret_cast<std::uint32_t*>(base + offset);
  };
  double* const scales = reinterpret_cast<double*>(base + at.scales);
  EG_LAUNCH(l.Map(n, ScatterKeysMap{a, ids(at.keys), ids(at.values)}));
  EG_LAUNCH(l.Map(a.s.batch, BagScaleMap{a, scales}));
  int bits = 1;
  while (bits < 32 && (a.rows >> bits) != 0) ++bits;
  EG_LAUNCH(l.Sort(ids(at.keys), ids(at.values), ids(at.sorted_keys), ids(at.sorted_values), n,
                   bits, base + at.sort));
  return l.template Teams<kWarp>(
      n, ScatterTeam<T>{a, ids(at.sorted_keys), ids(at.sorted_values), scales});
}
EG_BY_TYPE(EgScatter)

#undef EG_BY_TYPES
#undef EG_BY_TYPE
#undef EG_LAUNCH

}  // namespace evergrad::cuda
