// Sums over the rows for each column (bias gradients, batch normalization), and the elementwise
// part of batch normalization.
//
// A sum has two steps. In the first step, a thread adds the rows of one part, in as many
// neighbouring columns as an access of 16 bytes holds (scratch.h). Accesses of several rows are in
// flight before the first row is added, so each array is read once at the memory's speed: 32 k
// threads with four accesses of 16 bytes each have 16 KB in flight on each of 132 multiprocessors.
// In the second step, a team per column adds the parts. The second step has a hundredth of the
// traffic of the first.
//
// All sums are in double. On sm_80 and sm_90 the rate of double operations is half of the float
// rate. Four operations per 2 bytes of data do not reach this rate. A thread computes the values of
// a column (its mean, its deviation) once for all its rows. If the number of columns is not a
// multiple of the elements in an access, or an array is not aligned, a thread processes one column.
// The sums have the same bits in both cases.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/rows.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// A term defines what is summed for each element. Of<kAcross>(column) returns the constants of
// kAcross columns, such as their means. Values<kAcross> holds the data of one row in these columns,
// and Read<kAcross>(row, column) reads the data. Add adds the contributions of element e of the
// data to an array [kSums][kAcross] of sums.

// Sets scratch[s][part][column] to the term's sum s over the rows of the part.
template <int kSums, typename Term>
struct ColumnPartsMap {
  std::int64_t rows, columns, parts, per_part;
  double* scratch;
  Term term;
  bool wide;
  ColumnPartsMap(std::int64_t r, std::int64_t c, double* to, Term t)
      : rows(r),
        columns(c),
        parts(ColumnParts(r, c)),
        per_part(RowsPerPart(r, c)),
        scratch(to),
        term(t),
        wide(c % Term::kWide == 0 && t.aligned()) {}
  std::int64_t threads() const { return parts * columns / (wide ? Term::kWide : 1); }
  EG_HD void operator()(std::int64_t t) const {
    if (wide)
      Run<Term::kWide>(t);
    else
      Run<1>(t);
  }
  template <int kAcross>
  EG_HD void Run(std::int64_t t) const {
    constexpr int kDeep = Term::kDeep;
    const std::int64_t pieces = Quotient(columns, kAcross), part = Quotient(t, pieces),
                       column = Rest(t, pieces) * kAcross;
    const std::int64_t end = Least(rows, (part + 1) * per_part);
    const auto known = term.template Of<kAcross>(column);
    double sums[kSums][kAcross] = {};
    std::int64_t row = part * per_part;
    for (; row + kDeep <= end; row += kDeep) {
      typename Term::template Values<kAcross> values[kDeep];
      EG_UNROLL
      for (int d = 0; d < kDeep; ++d) values[d] = term.template Read<kAcross>(row + d, column);
      EG_UNROLL
      for (int d = 0; d < kDeep; ++d) {
        EG_UNROLL
        for (int e = 0; e < kAcross; ++e) term.Add(known, values[d], e, sums);
      }
    }
    for (; row < end; ++row) {
      const auto values = term.template Read<kAcross>(row, column);
      EG_UNROLL
      for (int e = 0; e < kAcross; ++e) term.Add(known, values, e, sums);
    }
    EG_UNROLL
    for (int s = 0; s < kSums; ++s) {
      EG_UNROLL
      for (int e = 0; e < kAcross; ++e)
        scratch[(s * parts + part) * columns + column + e] = sums[s][e];
    }
  }
};

template <int kSums>
struct Sums {
  double v[kSums];
  EG_HD Sums operator+(const Sums& other) const {
    Sums all;
    for (int s = 0; s < kSums; ++s) all.v[s] = v[s] + other.v[s];
    return all;
  }
};
// Adds the parts of a column, and calls finish(column, sums) on one thread of the team.
template <int kSums, typename Finish>
struct ColumnFinishTeam {
  std::int64_t columns, parts;
  const double* scratch;
  Finish finish;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t column) const {
    const double* const from = scratch + column;
    const std::int64_t step = columns, next = parts * columns;
    const auto load = [=](std::int64_t p) {
      Sums<kSums> sums;
      for (int s = 0; s < kSums; ++s) sums.v[s] = from[s * next + p * step];
      return sums;
    };
    const Sums<kSums> sums = team.Reduce(parts, Sums<kSums>{}, load, Plus{});
    team.Once([&] { finish(column, sums.v); });
  }
};

