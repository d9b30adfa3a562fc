// What each operation of cuda_ops.h launches, written once for the device and for the host's emulation of it.
//
// Launcher has
//   int32_t Map(std::int64_t count, Op op)            op(i) for each i below count
//   int32_t Teams<Warp or Block>(count, Op op)        a team for each i below count
//   int32_t Zero(void* to, bytes), Copy(to, from, bytes)
//   int32_t Sort(keys, values, sorted_keys, sorted_values, n, bits, scratch, scratch_bytes)   stable, by key
// each of which returns a kind (0: ok); a count of 0 launches nothing.
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

// The first error of two launches.
#define EG_LAUNCH(expression)                     \
  do {                                            \
    const std::int32_t eg_failed_ = (expression); \
    if (eg_failed_ != 0) return eg_failed_;       \
  } while (0)

inline constexpr std::int64_t kWarpColumnsMax = 1024;  // longer rows are a block's

// A team a row, of the width that its length wants.
template <typename L, typename Op>
std::int32_t Rows(L& l, std::int64_t rows, std::int64_t columns, const Op& op) {
  return columns <= kWarpColumnsMax ? l.template Teams<kWarp>(rows, op) : l.template Teams<kBlock>(rows, op);
}

template <int kInputs, bool kReads, typename L, typename F>
std::int32_t Elementwise(L& l, std::int64_t n, F f, const float* const (&inputs)[kInputs], float* y) {
  const Chain<kInputs, kReads, F> chain(f, n, inputs, y);
  return l.Map(chain.threads(), chain);
}

template <int kSums, typename L, typename Term, typename Finish>
std::int32_t Columns(L& l, std::int64_t rows, std::int64_t columns, double* scratch, Term term, Finish finish) {
  const ColumnPartsMap<kSums, Term> parts(rows, columns, scratch, term);
  EG_LAUNCH(l.Map(parts.threads(), parts));
  return l.template Teams<kWarp>(columns, ColumnFinishTeam<kSums, Finish>{columns, parts.parts, scratch, finish});
}

// ---- elementwise.cu

