// Tests chunks and arrays: an apply never changes a chunk that a reader holds, freed blocks return
// to the pool, and initial values do not depend on the partitioning.
#include <catch2/catch.hpp>

#include <cmath>
#include <thread>
#include <vector>

#include "common/random/philox.h"
#include "ps_server/storage/dense_array.h"
#include "ps_server/storage/initializer.h"

namespace evergrad::ps_server::storage {
namespace {

void AddOne(DenseArray* array) {
  REQUIRE(array->ReserveWrites());
  for (std::size_t c = 0; c < array->chunks(); ++c) {
    const DenseArray::Write write = array->BeginWrite(c);
    for (std::size_t i = 0; i < write.size; ++i) write.to[i] = write.from[i] + 1;
    array->EndWrite(c);
  }
}

float FirstOf(const tensor::SharedBytes& piece) {
  return *reinterpret_cast<const float*>(piece.bytes.data());
}

TEST_CASE(
    "a pool allocates the requested blocks in advance, within its limit, and then hands them out") {
  constexpr std::uint64_t kBlock = kChunkFloats * sizeof(float);
  const auto pool = std::make_shared<ChunkPool>(3 * kBlock);
  pool->Warm(0);
  CHECK(pool->bytes() == 0);
  pool->Warm(kBlock + 1);
  CHECK(pool->bytes() == 2 * kBlock);
  pool->Warm(kBlock);
  CHECK(pool->bytes() == 2 * kBlock);
  pool->Warm(~0ull);
  CHECK(pool->bytes() == 3 * kBlock);
  CHECK(pool->refused() == 0);
  {
    const ChunkRef chunk = ChunkRef::New(kChunkFloats, pool);
    CHECK(pool->bytes() == 2 * kBlock);
  }
  CHECK(pool->bytes() == 3 * kBlock);
}

TEST_CASE("an array is divided into chunks of 256 KiB and keeps its order") {
  auto array = DenseArray::Zeroed(2 * kChunkFloats + 5, nullptr);
  REQUIRE(array.ok());
  REQUIRE(array->chunks() == 3);
  CHECK(array->chunk(1).size() == kChunkFloats);
  CHECK(array->chunk(2).size() == 5);
  const auto pieces = array->Share();
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].bytes.size() == kChunkFloats * sizeof(float));
  CHECK(reinterpret_cast<std::uintptr_t>(pieces[2].bytes.data()) % 64 == 0);
}

TEST_CASE("a write is in place without readers, and out of place with readers") {
  auto array = DenseArray::Zeroed(10, nullptr);
  REQUIRE(array.ok());
  const float* before = array->chunk(0).data();
  AddOne(&*array);
  CHECK(array->chunk(0).data() == before);

  auto held = array->Share();
  AddOne(&*array);
  CHECK(array->chunk(0).data() != before);
  CHECK(FirstOf(held[0]) == 1);  // the reader still sees its values
  CHECK(array->chunk(0)[0] == 2);

  held.clear();
  const float* now = array->chunk(0).data();
  AddOne(&*array);
  CHECK(array->chunk(0).data() == now);
  CHECK(array->chunk(0)[0] == 3);
}

TEST_CASE("a copy of an array is a snapshot that later writes do not change") {
  auto array = DenseArray::Zeroed(kChunkFloats + 1, nullptr);
  REQUIRE(array.ok());
  const DenseArray snapshot = *array;
  AddOne(&*array);
  CHECK(snapshot.chunk(1)[0] == 0);
  CHECK(array->chunk(1)[0] == 1);
}

TEST_CASE("blocks return to the pool, up to its limit") {
  constexpr std::uint64_t kBlock = kChunkFloats * sizeof(float);
  auto pool = std::make_shared<ChunkPool>(2 * kBlock);
  {
    auto array = DenseArray::Zeroed(3 * kChunkFloats, pool);
    REQUIRE(array.ok());
    CHECK(pool->bytes() == 0);
    auto held = array->Share();
    AddOne(&*array);
    held.clear();  // frees three blocks, and the pool keeps two of them
    CHECK(pool->bytes() == 2 * kBlock);
    held = array->Share();
    AddOne(&*array);  // uses both spare blocks, and allocates a third one
    CHECK(pool->bytes() == 0);
  }
  CHECK(pool->bytes() == 2 * kBlock);
  CHECK(pool.use_count() == 1);  // the spare blocks do not refer to their pool
}

TEST_CASE("a cancelled reservation leaves the array unchanged") {
  auto array = DenseArray::Zeroed(4, nullptr);
  REQUIRE(array.ok());
  const auto held = array->Share();
  REQUIRE(array->ReserveWrites());
  array->CancelWrites();
  CHECK(array->chunk(0).data() == reinterpret_cast<const float*>(held[0].bytes.data()));
}

