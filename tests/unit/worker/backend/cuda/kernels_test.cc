// Tests the index arithmetic of the kernels on the host: the ends of arrays, unaligned addresses,
// windows, and the blocks of reductions. The contract of Backend compares the results of the
// kernels with float64 (../contract_test.cc, "emulated GPU").
#include "worker/backend/cuda/kernels/launch.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/random/philox.h"
#include "common/tensor/convert.h"

namespace evergrad::cuda {
namespace {

TEST_CASE("Philox gives the bits of common/random on host and device") {
  for (const std::uint64_t key : {0ull, 1ull, 42ull, 0xFFFFFFFFFFFFFFFFull, 0x123456789ABCDEFull}) {
    for (const std::uint64_t counter :
         {0ull, 1ull, 0xFFFFFFFFull, 0x100000000ull, 0xFFFFFFFFFFFFFFFFull}) {
      const auto want = random::Philox(key, counter, 0);
      const PhiloxBlock got = Philox(key, counter);
      for (int lane = 0; lane < 4; ++lane)
        CHECK(got.v[lane] == want[static_cast<std::size_t>(lane)]);
    }
    for (std::uint64_t i = 0; i < 1000; ++i)
      CHECK(UniformOf(Philox(key, i / 4).v[i % 4]) == random::Uniform(key, i));
  }
}

TEST_CASE("dropout's mask equals that of common/random for any size and address") {
  std::vector<float> x(70, 1.0f), y(80);
  const std::uint64_t key = 99;
  for (const double rate : {0.0, 0.3, 0.75}) {
    for (std::size_t n = 1; n <= 67; ++n) {
      for (std::size_t offset = 0; offset < 5; ++offset) {
        std::fill(y.begin(), y.end(), -1.0f);
        const DropoutMap<float> map(EgDropout{static_cast<std::int64_t>(n), rate, &key, x.data(),
                                              y.data() + offset, EG_FLOAT32, 0});
        for (std::int64_t t = map.threads(); t-- > 0;) map(t);
        for (std::size_t i = 0; i < y.size(); ++i) {
          const bool inside = i >= offset && i < offset + n;
          const float want = !inside ? -1.0f
                             : random::Uniform(key, i - offset) >= rate
                                 ? static_cast<float>(1.0 / (1.0 - rate))
                                 : 0.0f;
          if (y[i] != want) FAIL("n " << n << " offset " << offset << " element " << i);
        }
      }
    }
  }
}

TEST_CASE(
    "a chain writes each element once, in whole quads if all are aligned, and nothing beside "
    "them") {
  alignas(16) float x[90], y[90];
  for (int i = 0; i < 90; ++i) x[i] = static_cast<float>(i + 1);
  for (std::int64_t n = 1; n <= 70; ++n) {
    for (int x_offset = 0; x_offset < 5; ++x_offset) {
      for (int y_offset = 0; y_offset < 5; ++y_offset) {
        for (const bool reads : {false, true}) {
          std::fill(std::begin(y), std::end(y), -7.0f);
          const float* const inputs[] = {x + x_offset};
          std::int64_t threads = 0;
          bool wide = false;
          const auto run = [&](const auto& chain) {
            threads = chain.threads(), wide = chain.wide;
            for (std::int64_t t = threads; t-- > 0;) chain(t);
          };
          if (reads)
            run(Chain<1, true, AddScaledF>(AddScaledF{2}, n, inputs, y + y_offset));
          else
            run(Chain<1, false, ScaleF>(ScaleF{2}, n, inputs, y + y_offset));
          CHECK(wide == (x_offset % 4 == 0 && y_offset % 4 == 0));
          CHECK(threads == (wide ? (n + 3) / 4 : n));
          for (int i = 0; i < 90; ++i) {
            const bool inside = i >= y_offset && i < y_offset + n;
            const float want =
                !inside ? -7.0f : 2.0f * x[x_offset + i - y_offset] + (reads ? -7.0f : 0.0f);
            if (y[i] != want)
              FAIL("n " << n << " x " << x_offset << " y " << y_offset << " element " << i);
          }
        }
      }
    }
  }
}

TEST_CASE("a reduction reads each element once, in an order that depends only on the size") {
  for (const std::int64_t n : {0, 1, 2, 31, 32, 33, 63, 255, 256, 257, 1000, 4099}) {
    std::vector<int> seen(static_cast<std::size_t>(n));
    const auto load = [&](std::int64_t i) { return ++seen[static_cast<std::size_t>(i)], i + 1; };
    CHECK(HostTeam<kWarp>().Reduce(n, std::int64_t{0}, load, Plus{}) == n * (n + 1) / 2);
    CHECK(HostTeam<kBlock>().Reduce(n, std::int64_t{0}, load, Plus{}) == n * (n + 1) / 2);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 2; }));
    // Floating-point addition is not associative. Two equal results therefore show that the order
    // of additions is the same.
    const auto third = [](std::int64_t i) { return 1.0 / (3.0 + static_cast<double>(i)); };
    CHECK(HostTeam<kBlock>().Reduce(n, 0.0, third, Plus{}) ==
          HostTeam<kBlock>().Reduce(n, 0.0, third, Plus{}));
  }
  // Reduce must find the largest value at every position, and a NaN, too.
  for (int at = 0; at < 300; ++at) {
    const auto load = [at](std::int64_t i) { return i == at ? 2.0f : 1.0f; };
    CHECK(HostTeam<kBlock>().Reduce(300, 1.0f, load, MaxOrNan{}) == 2.0f);
    const auto nan = [at](std::int64_t i) { return i == at ? std::nanf("") : 1.0f; };
    CHECK(std::isnan(HostTeam<kWarp>().Reduce(300, 1.0f, nan, MaxOrNan{})));
  }
}