template <typename L>
std::int32_t Launch(L& l, const EgActivate& a) {
  return Elementwise<1, false>(l, a.n, ActivateF{a.activation}, {a.x}, a.y);
}
template <typename L>
std::int32_t Launch(L& l, const EgActivateBack& a) {
  return Elementwise<2, false>(l, a.n, ActivateBackF{a.activation}, {a.y, a.dy}, a.dx);
}
template <typename L>
std::int32_t Launch(L& l, const EgDropout& a) {
  const DropoutMap map(a);
  return l.Map(map.threads(), map);
}
template <typename L>
std::int32_t Launch(L& l, const EgZero& a) {
  return a.bytes == 0 ? 0 : l.Zero(a.to, a.bytes);
}
template <typename L>
std::int32_t Launch(L& l, const EgCopyFloats& a) {
  return a.n == 0 ? 0 : l.Copy(a.y, a.x, sizeof(float) * static_cast<std::uint64_t>(a.n));
}
template <typename L>
std::int32_t Launch(L& l, const EgScale& a) {
  if (a.add != 0) return Elementwise<1, true>(l, a.n, AddScaledF{a.factor}, {a.x}, a.y);
  return Elementwise<1, false>(l, a.n, ScaleF{a.factor}, {a.x}, a.y);
}
template <typename L>
std::int32_t Launch(L& l, const EgSum& a) {
  return l.Map(a.n, SumMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgCopyColumns& a) {
  return l.Map(a.rows * a.width, CopyColumnsMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgTranspose& a) {
  return l.Map(a.rows * a.columns, TransposeMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgBiasActivate& a) {
  const BiasActivateMap map(a);
  return l.Map(map.threads(), map);
}
template <typename L>
std::int32_t Launch(L& l, const EgNotFinite& a) {
  return l.Map(DivideUp(a.n, 4), NotFiniteMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgMaxPool& a) {
  const MaxPoolMap map{a};
  return l.Map(map.threads(), map);
}
template <typename L>
std::int32_t Launch(L& l, const EgMaxPoolBack& a) {
  const MaxPoolBackMap map{a};
  return l.Map(map.threads(), map);
}
template <typename L>
std::int32_t Launch(L& l, const EgAveragePool& a) {
  return l.Map(a.batch * a.channels, AveragePoolMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgAveragePoolBack& a) {
  return l.Map(a.batch * a.positions * a.channels, AveragePoolBackMap{a});
}

// ---- rows.cu

template <typename L>
std::int32_t Launch(L& l, const EgSoftmax& a) {
  return Rows(l, a.rows, a.columns, SoftmaxTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgSoftmaxBack& a) {
  return Rows(l, a.rows, a.columns, SoftmaxBackTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgLayerNorm& a) {
  return Rows(l, a.rows, a.columns, LayerNormTeam{a});
}
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

template <typename L>
std::int32_t Launch(L& l, const EgColumnSums& a) {
  return Columns<1>(l, a.rows, a.columns, a.scratch, SumTerm{a.x}, StoreSum{a.y, 1});
}
template <typename L>
std::int32_t Launch(L& l, const EgBatchNormInference& a) {
  return l.Map(a.rows * a.channels, BatchNormApplyMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgBatchNorm& a) {
  const double rows = static_cast<double>(a.rows);
  EG_LAUNCH(Columns<1>(l, a.rows, a.channels, a.scratch, SumTerm{a.x}, StoreSum{a.mean, rows}));
  EG_LAUNCH(Columns<1>(l, a.rows, a.channels, a.scratch, DistanceTerm{a.x, a.mean}, StoreSum{a.variance, rows}));
  return Launch(l, EgBatchNormInference{a.rows, a.channels, a.epsilon, a.x, a.gamma, a.beta, a.mean, a.variance, a.y});
}
template <typename L>
std::int32_t Launch(L& l, const EgBatchNormBack& a) {
  double* const sums = a.scratch + ColumnScratch(a.rows, a.channels, 2) / 8;
  EG_LAUNCH(Columns<2>(l, a.rows, a.channels, a.scratch, BatchNormBackTerm{a}, StoreNormSums{a.dgamma, a.dbeta, sums, a.channels}));
  return a.dx == nullptr ? 0 : l.Map(a.rows * a.channels, BatchNormBackMap{a, sums});
}
template <typename L>
std::int32_t Launch(L& l, const EgLayerNormBack& a) {
  if (a.dgamma != nullptr || a.dbeta != nullptr)
    EG_LAUNCH(Columns<2>(l, a.rows, a.columns, a.scratch, LayerNormBackTerm{a}, StoreNormSums{a.dgamma, a.dbeta, nullptr, a.columns}));
  return a.dx == nullptr ? 0 : Rows(l, a.rows, a.columns, LayerNormBackTeam{a});
}

// ---- embedding.cu

template <typename L>
std::int32_t Launch(L& l, const EgFactorization& a) {
  return Rows(l, a.batch, a.dimension, FactorizationTeam{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgFactorizationBack& a) {
  return l.Map(a.batch * a.fields * a.dimension, FactorizationBackMap{a});
}
template <typename L>
std::int32_t Launch(L& l, const EgGather& a) {
  const GatherMap map{a};
  return l.Map(map.threads(), map);
}
template <typename L>
std::int32_t Launch(L& l, const EgScatter& a) {
  const std::int64_t n = a.s.batch * a.s.ids;
  if (n == 0) return 0;
  const ScatterScratch at = ScatterScratch::Of(a.s.batch, a.s.ids, L::SortBytes(n));
  char* const base = static_cast<char*>(a.scratch);
  const auto ids = [&](std::int64_t offset) { return reinterpret_cast<std::uint32_t*>(base + offset); };
  double* const scales = reinterpret_cast<double*>(base + at.scales);
  EG_LAUNCH(l.Map(n, ScatterKeysMap{a, ids(at.keys), ids(at.values)}));
  EG_LAUNCH(l.Map(a.s.batch, BagScaleMap{a, scales}));
  int bits = 1;
  while (bits < 32 && (a.rows >> bits) != 0) ++bits;
  EG_LAUNCH(l.Sort(ids(at.keys), ids(at.values), ids(at.sorted_keys), ids(at.sorted_values), n, bits, base + at.sort));
  return l.template Teams<kWarp>(n, ScatterTeam{a, ids(at.sorted_keys), ids(at.sorted_values), scales});
}

#undef EG_LAUNCH

}  // namespace evergrad::cuda