struct Nothing {};
template <typename T>
struct SumTerm {
  static constexpr int kWide = kAccess<T>, kDeep = 8;
  const T* x;
  std::int64_t columns;
  bool aligned() const { return Aligned(x); }
  template <int kAcross>
  EG_HD Nothing Of(std::int64_t) const {
    return {};
  }
  template <int kAcross>
  using Values = Pack<T, kAcross>;
  template <int kAcross>
  EG_HD Pack<T, kAcross> Read(std::int64_t row, std::int64_t column) const {
    return Load<kAcross>(x + row * columns + column);
  }
  template <int kAcross>
  EG_HD void Add(Nothing, const Pack<T, kAcross>& values, int e, double (&sums)[1][kAcross]) const {
    sums[0][e] += static_cast<double>(static_cast<float>(values.v[e]));
  }
};
struct StoreSum {
  float* y;
  double divisor;
  EG_HD void operator()(std::int64_t column, const double* sums) const {
    y[column] = static_cast<float>(sums[0] / divisor);
  }
};
// Computes both moments in one pass: the distances d from the column's first row, and their
// squares. Then mean = first + sum d / n, and the sum of squares about the mean is sum d² - (sum
// d)² / n. The cancellation is harmless: (mean - first)² is at most n times the variance, so for 4
// M rows at most 22 of the 53 bits of a double are lost.
template <typename T>
struct MomentsTerm {
  static constexpr int kWide = kAccess<T>, kDeep = 8;
  const T* x;
  std::int64_t columns;
  bool aligned() const { return Aligned(x); }
  template <int kAcross>
  EG_HD Pack<T, kAcross> Of(std::int64_t column) const {
    return Load<kAcross>(x + column);
  }
  template <int kAcross>
  using Values = Pack<T, kAcross>;
  template <int kAcross>
  EG_HD Pack<T, kAcross> Read(std::int64_t row, std::int64_t column) const {
    return Load<kAcross>(x + row * columns + column);
  }
  template <int kAcross>
  EG_HD void Add(const Pack<T, kAcross>& first, const Pack<T, kAcross>& values, int e,
                 double (&sums)[2][kAcross]) const {
    const double distance = static_cast<double>(static_cast<float>(values.v[e])) -
                            static_cast<double>(static_cast<float>(first.v[e]));
    sums[0][e] += distance;
    sums[1][e] += distance * distance;
  }
};
template <typename T>
struct StoreMoments {
  const T* x;
  float *mean, *variance;
  double rows;
  EG_HD void operator()(std::int64_t column, const double* sums) const {
    const double distance = sums[0] / rows, square = sums[1] / rows - distance * distance;
    mean[column] =
        static_cast<float>(static_cast<double>(static_cast<float>(x[column])) + distance);
    variance[column] = static_cast<float>(square < 0.0 ? 0.0 : square);  // NaN stays NaN
  }
};

// The constants of a thread's channels, which are the same for all rows of the thread.
template <int kAcross>
struct Channels {
  float mean[kAcross], scale[kAcross], shift[kAcross];
};
// Processes rows of channels. A thread takes kAcross neighbouring channels of several rows that are
// far apart; neighbouring threads take the next channels.
template <typename Op, typename T>
struct RowsOfChannelsMap {
  static constexpr int kWide = kAccess<T>, kDeep = 4;
  std::int64_t rows, channels, groups;
  Op op;
  bool wide;
  RowsOfChannelsMap(std::int64_t r, std::int64_t c, const Op& o)
      : rows(r), channels(c), groups(0), op(o), wide(c % kWide == 0 && o.aligned()) {
    // Up to 16 rows per thread, as long as 256 k threads remain.
    const std::int64_t pieces = wide ? c / kWide : c;
    groups = DivideUp(r, Most(1, Least(16, r * pieces / 262144)));
  }
  std::int64_t threads() const { return groups * (wide ? channels / kWide : channels); }
  EG_HD void operator()(std::int64_t t) const {
    if (wide)
      Run<kWide>(t);
    else
      Run<1>(t);
  }
  template <int kAcross>
  EG_HD void Run(std::int64_t t) const {
    const std::int64_t pieces = Quotient(channels, kAcross), channel = Rest(t, pieces) * kAcross;
    const auto known = op.template Of<kAcross>(channel);
    std::int64_t row = Quotient(t, pieces);
    for (; row + (kDeep - 1) * groups < rows; row += kDeep * groups) {
      typename Op::template Values<kAcross> values[kDeep];
      EG_UNROLL
      for (int d = 0; d < kDeep; ++d)
        values[d] = op.template Read<kAcross>((row + d * groups) * channels + channel);
      EG_UNROLL
      for (int d = 0; d < kDeep; ++d)
        op.template Write<kAcross>((row + d * groups) * channels + channel, known, values[d]);
    }
    for (; row < rows; row += groups)
      op.template Write<kAcross>(row * channels + channel, known,
                                 op.template Read<kAcross>(row * channels + channel));
  }
};

