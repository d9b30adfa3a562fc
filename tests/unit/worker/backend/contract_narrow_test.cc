// Tests the contract of Backend for elements of 16 bits. Each primitive gets new random inputs and
// outputs that are filled with NaN. Its result is compared with that of the CPU backend's float32
// primitive on the same rounded inputs. (The float32 primitive is itself tested against float64.) A
// backend is tested with the types that it claims to support.
#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/tensor/convert.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

constexpr double kTolerance = 2e-2;  // relative to the largest value

tensor::WireType Wire(Element e) { return static_cast<tensor::WireType>(e); }

// An array of elements of one type in host memory.
class Array {
 public:
  Array(Element type, const std::vector<float>& values)
      : type_(type), size_(values.size()), memory_(size_ * BytesOf(type)) {
    tensor::Narrow(Wire(type), values.data(), size_, memory_.data());
  }
  Array(Element type, std::size_t size)
      // all bits set: NaN
      : type_(type), size_(size), memory_(size * BytesOf(type), std::byte{0xff}) {}
  operator AnyIn() const {
    return {memory_.data(), size_, type_};
  }  // NOLINT(google-explicit-constructor)
  operator AnyOut() {
    return {memory_.data(), size_, type_};
  }  // NOLINT(google-explicit-constructor)
  std::vector<float> Read() const {
    std::vector<float> values(size_);
    tensor::Widen(Wire(type_), memory_.data(), size_, values.data());
    return values;
  }

 private:
  Element type_;
  std::size_t size_;
  std::vector<std::byte> memory_;
};

// How one case is run. Inputs are rounded to `narrow` and stored as `type`. `type` is `narrow`, or
// it is float32 for the result with which the first result is compared.
struct Run {
  Backend& backend;
  Element narrow, type;
  std::vector<std::pair<std::string, std::vector<float>>> results;

  std::vector<float> Rounded(std::uint64_t key, std::size_t n, float scale = 1) const {
    std::vector<float> values = Draw(key, n);
    for (float& v : values) v *= scale;
    return Array(narrow, values).Read();
  }
  Array In16(std::uint64_t key, std::size_t n, float scale = 1) const {
    return {type, Rounded(key, n, scale)};
  }
  Array Out16(std::size_t n) const { return {type, n}; }
  void Show(const std::string& name, const Array& array) {
    results.emplace_back(name, array.Read());
  }
  void Show(const std::string& name, const std::vector<float>& floats) {
    results.emplace_back(name, floats);
  }
};

struct NarrowCase {
  std::string name;
  std::function<void(Run&)> run;
};

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

constexpr Activation kActivations[] = {Activation::kLinear, Activation::kRelu, Activation::kTanh,
                                       Activation::kSigmoid, Activation::kSoftmax};

