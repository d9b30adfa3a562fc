// Tests the order, the limits and the end of the batch reader, with a data set of numbers.
#include "worker/data/batch_reader.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "common/runtime/executor.h"

namespace evergrad::worker {
namespace {

class Numbers final : public Dataset {
 public:
  explicit Numbers(std::uint64_t n, std::uint64_t bad = ~0ull) : n_(n), bad_(bad) {}
  std::uint64_t examples() const override { return n_; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::uint64_t bytes_held() const override { return 0; }
  absl::Status Read(const std::vector<std::uint64_t>& indices,
                    const std::vector<std::span<std::byte>>& to) const override {
    auto* const pairs = reinterpret_cast<float*>(to[0].data());
    auto* const ids = reinterpret_cast<std::int64_t*>(to[1].data());
    reads_.fetch_add(1);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == bad_) return absl::DataLossError("bad example");
      pairs[2 * i] = pairs[2 * i + 1] = static_cast<float>(indices[i]);
      ids[i] = static_cast<std::int64_t>(indices[i]);
    }
    return absl::OkStatus();
  }
  std::string Fingerprint() const override { return "numbers"; }
  int reads() const { return reads_.load(); }

 private:
  const std::uint64_t n_, bad_;
  const std::vector<Field> fields_ = {{"pair", tensor::DType::kFloat32, {2}},
                                      {"id", tensor::DType::kInt64, {}}};
  mutable std::atomic<int> reads_{0};
};

BatchReader::Indices From(std::uint64_t first) {
  return [first](std::uint32_t batch) {
    return std::vector<std::uint64_t>{first + 2 * batch, first + 2 * batch + 1};
  };
}

absl::StatusOr<ReadyBatch> Take(BatchReader& reader, BatchReader::StreamId stream) {
  runtime::WaitableEvent taken;
  absl::StatusOr<ReadyBatch> batch = absl::UnknownError("");
  reader.Next(stream, [&](absl::StatusOr<ReadyBatch> b) {
    batch = std::move(b);
    taken.Set();
  });
  taken.Wait();
  return batch;
}

TEST_CASE("batches are returned in order, then OutOfRange") {
  BatchReader reader({4, 1 << 20}, nullptr);
  reader.Open(7, std::make_shared<Numbers>(100), 3, From(10));
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto batch = Take(reader, 7);
    REQUIRE(batch.ok());
    CHECK(batch->update == i);
    CHECK(batch->size == 2);
    CHECK(batch->examples == std::vector<std::uint64_t>{10 + 2 * i, 11 + 2 * i});
    CHECK(batch->fields[0].floats()[2] == static_cast<float>(11 + 2 * i));
    CHECK(Int64s(batch->fields[1])[0] == 10 + 2 * i);
  }
  CHECK(Take(reader, 7).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(Take(reader, 8).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE(
    "float32 fields are read into the given memory, and ids and fields without memory go to the "
    "heap") {
  class Counted final : public tensor::BufferHome {
   public:
    void TakeBack(std::byte* data, std::size_t) override {
      ::operator delete (data, std::align_val_t{64}), ++back;
    }
    int back = 0;
  };
  const auto home = std::make_shared<Counted>();
  std::atomic<int> asked{0};
  {
    BatchReader::Options options{4, 1 << 20};
    options.allocate = [&](std::size_t bytes) {
      CHECK(bytes == 16);
      if (++asked % 2 == 0) return tensor::AlignedBuffer();
      return tensor::AlignedBuffer(
          static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})), bytes, home);
    };
    BatchReader reader(options, nullptr);
    reader.Open(7, std::make_shared<Numbers>(100), 4, From(10));
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto batch = Take(reader, 7);
      REQUIRE(batch.ok());
      CHECK(batch->fields[0].floats()[2] == static_cast<float>(11 + 2 * i));
      CHECK(Int64s(batch->fields[1])[0] == 10 + 2 * i);
    }
  }
  CHECK(asked == 4);
  CHECK(home->back == 2);
}

TEST_CASE("the next stream is read ahead within the buffer's limit, and waiting time is counted") {
  metrics::Registry registry;
  const auto data = std::make_shared<Numbers>(100);
  BatchReader reader({3, 1 << 20}, &registry);
  reader.Open(1, data, 2, From(0));
  reader.Open(2, data, 5, From(50));
  for (int i = 0; i < 2; ++i) REQUIRE(Take(reader, 1).ok());
  // The reader reads both batches of stream 1 and three batches of stream 2. Then it pauses. It
  // counts the batches before it waits.
  runtime::WaitableEvent never;
  while (data->reads() < 5 || reader.buffered_batches() < 3 ||
         absl::StrContains(registry.PrometheusText(), "prefetch_batches_refused_total 0\n")) {
    never.WaitFor(std::chrono::milliseconds(1));
  }
  CHECK(reader.buffered_batches() == 3);
  CHECK(data->reads() == 5);
  for (std::uint32_t i = 0; i < 5; ++i) {
    const auto batch = Take(reader, 2);
    REQUIRE(batch.ok());
    CHECK(batch->examples[0] == 50 + 2 * i);
  }
}

TEST_CASE(
    "a batch with a waiting reader is read even if the buffer is full of another stream's "
    "batches") {
  const auto data = std::make_shared<Numbers>(100);
  BatchReader reader({2, 1}, nullptr);  // even one batch exceeds bytes_max
  reader.Open(1, data, 4, From(0));
  reader.Open(2, data, 4, From(50));
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto batch = Take(reader, 2);
    REQUIRE(batch.ok());
    CHECK(batch->examples[0] == 50 + 2 * i);
  }
  REQUIRE(Take(reader, 1).ok());
}

TEST_CASE("an error is returned when its batch is reached, and by every later call") {
  BatchReader reader({4, 1 << 20}, nullptr);
  reader.Open(1, std::make_shared<Numbers>(100, 3), 4, From(0));
  CHECK(Take(reader, 1).ok());
  CHECK(Take(reader, 1).status().code() == absl::StatusCode::kDataLoss);
  CHECK(Take(reader, 1).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("closing a stream frees its batches, and the destructor ends with a call outstanding") {
  auto reader = std::make_unique<BatchReader>(BatchReader::Options{8, 1 << 20}, nullptr);
  reader->Open(1, std::make_shared<Numbers>(100), 4, From(0));
  REQUIRE(Take(*reader, 1).ok());
  reader->Close(1);
  CHECK(reader->buffered_batches() == 0);
  CHECK(Take(*reader, 1).status().code() == absl::StatusCode::kNotFound);
  reader.reset();
}

}  // namespace
}  // namespace evergrad::worker