// y = (x - mean) gamma / deviation + beta: x is read once, and y is written once.
template <typename T>
struct BatchNormApply {
  EgBatchNormInference a;
  bool aligned() const { return Aligned(a.x) && Aligned(a.y); }
  template <int kAcross>
  EG_HD Channels<kAcross> Of(std::int64_t channel) const {
    Channels<kAcross> of;
    EG_UNROLL
    for (int e = 0; e < kAcross; ++e) {
      const std::int64_t c = channel + e;
      of.mean[e] = a.mean[c];
      of.scale[e] =
          InverseDeviation(a.variance[c], a.epsilon) * (a.gamma == nullptr ? 1.0f : a.gamma[c]);
      of.shift[e] = a.beta == nullptr ? 0.0f : a.beta[c];
    }
    return of;
  }
  template <int kAcross>
  using Values = Pack<T, kAcross>;
  template <int kAcross>
  EG_HD Pack<T, kAcross> Read(std::int64_t at) const {
    return Load<kAcross>(As<T>(a.x) + at);
  }
  template <int kAcross>
  EG_HD void Write(std::int64_t at, const Channels<kAcross>& of, const Pack<T, kAcross>& x) const {
    Pack<T, kAcross> y;
    EG_UNROLL
    for (int e = 0; e < kAcross; ++e)
      y.v[e] = T((static_cast<float>(x.v[e]) - of.mean[e]) * of.scale[e] + of.shift[e]);
    Store<kAcross>(As<T>(a.y) + at, y);
  }
};