std::vector<NarrowCase> NarrowCases() {
  std::vector<NarrowCase> cases;
  for (const auto& [batch, in, out] : {std::array<std::int64_t, 3>{1, 1, 1},
                                       {3, 5, 7},
                                       {33, 64, 17},
                                       {65, 130, 66},
                                       {33, 64, 1},
                                       {33, 1, 17},
                                       {1, 64, 17},
                                       {9, 1, 1}}) {
    for (const Activation activation : kActivations) {
      for (const bool at_loss : {false, true}) {
        if (at_loss && activation == Activation::kTanh) continue;
        cases.push_back(
            {absl::StrCat("dense ", batch, "x", in, "x", out, " activation ",
                          static_cast<int>(activation), at_loss ? " to float32" : ""),
             [=, batch = batch, in = in, out = out](Run& r) {
               const Array x = r.In16(1, Size(batch * in)), w = r.In16(2, Size(in * out));
               const std::vector<float> b = Draw(3, Size(out));
               const Element y_type = at_loss ? Element::kFloat32 : r.type;
               Array y(y_type, Size(batch * out));
               r.backend.DenseForward(batch, in, out, x, w, b, activation, y);
               r.Show("y", y);
               const Array y_in(y_type, r.Rounded(4, Size(batch * out)));
               Array dx = r.Out16(Size(batch * in));
               std::vector<float> dw = Poison(Size(in * out)), db = Poison(Size(out));
               Array dy(y_type, r.Rounded(5, Size(batch * out)));
               r.backend.DenseBackward(batch, in, out, x, w, activation, y_in, dy, dx, dw, db);
               r.Show("dx", dx), r.Show("dw", dw), r.Show("db", db);
               // The same computation as in the first layer of a model, without a bias.
               Array again(y_type, r.Rounded(5, Size(batch * out)));
               std::vector<float> only = Poison(Size(in * out));
               r.backend.DenseBackward(batch, in, out, x, w, activation, y_in, again, {}, only, {});
               r.Show("dw alone", only);
             }});
      }
    }
  }
  const Conv2dShape convolutions[] = {{2, 7, 6, 3, 5, 4, 4, 3, 3, 1, 1, 0, 0, 0, 0},
                                      {3, 8, 8, 16, 4, 4, 16, 3, 3, 2, 2, 0, 0, 1, 1},
                                      {1, 9, 9, 1, 9, 9, 16, 3, 3, 1, 1, 1, 1, 1, 1},
                                      {2, 5, 5, 8, 5, 5, 24, 1, 1, 1, 1, 0, 0, 0, 0}};
  for (const Conv2dShape& s : convolutions) {
    for (const Activation activation :
         {Activation::kLinear, Activation::kRelu, Activation::kTanh}) {
      cases.push_back({absl::StrCat("conv2d ", s.in_h, "x", s.in_w, "x", s.in_c, " to ", s.filters,
                                    " activation ", static_cast<int>(activation)),
                       [=](Run& r) {
                         const std::size_t nx = Size(s.batch * s.in_h * s.in_w * s.in_c),
                                           ny = Size(s.batch * s.out_h * s.out_w * s.filters);
                         const std::size_t nw = Size(s.kernel_h * s.kernel_w * s.in_c * s.filters);
                         const Array x = r.In16(1, nx), w = r.In16(2, nw);
                         const std::vector<float> b = Draw(3, Size(s.filters));
                         Array y = r.Out16(ny);
                         r.backend.Conv2dForward(s, x, w, b, activation, y);
                         r.Show("y", y);
                         Array bare = r.Out16(ny);
                         r.backend.Conv2dForward(s, x, w, {}, activation, bare);
                         r.Show("y without bias", bare);
                         const Array y_in = r.In16(4, ny);
                         Array dy = r.In16(5, ny), dx = r.Out16(nx);
                         std::vector<float> dw = Poison(nw), db = Poison(Size(s.filters));
                         r.backend.Conv2dBackward(s, x, w, activation, y_in, dy, dx, dw, db);
                         r.Show("dx", dx), r.Show("dw", dw), r.Show("db", db);
                       }});
    }
  }
  const PoolShape pools[] = {{3, 6, 7, 5, 3, 3, 2, 2, 2, 2, 0, 0, 0, 0},
                             {2, 7, 7, 17, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1}};
  for (const PoolShape& s : pools) {
    cases.push_back({absl::StrCat("max pool of ", s.channels, " channels"), [=](Run& r) {
                       const std::size_t nx = Size(s.batch * s.in_h * s.in_w * s.channels),
                                         ny = Size(s.batch * s.out_h * s.out_w * s.channels);
                       const Array x = r.In16(1, nx);
                       Array y = r.Out16(ny);
                       std::vector<std::int32_t> argmax(ny);
                       r.backend.MaxPoolForward(s, x, y, argmax);
                       r.Show("y", y);
                       r.Show("argmax", std::vector<float>(argmax.begin(), argmax.end()));
                       const Array dy = r.In16(2, ny);
                       Array dx = r.Out16(nx);
                       r.backend.MaxPoolBackward(s, dy, argmax, dx);
                       r.Show("dx", dx);
                     }});
  }
  cases.push_back({"global average pool", [](Run& r) {
                     const Array x = r.In16(1, 3 * 11 * 7), dy = r.In16(2, 3 * 7);
                     Array y = r.Out16(3 * 7), dx = r.Out16(3 * 11 * 7);
                     r.backend.GlobalAveragePoolForward(3, 11, 7, x, y);
                     r.backend.GlobalAveragePoolBackward(3, 11, 7, dy, dx);
                     r.Show("y", y), r.Show("dx", dx);
                   }});
  for (const auto& [rows, columns] :
       {std::array<std::int64_t, 2>{1, 1}, {5, 33}, {70, 301}, {3, 5000}}) {
    for (const Activation activation : kActivations) {
      cases.push_back(
          {absl::StrCat("activation ", static_cast<int>(activation), " of ", rows, "x", columns),
           [activation, rows = rows, columns = columns](Run& r) {
             const std::size_t n = Size(rows * columns);
             const Array x = r.In16(1, n, 3), y_in = r.In16(2, n), dy_in = r.In16(3, n);
             Array y = r.Out16(n), dx = r.Out16(n), y_in_place = r.In16(1, n, 3),
                   dx_in_place = r.In16(3, n);
             r.backend.ActivationForward(activation, rows, columns, x, y);
             r.backend.ActivationForward(activation, rows, columns, y_in_place, y_in_place);
             r.backend.ActivationBackward(activation, rows, columns, y_in, dy_in, dx);
             r.backend.ActivationBackward(activation, rows, columns, y_in, dx_in_place,
                                          dx_in_place);
             r.Show("y", y), r.Show("y in place", y_in_place), r.Show("dx", dx),
                 r.Show("dx in place", dx_in_place);
           }});
    }
    cases.push_back(
        {absl::StrCat("normalization of ", rows, "x", columns),
         [rows = rows, columns = columns](Run& r) {
           const std::size_t n = Size(rows * columns), c = Size(columns);
           const Array x = r.In16(1, n), dy = r.In16(2, n);
           const std::vector<float> gamma = Draw(3, c), beta = Draw(4, c);
           for (const bool layer : {false, true}) {
             // If a variance is nearly zero, it magnifies the rounding errors. Sets with too few
             // values are therefore left out.
             if (!layer && rows < 3) continue;
             if (layer && columns < 3) continue;
             const std::size_t each = layer ? Size(rows) : c;
             std::vector<float> mean = Poison(each), variance = Poison(each), dgamma = Poison(c),
                                dbeta = Poison(c);
             Array y = r.Out16(n), dx = r.Out16(n), at_rest = r.Out16(n);
             if (layer) {
               r.backend.LayerNormForward(rows, columns, 1e-3, x, gamma, beta, mean, variance, y);
               r.backend.LayerNormBackward(rows, columns, 1e-3, x, gamma, mean, variance, dy, dx,
                                           dgamma, dbeta);
             } else {
               r.backend.BatchNormForward(rows, columns, 1e-3, x, gamma, beta, mean, variance, y);
               r.backend.BatchNormBackward(rows, columns, 1e-3, x, gamma, mean, variance, dy, dx,
                                           dgamma, dbeta);
               r.backend.BatchNormInference(rows, columns, 1e-3, x, gamma, beta, mean, variance,
                                            at_rest);
               r.Show("y at rest", at_rest);
             }
             r.Show("mean", mean), r.Show("variance", variance), r.Show("y", y);
             r.Show("dx", dx), r.Show("dgamma", dgamma), r.Show("dbeta", dbeta);
           }
         }});
  }
  for (const std::size_t n : {1u, 3u, 4099u, 70001u}) {
    cases.push_back({absl::StrCat("element by element, ", n), [n](Run& r) {
                       const Array a = r.In16(1, n), b = r.In16(2, n), c = r.In16(3, n);
                       const std::uint64_t key[] = {77};
                       Array y = r.Out16(n);
                       r.backend.Dropout(0.4, key, a, y);
                       r.Show("dropout", y);
                       for (const Element from : {r.type, Element::kFloat32}) {
                         for (const Element to : {r.type, Element::kFloat32}) {
                           const Array x(from, r.Rounded(4, n));
                           Array added(to, r.Rounded(5, n)), copied(to, n);
                           r.backend.AddScaled(0.3f, x, added);
                           r.backend.Copy(x, copied);
                           r.Show("add scaled", added), r.Show("copy", copied);
                         }
                       }
                       const std::vector<AnyIn> inputs = {a, b, c, a};
                       for (std::size_t count = 1; count <= inputs.size(); ++count) {
                         Array sum = r.Out16(n);
                         r.backend.Sum(std::span(inputs).first(count), sum);
                         r.Show("sum", sum);
                       }
                       Array product = r.Out16(n);
                       r.backend.Multiply(a, b, product);
                       r.Show("product", product);
                     }});
  }
  cases.push_back({"copies of columns", [](Run& r) {
                     const Array x = r.In16(1, 5 * 9);
                     Array y = r.In16(2, 5 * 11);
                     r.backend.CopyColumns(5, 4, x, 9, 3, y, 11, 6);
                     r.Show("y", y);
                   }});
  for (const Combiner combiner :
       {Combiner::kNone, Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    cases.push_back(
        {absl::StrCat("embedding, combiner ", static_cast<int>(combiner)), [combiner](Run& r) {
           const std::vector<std::int64_t> widths = {2, 3};
           const EmbeddingShape s{4, 6, widths, combiner};
           std::vector<std::uint32_t> position(20);
           for (std::size_t i = 0; i < position.size(); ++i)
             position[i] = i % 7 == 3 ? kAbsent : static_cast<std::uint32_t>((i * 5) % 8);
           const std::vector<float> rows = Draw(1, 8 * 6);
           const std::size_t n = 4 * 6 * (combiner == Combiner::kNone ? 5 : 1);
           Array y = r.Out16(n);
           r.backend.EmbeddingGather(s, position, rows, {}, y);
           r.Show("y", y);
           std::vector<float> gradients = Draw(2, 8 * 6);
           r.backend.EmbeddingScatter(s, position, {}, r.In16(3, n), gradients);
           r.Show("row gradients", gradients);
         }});
  }
  return cases;
}

std::vector<Element> NarrowTypesOf(const Backend& backend) {
  std::vector<Element> types;
  for (const Precision p : {Precision::kMixedBFloat16, Precision::kMixedFloat16})
    if (backend.CheckPrecision(p).ok()) types.push_back(ElementOf(p));
  return types;
}

TEST_CASE("each primitive on 16 bits equals the one on float32 up to rounding") {
  const auto reference = MakeBackend({"cpu", 1}).value();
  ForEachBackend([&](Backend& backend) {
    for (const Element type : NarrowTypesOf(backend)) {
      for (const NarrowCase& c : NarrowCases()) {
        Run narrow{backend, type, type, {}}, wide{*reference, type, Element::kFloat32, {}};
        c.run(narrow);
        c.run(wide);
        REQUIRE(reference->TakeError().ok());
        const absl::Status status = backend.TakeError();
        INFO(NameOf(type) << ", " << c.name << ": " << status.ToString());
        REQUIRE(status.ok());
        REQUIRE(narrow.results.size() == wide.results.size());
        for (std::size_t i = 0; i < wide.results.size(); ++i) {
          const auto& [name, got] = narrow.results[i];
          const std::vector<float>& want = wide.results[i].second;
          REQUIRE(got.size() == want.size());
          double largest = 0, worst = 0;
          for (const float v : want) largest = std::max<double>(largest, std::abs(v));
          for (std::size_t e = 0; e < want.size(); ++e) {
            const double error = std::abs(static_cast<double>(got[e]) - want[e]);
            if (!(error <= worst)) worst = error;
          }
          INFO(name << ": largest " << largest << " worst " << worst);
          CHECK(worst <= kTolerance * largest);
          if (name == "argmax") CHECK(got == want);
          if (name == "dropout")
            for (std::size_t e = 0; e < want.size(); ++e)
              REQUIRE((got[e] == 0) == (want[e] == 0));  // both must have the same mask
        }
      }
    }
  });
}

TEST_CASE("casts round to the nearest, ties to even, and keep infinity and NaN, like the wire") {
  ForEachBackend([](Backend& backend) {
    for (const Element type : NarrowTypesOf(backend)) {
      std::vector<float> values;
      for (std::uint64_t i = 0; i < 5003; ++i) {
        const std::uint32_t bits = static_cast<std::uint32_t>(random::Bits64(3, i));
        values.push_back(std::bit_cast<float>(i % 3 == 0 ? (bits & 0xffffe000u) | 0x1000u : bits));
      }
      for (const float v : {0.0f, -0.0f, INFINITY, -INFINITY, std::nanf(""), 65504.0f, 65519.0f,
                            65520.0f, 1e-8f, 6e-8f, 3.4e38f})
        values.push_back(v);
      Array narrow(type, values.size()), back(Element::kFloat32, values.size());
      backend.Copy(values, narrow);
      backend.Copy(narrow, back);
      const std::vector<float> want = Array(type, values).Read(), got = back.Read();
      for (std::size_t i = 0; i < values.size(); ++i) {
        INFO(NameOf(type) << " of " << values[i]);
        if (std::isnan(want[i]))
          REQUIRE(std::isnan(got[i]));
        else
          REQUIRE(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i]));
      }
    }
  });
}

