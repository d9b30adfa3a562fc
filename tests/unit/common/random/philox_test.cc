#include "common/random/philox.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace evergrad::random {
namespace {

TEST_CASE("Philox 4x32-10 gives the known answers of Random123") {
  struct Case {
    std::uint64_t key, low, high;
    Block want;
  };
  // The expected numbers are from the file kat_vectors of Random123: "philox4x32 10".
  const Case cases[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822ull,
       0x85a308d3243f6a88ull,
       0x0370734413198a2eull,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) CHECK(Philox(c.key, c.low, c.high) == c.want);
}

TEST_CASE("a key depends on the seed and on every letter of the name") {
  CHECK(KeyOf(1, "dense/kernel") == KeyOf(1, "dense/kernel"));
  CHECK(KeyOf(1, "dense/kernel") != KeyOf(2, "dense/kernel"));
  CHECK(KeyOf(1, "dense/kernel") != KeyOf(1, "dense/bias"));
  CHECK(KeyOf(1, "ab") != KeyOf(1, "ba"));
  CHECK(KeyOf(0, "") != 0);
}

TEST_CASE("uniform numbers lie in [0,1) and have the mean and variance of their law") {
  const std::uint64_t key = KeyOf(11, "uniform");
  const int n = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const float x = Uniform(key, static_cast<std::uint64_t>(i));
    REQUIRE(x >= 0.0f);
    REQUIRE(x < 1.0f);
    sum += x;
    squares += double{x} * x;
  }
  // The bound is five standard errors. The standard error is 0.2887 / sqrt(n) for the mean and
  // 0.2981 / sqrt(n) for the mean of squares.
  CHECK(std::fabs(sum / n - 0.5) < 5 * 0.2887 / std::sqrt(n));
  CHECK(std::fabs(squares / n - 1.0 / 3.0) < 5 * 0.2981 / std::sqrt(n));
}

TEST_CASE("uniform number i is word i mod 4 of block i / 4") {
  const std::uint64_t key = 42;
  for (std::uint64_t i = 0; i < 16; ++i) {
    CHECK(Uniform(key, i) == static_cast<float>(Philox(key, i / 4, 0)[i % 4] >> 8) / 16777216.0f);
  }
}

TEST_CASE("normal numbers have mean 0 and variance 1, and truncated ones are at most 2 from 0") {
  const std::uint64_t key = KeyOf(11, "normal");
  const int n = 200000;
  double sum = 0, squares = 0, truncated_sum = 0, truncated_squares = 0;
  for (int i = 0; i < n; ++i) {
    const double x = Normal(key, static_cast<std::uint64_t>(i));
    REQUIRE(std::isfinite(x));
    sum += x;
    squares += x * x;
    const double t = TruncatedNormal(key, static_cast<std::uint64_t>(i));
    REQUIRE(std::fabs(t) < 2.0);
    truncated_sum += t;
    truncated_squares += t * t;
  }
  CHECK(std::fabs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::fabs(squares / n - 1) < 5 * std::sqrt(2.0 / n));
  CHECK(std::fabs(truncated_sum / n) < 5 / std::sqrt(n));
  // A normal distribution that is truncated at two has a variance of 0.7737.
  CHECK(std::fabs(truncated_squares / n - 0.7737) < 0.01);
}

TEST_CASE(
    "a truncated number equals the normal one if that is within 2, and is drawn again otherwise") {
  const std::uint64_t key = KeyOf(3, "t");
  int redrawn = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const float x = Normal(key, i);
    if (std::fabs(x) < 2.0f)
      REQUIRE(TruncatedNormal(key, i) == x);
    else
      ++redrawn;
  }
  CHECK(redrawn > 100);  // 227 are expected, which is 4.55 % of 5000.
}

TEST_CASE("truncated numbers of any range equal those drawn one by one") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const std::uint64_t key = KeyOf(seed, "side by side"),
                        first = seed % 3 == 0 ? (std::uint64_t{1} << 32) - 5 : seed * 7;
    std::vector<float> many(1 + seed % 37);
    TruncatedNormals(key, first, many);
    for (std::size_t i = 0; i < many.size(); ++i)
      REQUIRE(many[i] == TruncatedNormal(key, first + i));
  }
}

TEST_CASE("normal numbers equal the Box-Muller formula in float64") {
  const std::uint64_t key = KeyOf(5, "formula");
  double worst = 0;
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const Block block = Philox(key, i, 0);
    const double u1 = (block[0] + 1.0) * 0x1p-32, u2 = block[1] * 0x1p-32;
    const double want = std::sqrt(-2 * std::log(u1)) * std::cos(2 * 3.14159265358979323846 * u2);
    worst = std::max(worst, std::fabs(Normal(key, i) - want) / std::max(std::fabs(want), 1e-3));
  }
  CHECK(worst < 6.1e-8);  // half a unit in float32's last place
}

TEST_CASE("a permutation is a bijection, for every size up to 300 and some larger ones") {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t n = 1; n <= 300; ++n) sizes.push_back(n);
  for (std::uint64_t n : {1023ull, 1024ull, 1025ull, 4097ull, 60000ull}) sizes.push_back(n);
  for (std::uint64_t n : sizes) {
    const Permutation permutation(n, KeyOf(n, "p"));
    std::vector<bool> seen(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t image = permutation(i);
      REQUIRE(image < n);
      REQUIRE_FALSE(seen[image]);
      seen[image] = true;
    }
  }
}

TEST_CASE("a permutation of a huge range stays in the range and has no repeats") {
  for (std::uint64_t n : {(1ull << 40) + 1, ~0ull, 1ull << 62, (1ull << 62) + 1}) {
    const Permutation permutation(n, 5);
    std::vector<std::uint64_t> images;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      images.push_back(permutation(i));
      REQUIRE(images.back() < n);
      images.push_back(permutation(n - 1 - i));
      REQUIRE(images.back() < n);
    }
    std::sort(images.begin(), images.end());
    CHECK(std::adjacent_find(images.begin(), images.end()) == images.end());
  }
}

TEST_CASE("the order of an epoch depends on its key and keeps few examples in place") {
  const Permutation a(10000, KeyOf(1, "epoch/0")), b(10000, KeyOf(1, "epoch/1"));
  int in_place = 0, same = 0, neighbours = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    in_place += a(i) == i;
    same += a(i) == b(i);
    neighbours += i > 0 && a(i) == a(i - 1) + 1;
  }
  CHECK(in_place < 10);
  CHECK(same < 10);
  CHECK(neighbours < 10);
}

TEST_CASE("two draws of the operating system's entropy differ") {
  CHECK(EntropyFromOs() != EntropyFromOs());
}

}  // namespace
}  // namespace evergrad::random