TEST_CASE("column sums are divided so that every row is in one part, and scratch holds all parts") {
  for (const std::int64_t rows : {1, 15, 16, 17, 1000, 65536, 802816}) {
    for (const std::int64_t columns : {1, 3, 64, 1000, 131072, 200000}) {
      const std::int64_t parts = ColumnParts(rows, columns), per_part = RowsPerPart(rows, columns);
      CHECK((parts >= 1 && parts <= 8192));
      CHECK((columns * parts <= 524288 || parts == 1));
      CHECK(parts * per_part >= rows);
      CHECK(ColumnScratch(rows, columns, 2) == 16 * parts * columns);
    }
  }
}

TEST_CASE("the windows over an input element are those that contain it") {
  for (std::int64_t in = 1; in <= 9; ++in)
    for (std::int64_t pool = 1; pool <= 4; ++pool)
      for (std::int64_t stride = 1; stride <= 5; ++stride)
        for (std::int64_t pad = 0; pad < pool; ++pad)
          for (std::int64_t outs = 1; (outs - 1) * stride - pad < in; ++outs) {
            std::vector<Span> want(static_cast<std::size_t>(in), Span{outs, 0});
            for (std::int64_t o = 0; o < outs; ++o) {
              const Span window = WindowOf(o, stride, pad, pool, in);
              CHECK((window.begin >= 0 && window.end <= in));
              for (std::int64_t i = window.begin; i < window.end; ++i) {
                Span& over = want[static_cast<std::size_t>(i)];
                over = {Least(over.begin, o), o + 1};
              }
            }
            for (std::int64_t i = 0; i < in; ++i) {
              const Span got = WindowsOver(i, stride, pad, pool, outs),
                         over = want[static_cast<std::size_t>(i)];
              if (over.end == 0 ? got.begin < got.end
                                : got.begin != over.begin || got.end != over.end)
                FAIL("in " << in << " pool " << pool << " stride " << stride << " pad " << pad
                           << " outs " << outs << " at " << i);
            }
          }
}