TEST_CASE("infinity and NaN are detected in 16 bits too") {
  ForEachBackend([](Backend& backend) {
    for (const Element type : {Element::kBFloat16, Element::kFloat16}) {
      std::vector<float> x = Draw(1, 5003);
      Array narrow(type, x.size());
      for (const bool finite : {true, false}) {
        if (!finite) x[5002] = std::numeric_limits<float>::infinity();
        backend.Copy(x, narrow);
        std::uint64_t found = 0;
        backend.FindNotFinite(narrow, &found);
        CHECK(found == (finite ? 0 : 1));
      }
    }
  });
}

TEST_CASE("primitives on 16 bits propagate NaN and infinity") {
  ForEachBackend([](Backend& backend) {
    for (const Element type : NarrowTypesOf(backend)) {
      for (const float bad : {std::nanf(""), INFINITY}) {
        std::vector<float> values = Draw(1, 8 * 40), weights = Draw(2, 40 * 20);
        values[40 + 3] = bad;
        const Array x(type, values), w(type, weights);
        for (const Activation activation : {Activation::kLinear, Activation::kRelu}) {
          Array y(type, 8 * 20);
          backend.DenseForward(8, 40, 20, x, w, {}, activation, y);
          const std::vector<float> got = y.Read();
          bool shown = false;
          for (std::size_t c = 20; c < 40; ++c) shown = shown || !std::isfinite(got[c]);
          CHECK(shown);
          for (std::size_t c = 0; c < 20; ++c) CHECK(std::isfinite(got[c]));
        }
        for (const Activation activation : kActivations) {
          Array y(type, 8 * 40);
          backend.ActivationForward(activation, 8, 40, x, y);
          const float got = y.Read()[43];
          if (std::isnan(bad)) CHECK(std::isnan(got));
        }
        const Conv2dShape s{2, 4, 4, 10, 4, 4, 20, 1, 1, 1, 1, 0, 0, 0, 0};
        Array y(type, 2 * 4 * 4 * 20);
        backend.Conv2dForward(s, x, Array(type, Draw(3, 200)), {}, Activation::kRelu, y);
        bool shown = false;
        for (const float v : y.Read()) shown = shown || !std::isfinite(v);
        CHECK(shown);
      }
    }
  });
}