// This test is most useful under ThreadSanitizer. Another thread drops the last reference to a
// chunk, and the next apply writes to this chunk in place.
TEST_CASE("readers on other threads see only whole states") {
  auto pool = std::make_shared<ChunkPool>(64ull << 20);
  auto array = DenseArray::Zeroed(kChunkFloats, pool);
  REQUIRE(array.ok());
  std::vector<std::thread> readers;
  std::vector<char> torn(40, 0);
  for (int round = 0; round < 40; ++round) {
    readers.emplace_back([pieces = array->Share(), flag = &torn[static_cast<std::size_t>(round)]] {
      const auto* floats = reinterpret_cast<const float*>(pieces[0].bytes.data());
      for (std::size_t i = 0; i < kChunkFloats; i += 997) *flag |= floats[i] != floats[0];
    });
    AddOne(&*array);
    AddOne(&*array);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == std::vector<char>(40, 0));
  CHECK(array->chunk(0)[17] == 80);
}

DenseArray Initial(const InitializerSettings& settings, std::uint64_t first,
                   std::uint64_t elements) {
  REQUIRE(CheckInitializer(settings).ok());
  auto array = DenseArray::Create(elements, nullptr);
  REQUIRE(array.ok());
  FillInitial(settings, "dense/kernel", first, &*array);
  return *std::move(array);
}

TEST_CASE(
    "initial values depend only on seed, variable and element, so every partition has the same "
    "digest") {
  std::vector<InitializerSettings> all;
  for (const char* type :
       {"zeros", "ones", "constant", "glorot_uniform", "he_normal", "truncated_normal"}) {
    all.push_back({.type = type,
                   .value = 0.25,
                   .mean = 0.5,
                   .stddev = 0.1,
                   .fan_in = 100,
                   .fan_out = 30,
                   .seed = 7});
  }
  for (const InitializerSettings& settings : all) {
    INFO(settings.type);
    const std::uint64_t whole = Initial(settings, 0, 3000).Digest(0);
    for (const std::uint64_t cut : {1u, 7u, 1000u, 2999u}) {
      std::uint64_t sum = 0;
      for (std::uint64_t at = 0; at < 3000; at += cut)
        sum += Initial(settings, at, std::min<std::uint64_t>(cut, 3000 - at)).Digest(at);
      CHECK(sum == whole);
    }
  }
  InitializerSettings other = all[3];
  other.seed = 8;
  CHECK(Initial(other, 0, 3000).Digest(0) != Initial(all[3], 0, 3000).Digest(0));
}

TEST_CASE("initial values have the distribution of the Keras initializer") {
  constexpr std::uint64_t kN = 40000;
  const auto moments = [](const DenseArray& array) {
    double sum = 0, squares = 0, largest = 0;
    for (std::size_t c = 0; c < array.chunks(); ++c) {
      for (const double x : array.chunk(c))
        sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
    }
    const double mean = sum / kN;
    return std::array{mean, std::sqrt(squares / kN - mean * mean), largest};
  };
  const auto [glorot_mean, glorot_sd, glorot_max] =
      moments(Initial({.type = "glorot_uniform", .fan_in = 300, .fan_out = 100, .seed = 1}, 0, kN));
  const double limit = std::sqrt(6.0 / 400);
  CHECK(glorot_mean == Approx(0).margin(0.002));
  CHECK(glorot_sd == Approx(limit / std::sqrt(3.0)).epsilon(0.02));
  CHECK(glorot_max <= limit);
  const auto [he_mean, he_sd, he_max] =
      moments(Initial({.type = "he_normal", .fan_in = 50, .seed = 1}, 0, kN));
  CHECK(he_mean == Approx(0).margin(0.005));
  CHECK(he_sd == Approx(std::sqrt(2.0 / 50)).epsilon(0.02));
  CHECK(he_max <= 2 * std::sqrt(2.0 / 50) / .879 + 1e-6);
  const auto [cut_mean, cut_sd, cut_max] =
      moments(Initial({.type = "truncated_normal", .mean = 1, .stddev = 0.05, .seed = 1}, 0, kN));
  CHECK(cut_mean == Approx(1).margin(0.002));
  CHECK(cut_sd == Approx(0.05 * .8796).epsilon(0.02));
  CHECK(cut_max <= 1.1 + 1e-6);
}

TEST_CASE(
    "unknown initializers, missing fans and numbers that are not finite are refused by name") {
  CHECK(CheckInitializer({.type = "orthogonal"}).message() ==
        "unknown initializer, expected zeros, ones, constant, glorot_uniform, he_normal or "
        "truncated_normal: type=orthogonal");
  CHECK_FALSE(CheckInitializer({.type = "glorot_uniform", .fan_in = 3}).ok());
  CHECK_FALSE(CheckInitializer({.type = "he_normal"}).ok());
  CHECK_FALSE(CheckInitializer({.type = "constant", .value = std::nan("")}).ok());
  CHECK_FALSE(CheckInitializer({.type = "constant", .value = 1e300}).ok());
  CHECK_FALSE(CheckInitializer({.type = "truncated_normal", .stddev = -1}).ok());
}

}  // namespace
}  // namespace evergrad::ps_server::storage