TEST_CASE("every id of every example has a unique position") {
  EgEmbedding s{};
  s.batch = 5;
  s.count = 3;
  s.widths[0] = 2, s.widths[1] = 1, s.widths[2] = 4;
  s.ids = 7;
  std::vector<int> seen(35);
  for (std::int64_t example = 0; example < 5; ++example)
    for (std::int64_t j = 0; j < 7; ++j) {
      const std::int64_t at = PlaceOf(s, example, j);
      const std::int64_t want = j < 2   ? example * 2 + j
                                : j < 3 ? 10 + example
                                        : 15 + example * 4 + j - 3;
      CHECK(at == want);
      ++seen[static_cast<std::size_t>(at)];
    }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

TEST_CASE("a filter that is transposed twice is the same") {
  std::vector<float> w(3 * 2 * 5 * 7), krsc(w.size()), back(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i);
  const TransposeMap<float, float> there{
      EgTranspose{30, 7, w.data(), krsc.data(), EG_FLOAT32, EG_FLOAT32}},
      again{EgTranspose{7, 30, krsc.data(), back.data(), EG_FLOAT32, EG_FLOAT32}};
  for (std::int64_t i = 0; i < 210; ++i) there(i);
  for (std::int64_t i = 0; i < 210; ++i) again(i);
  CHECK(back == w);
  CHECK(krsc[1 * 30 + 4] == w[4 * 7 + 1]);
}

TEST_CASE(
    "16-bit elements equal those of common/tensor bit by bit, for all patterns and all roundings") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    BFloat16 b;
    Float16 h;
    b.bits = h.bits = static_cast<std::uint16_t>(bits);
    const float wide_b = tensor::WidenOne(tensor::WireType::kBFloat16, b.bits),
                wide_h = tensor::WidenOne(tensor::WireType::kFloat16, h.bits);
    if (b == b && BitsOf(b) != BitsOf(wide_b)) FAIL("bf16 " << bits);
    if ((b == b) != (wide_b == wide_b)) FAIL("bf16 NaN " << bits);
    if (BitsOf(h) != BitsOf(wide_h)) FAIL("fp16 " << bits);
  }
  for (std::uint64_t i = 0; i < 200000; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(random::Bits64(5, i));
    // every second value is half-way between two bf16 numbers
    if (i % 2 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
    // some values are in the range of fp16, and some beyond it
    if (i % 4 == 1) bits = (bits & 0x80001fffu) | ((100 + i % 50) << 23);
    const float value = FloatOf(bits);
    if (BFloat16(value).bits != tensor::NarrowOne(tensor::WireType::kBFloat16, value))
      FAIL("to bf16 " << bits);
    if (Float16(value).bits != tensor::NarrowOne(tensor::WireType::kFloat16, value))
      FAIL("to fp16 " << bits);
  }
}

// Runs the launches of an operation in a plain loop on the host.
struct Plain {
  template <typename Op>
  std::int32_t Map(std::int64_t count, const Op& op) {
    for (std::int64_t i = count; i-- > 0;) op(i);
    return 0;
  }
  template <int kThreads, typename Op>
  std::int32_t Teams(std::int64_t count, const Op& op) {
    for (std::int64_t i = count; i-- > 0;) op(HostTeam<kThreads>(), i);
    return 0;
  }
  std::int32_t Copy(void* to, const void* from, std::uint64_t bytes) {
    return std::memcpy(to, from, bytes), 0;
  }
};
// One array of a call. It begins `offset` elements after a multiple of 16 bytes. Before and behind
// it are elements that no kernel may write.
template <typename T>
class Field {
 public:
  static constexpr std::size_t kMargin = 16;
  Field(std::size_t n, std::size_t offset, std::uint64_t key)
      : n_(n), offset_(offset), all_(n + offset + 2 * kMargin) {
    for (std::size_t i = 0; i < n; ++i) at()[i] = T(random::Uniform(key, i) - 0.5f);
    for (const std::size_t i :
         {std::size_t{0}, offset_ + kMargin - 1, offset_ + kMargin + n_, all_.size() - 1})
      all_[i] = T(77.0f);
  }
  T* at() { return all_.data() + kMargin + offset_; }
  std::vector<float> values() const {
    return {all_.begin() + static_cast<std::ptrdiff_t>(kMargin + offset_),
            all_.begin() + static_cast<std::ptrdiff_t>(kMargin + offset_ + n_)};
  }
  bool whole() const {
    for (const std::size_t i :
         {std::size_t{0}, offset_ + kMargin - 1, offset_ + kMargin + n_, all_.size() - 1})
      if (static_cast<float>(all_[i]) != 77.0f) return false;
    return true;
  }