TEST_CASE("primitives on 16 bits give the same bits on every call") {
  ForEachBackend([](Backend& backend) {
    for (const Element type : NarrowTypesOf(backend)) {
      for (const NarrowCase& c : NarrowCases()) {
        Run first{backend, type, type, {}}, second{backend, type, type, {}};
        c.run(first);
        c.run(second);
        INFO(NameOf(type) << ", " << c.name);
        for (std::size_t i = 0; i < first.results.size(); ++i)
          CHECK(SameBits(first.results[i].second, second.results[i].second));
      }
    }
  });
}

TEST_CASE("a device reports its precisions, and the reason for each missing one") {
  const auto cpu = MakeBackend({"cpu", 1}).value();
  CHECK(cpu->CheckPrecision(Precision::kFloat32).ok());
  CHECK(cpu->CheckPrecision(Precision::kTf32).message() == "only NVIDIA's GPUs have TF32");
  CHECK(cpu->CheckPrecision(Precision::kMixedFloat16).message() ==
        "oneDNN has no float16 products for CPUs");
  const bool avx512 = cpu->name().find("avx512_core") != std::string::npos;
  const absl::Status bfloat16 = cpu->CheckPrecision(Precision::kMixedBFloat16);
  CHECK(bfloat16.ok() == avx512);
  if (!avx512)
    CHECK_THAT(std::string(bfloat16.message()),
               Catch::Contains("only for CPUs with avx512_core or newer: cpu="));
}

}  // namespace
}  // namespace evergrad::worker