// sums[0] is the sum of dy, and sums[1] is the sum of dy times the normalized value: by channels
// for batch normalization, by columns for layer normalization.
template <typename T, int kAcross>
struct TwoPacks {
  Pack<T, kAcross> x, dy;
};
template <typename T>
struct BatchNormBackTerm {
  static constexpr int kWide = kAccess<T>, kDeep = 4;
  EgBatchNormBack a;
  bool aligned() const { return Aligned(a.x) && Aligned(a.dy); }
  template <int kAcross>
  EG_HD Channels<kAcross> Of(std::int64_t channel) const {
    Channels<kAcross> of{};
    EG_UNROLL
    for (int e = 0; e < kAcross; ++e) {
      of.mean[e] = a.mean[channel + e];
      of.scale[e] = InverseDeviation(a.variance[channel + e], a.epsilon);
    }
    return of;
  }
  template <int kAcross>
  using Values = TwoPacks<T, kAcross>;
  template <int kAcross>
  EG_HD TwoPacks<T, kAcross> Read(std::int64_t row, std::int64_t channel) const {
    const std::int64_t at = row * a.channels + channel;
    return {Load<kAcross>(As<T>(a.x) + at), Load<kAcross>(As<T>(a.dy) + at)};
  }
  template <int kAcross>
  EG_HD void Add(const Channels<kAcross>& of, const TwoPacks<T, kAcross>& values, int e,
                 double (&sums)[2][kAcross]) const {
    const double dy = static_cast<double>(static_cast<float>(values.dy.v[e]));
    sums[0][e] += dy;
    sums[1][e] +=
        dy * static_cast<double>((static_cast<float>(values.x.v[e]) - of.mean[e]) * of.scale[e]);
  }
};
template <typename T, int kAcross>
struct RowPacks {
  Pack<T, kAcross> x, dy;
  float mean, scale;
};
template <typename T>
struct LayerNormBackTerm {
  static constexpr int kWide = kAccess<T>, kDeep = 2;  // larger values spill registers
  EgLayerNormBack a;
  bool aligned() const { return Aligned(a.x) && Aligned(a.dy); }
  template <int kAcross>
  EG_HD Nothing Of(std::int64_t) const {
    return {};
  }
  template <int kAcross>
  using Values = RowPacks<T, kAcross>;
  template <int kAcross>
  EG_HD RowPacks<T, kAcross> Read(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * a.columns + column;
    return {Load<kAcross>(As<T>(a.x) + at), Load<kAcross>(As<T>(a.dy) + at), a.mean[row],
            InverseDeviation(a.variance[row], a.epsilon)};
  }
  template <int kAcross>
  EG_HD void Add(Nothing, const RowPacks<T, kAcross>& values, int e,
                 double (&sums)[2][kAcross]) const {
    const double dy = static_cast<double>(static_cast<float>(values.dy.v[e]));
    sums[0][e] += dy;
    sums[1][e] +=
        dy * static_cast<double>((static_cast<float>(values.x.v[e]) - values.mean) * values.scale);
  }
};
// Stores the means of both sums in the scratch memory for dx.
struct StoreNormSums {
  float *dgamma, *dbeta;
  double* kept;  // [2][columns]; nullptr if not needed
  std::int64_t columns;
  double rows;
  EG_HD void operator()(std::int64_t column, const double* sums) const {
    if (dbeta != nullptr) dbeta[column] = static_cast<float>(sums[0]);
    if (dgamma != nullptr) dgamma[column] = static_cast<float>(sums[1]);
    if (kept != nullptr) kept[column] = sums[0] / rows, kept[columns + column] = sums[1] / rows;
  }
};
// dx = gamma / deviation (dy - dbeta / rows - n dgamma / rows): each thread reads x and dy once and
// writes dx once.
template <int kAcross>
struct BackChannels {
  float mean[kAcross], scale[kAcross], mean_gradient[kAcross], slope[kAcross];
};
template <typename T>
struct BatchNormBackApply {
  EgBatchNormBack a;
  const double* means;  // [2][channels]
  bool aligned() const { return Aligned(a.x) && Aligned(a.dy) && Aligned(a.dx); }
  template <int kAcross>
  EG_HD BackChannels<kAcross> Of(std::int64_t channel) const {
    BackChannels<kAcross> of;
    EG_UNROLL
    for (int e = 0; e < kAcross; ++e) {
      const std::int64_t c = channel + e;
      const float inverse = InverseDeviation(a.variance[c], a.epsilon);
      of.mean[e] = a.mean[c];
      of.scale[e] = inverse * (a.gamma == nullptr ? 1.0f : a.gamma[c]);
      of.mean_gradient[e] = static_cast<float>(means[c]);
      of.slope[e] = static_cast<float>(means[a.channels + c]) * inverse;
    }
    return of;
  }
  template <int kAcross>
  using Values = TwoPacks<T, kAcross>;
  template <int kAcross>
  EG_HD TwoPacks<T, kAcross> Read(std::int64_t at) const {
    return {Load<kAcross>(As<T>(a.x) + at), Load<kAcross>(As<T>(a.dy) + at)};
  }
  template <int kAcross>
  EG_HD void Write(std::int64_t at, const BackChannels<kAcross>& of,
                   const TwoPacks<T, kAcross>& values) const {
    Pack<T, kAcross> dx;
    EG_UNROLL
    for (int e = 0; e < kAcross; ++e) {
      const float x = static_cast<float>(values.x.v[e]), dy = static_cast<float>(values.dy.v[e]);
      dx.v[e] = T(of.scale[e] * (dy - of.mean_gradient[e] - (x - of.mean[e]) * of.slope[e]));
    }
    Store<kAcross>(As<T>(a.dx) + at, dx);
  }
};
// Returns the scratch memory of batch normalization's backward pass: the parts, then the two sums
// of each channel.
inline std::int64_t BatchNormBackScratch(std::int64_t rows, std::int64_t channels) {
  return ColumnScratch(rows, channels, 2) + 16 * channels;
}

}  // namespace evergrad::cuda