 private:
  std::size_t n_, offset_;
  std::vector<T> all_;  // its memory begins at a multiple of 16 bytes
};

template <typename T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr std::int32_t kType = EG_FLOAT32;
};
template <>
struct TypeOf<BFloat16> {
  static constexpr std::int32_t kType = EG_BFLOAT16;
};
template <>
struct TypeOf<Float16> {
  static constexpr std::int32_t kType = EG_FLOAT16;
};

// Runs operations that use 16-byte accesses where they can. Their arrays begin `offset` elements
// after a multiple of 16 bytes. The results are kept, so that they can be compared.
template <typename T>
class Accesses {
 public:
  Accesses(std::int64_t rows, std::int64_t columns, std::size_t offset)
      : rows_(rows),
        columns_(columns),
        offset_(offset),
        scratch_(static_cast<std::size_t>(BatchNormBackScratch(rows, columns)) / 8) {}

  std::vector<float> RunAll() {
    RunNorms();
    RunElementwise();
    RunCopies();
    CheckNotFinite();
    RunPools();
    return result_;
  }

 private:
  template <typename Array>
  void Keep(const Array& array) {
    CHECK(array.whole());
    const std::vector<float> values = array.values();
    result_.insert(result_.end(), values.begin(), values.end());
  }
  template <typename... Arrays>
  void KeepAll(const Arrays&... arrays) {
    (Keep(arrays), ...);
  }

  void RunNorms() {
    Field<float> mean(c_, 0, 5), variance(c_, 0, 6), gamma(c_, 0, 7), dgamma(c_, 0, 9);
    Field<float> row_mean(static_cast<std::size_t>(rows_), 0, 11),
        row_variance(static_cast<std::size_t>(rows_), 0, 12);
    Launch(l_, EgBatchNorm{rows_, columns_, 1e-3, x_.at(), gamma.at(), beta_.at(), mean.at(),
                           variance.at(), y_.at(), scratch_.data(), kType, 0});
    KeepAll(mean, variance, y_);
    Launch(l_,
           EgBatchNormBack{rows_, columns_, 1e-3, x_.at(), gamma.at(), mean.at(), variance.at(),
                           dy_.at(), z_.at(), dgamma.at(), dbeta_.at(), scratch_.data(), kType, 0});
    KeepAll(dgamma, dbeta_, z_);
    Launch(l_, EgLayerNorm{rows_, columns_, 1e-3, x_.at(), gamma.at(), beta_.at(), row_mean.at(),
                           row_variance.at(), y_.at(), kType, 0});
    Launch(l_, EgLayerNormBack{rows_, columns_, 1e-3, x_.at(), gamma.at(), row_mean.at(),
                               row_variance.at(), dy_.at(), z_.at(), dgamma.at(), dbeta_.at(),
                               scratch_.data(), kType, 0});
    KeepAll(y_, dgamma, dbeta_, z_);
  }

  void RunElementwise() {
    Launch(l_, EgColumnSums{rows_, columns_, x_.at(), dbeta_.at(), scratch_.data(), kType, 0});
    Keep(dbeta_);
    Launch(l_, EgBiasActivate{rows_, columns_, beta_.at(), y_.at(), EG_SIGMOID, kType});
    Keep(y_);
    Field<float> before(n_, offset_, 13);
    EgSum sum{};
    sum.n = all_, sum.count = 3, sum.inputs[0] = x_.at(), sum.inputs[1] = y_.at(),
    sum.inputs[2] = dy_.at(), sum.y = z_.at(), sum.x_type = sum.y_type = kType;
    Launch(l_, sum);
    Keep(z_);
    sum.before = before.at();
    Launch(l_, sum);
    Keep(z_);
    Launch(l_, EgMultiply{all_, x_.at(), dy_.at(), z_.at(), kType, 0});
    Keep(z_);
    const std::uint64_t key = 5;
    Launch(l_, EgDropout{all_, 0.25, &key, x_.at(), y_.at(), kType, 0});
    Keep(y_);
  }

  void RunCopies() {
    // The image is a single row of pixels. Padding adds three columns, two of them in front.
    Field<T> padded(static_cast<std::size_t>((rows_ + 3) * columns_), offset_, 14),
        back(n_, offset_, 15);
    Launch(l_, EgPad{1, 1, rows_, 1, rows_ + 3, columns_, 0, 2, x_.at(), padded.at(), kType, 0});
    Launch(l_, EgPad{1, 1, rows_ + 3, 1, rows_, columns_, 0, -2, padded.at(), back.at(), kType, 0});
    KeepAll(padded, back);
    CHECK(back.values() == x_.values());
    Launch(l_,
           EgCopyColumns{rows_, columns_, columns_, 0, columns_, 0, x_.at(), y_.at(), kType, 0});
    CHECK(y_.values() == x_.values());
    CHECK(y_.whole());
  }

  void CheckNotFinite() {
    for (std::size_t i = 0; i < n_; i += n_ / 3 + 1) {
      std::uint64_t found = 0;
      Launch(l_, EgNotFinite{all_, x_.at(), &found, kType, 0});
      CHECK(found == 0);
      const T old = std::exchange(x_.at()[i], T(std::nanf("")));
      Launch(l_, EgNotFinite{all_, x_.at(), &found, kType, 0});
      CHECK(found == 1);
      x_.at()[i] = old;
    }
  }

  // The windows of this pooling overlap.
  void RunPools() {
    const EgPoolShape pool{1, 1, rows_, columns_, 1, (rows_ + 1) / 2, 1, 3, 1, 2, 0, 1};
    const std::size_t outputs = static_cast<std::size_t>(pool.out_w * columns_);
    Field<T> top(outputs, offset_, 16), dtop(outputs, offset_, 17);
    std::vector<std::int32_t> argmax(outputs + offset_);
    Launch(l_, EgMaxPool{pool, x_.at(), top.at(), argmax.data(), kType, 0});
    Launch(l_, EgMaxPoolBack{pool, dtop.at(), argmax.data(), z_.at(), kType, 0});
    KeepAll(top, z_);
    for (std::size_t i = 0; i < outputs; ++i)
      CHECK(static_cast<float>(x_.at()[argmax[i]]) == top.values()[i]);
  }

  static constexpr std::int32_t kType = TypeOf<T>::kType;
  Plain l_;
  const std::int64_t rows_, columns_, all_ = rows_ * columns_;
  const std::size_t offset_, n_ = static_cast<std::size_t>(all_),
                             c_ = static_cast<std::size_t>(columns_);
  Field<T> x_{n_, offset_, 1}, dy_{n_, offset_, 2}, y_{n_, offset_, 3}, z_{n_, offset_, 4};
  Field<float> beta_{c_, 0, 8}, dbeta_{c_, 0, 10};
  std::vector<double> scratch_;
  std::vector<float> result_;
};

TEST_CASE("16-byte accesses give the bits of single accesses, and write nothing beside the array") {
  const auto check = [](const auto element) {
    using T = std::decay_t<decltype(element)>;
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 8},
                                        {3, 16},
                                        {37, 24},
                                        {300, 8},
                                        {20, 5},
                                        {5000, 8}}) {
      INFO("rows " << rows << " columns " << columns << " bytes " << sizeof(T));
      CHECK(Accesses<T>(rows, columns, 0).RunAll() == Accesses<T>(rows, columns, 1).RunAll());
    }
  };
  check(0.0f), check(BFloat16(0.0f)), check(Float16(0.0f));
}

TEST_CASE("one-pass moments are as exact as two-pass moments, for any first row") {
  for (const double outlier : {0.0, 1e3, -1e7}) {
    for (const double offset : {0.0, 1e4}) {
      constexpr std::int64_t kRows = 70000, kColumns = 2;
      std::vector<float> x(kRows * kColumns);
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(offset) + random::Uniform(3, i);
      x[0] += static_cast<float>(outlier);
      double mean = 0, square = 0;
      for (std::int64_t r = 0; r < kRows; ++r)
        mean += x[static_cast<std::size_t>(r * kColumns)] / static_cast<double>(kRows);
      for (std::int64_t r = 0; r < kRows; ++r)
        square += std::pow(x[static_cast<std::size_t>(r * kColumns)] - mean, 2) /
                  static_cast<double>(kRows);
      std::vector<float> y(x.size()), got_mean(kColumns), got_variance(kColumns);
      std::vector<double> scratch(static_cast<std::size_t>(ColumnScratch(kRows, kColumns, 2)) / 8);
      Plain l;
      Launch(l, EgBatchNorm{kRows, kColumns, 1e-3, x.data(), nullptr, nullptr, got_mean.data(),
                            got_variance.data(), y.data(), scratch.data(), EG_FLOAT32, 0});
      CHECK(got_mean[0] == Approx(mean).epsilon(1e-6));
      CHECK(got_variance[0] == Approx(square).epsilon(1e-6));
    }
  }
}

TEST_CASE(
    "a chain of 16 bits accesses eight elements at once, a mixed one four, and writes nothing "
    "beside them") {
  alignas(16) BFloat16 x[96];
  alignas(16) float wide_y[96];
  alignas(16) BFloat16 y[96];
  for (int i = 0; i < 96; ++i) x[i] = BFloat16(static_cast<float>(i + 1));
  for (std::int64_t n = 1; n <= 70; ++n) {
    for (int offset = 0; offset < 9; ++offset) {
      std::fill(std::begin(y), std::end(y), BFloat16(-7.0f));
      std::fill(std::begin(wide_y), std::end(wide_y), -7.0f);
      const BFloat16* const inputs[] = {x + offset};
      const Chain<1, false, ScaleF, BFloat16, BFloat16> narrow(ScaleF{2}, n, inputs, y + offset);
      const Chain<1, false, ScaleF, BFloat16, float> widening(ScaleF{2}, n, inputs,
                                                              wide_y + offset);
      CHECK(narrow.threads() == (offset % 8 == 0 ? (n + 7) / 8 : n));
      CHECK(widening.threads() == (offset % 8 == 0 ? (n + 3) / 4 : n));
      for (std::int64_t t = narrow.threads(); t-- > 0;) narrow(t);
      for (std::int64_t t = widening.threads(); t-- > 0;) widening(t);
      for (int i = 0; i < 96; ++i) {
        const float want = i >= offset && i < offset + n ? 2.0f * static_cast<float>(i + 1) : -7.0f;
        if (static_cast<float>(y[i]) != want || wide_y[i] != want)
          FAIL("n " << n << " offset " << offset << " element " << i);
      }
    }
  }
}

TEST_CASE("the arguments of each launch fit CUDA's limit of 4 KB") {
#define EG_FITS_(name, type) CHECK(sizeof(type) <= 3900);
  EG_OPS(EG_FITS_)
#undef EG_FITS_
}

}  // namespace
}  // namespace evergrad::cuda
