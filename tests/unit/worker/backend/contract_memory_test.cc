// Tests the contract of Backend for memory, copies, events, steps and errors. The tests call it as
// a graph does, with the backend's own memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/unit/worker/backend/fixtures/contract_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

template <typename Body>
void ForEachBare(Body body) {
  std::vector<Implementation> all = Implementations();
  for (int i = 0; i < 16; ++i) {
    ApartOptions options;
    options.late_in = i & 1, options.late_compute = i & 2, options.late_out = i & 4,
    options.replay = i & 8;
    all.push_back(Apart("apart", options));
  }
  for (const Implementation& implementation : all)
    RunOn(implementation, implementation.make_bare(), body);
}

template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct Array {
  Array(Backend& b, const std::vector<float>& values)
      : backend(b), memory(b.Allocate(values.size() * sizeof(float), "array").value()) {
    auto event = backend.MakeQueueMark().value();
    backend.Upload(DeviceQueue::kIn, Bytes(values), memory.as<std::byte>());
    backend.Record(DeviceQueue::kIn, *event);
    CHECK(backend.Wait(*event).ok());
  }
  Out span() { return memory.as<float>(); }
  std::vector<float> Get() {
    std::vector<float> values(memory.bytes() / sizeof(float));
    auto event = backend.MakeQueueMark().value();
    backend.Download(DeviceQueue::kCompute, memory.as<std::byte>(),
                     std::as_writable_bytes(std::span(values)));
    backend.Record(DeviceQueue::kCompute, *event);
    CHECK(backend.Wait(*event).ok());
    return values;
  }
  Backend& backend;
  Memory memory;
};

TEST_CASE("memory is counted and freed, and a refusal names the requested and the free bytes") {
  ForEachBare([](Backend& backend) {
    const std::uint64_t before = backend.memory().used;
    {
      const Memory a = backend.Allocate(1000, "a").value(), b = backend.Allocate(1, "b").value();
      CHECK((a.bytes() == 1000 && b.bytes() == 1));
      CHECK(reinterpret_cast<std::uintptr_t>(a.as<std::byte>().data()) % tensor::kAlignment == 0);
      const MemoryUse use = backend.memory();
      CHECK(use.used >= before + 1001);
      CHECK((use.peak >= use.used && use.reserved >= use.used));
    }
    CHECK(backend.memory().used == before);
    const auto refused = backend.Allocate(std::size_t{1} << 50, "all of it");
    CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
    CHECK_THAT(std::string(refused.status().message()),
               Catch::StartsWith("out of memory: what=all of it bytes=1125899906842624 free="));
    Memory moved = backend.Allocate(64, "c").value();
    moved = Memory();
    CHECK(backend.memory().used == before);
  });
}

TEST_CASE("host buffers may outlive the backend") {
  for (const Implementation& implementation : Implementations()) {
    auto backend = implementation.make_bare().value();
    tensor::AlignedBuffer buffer = backend->AllocateHost(100).value();
    // This buffer is on the heap, because the base class cannot allocate memory of a device.
    tensor::AlignedBuffer as_unless_overridden = backend->Backend::AllocateHost(100).value();
    backend.reset();
    for (tensor::AlignedBuffer* const each : {&buffer, &as_unless_overridden}) {
      REQUIRE(each->size() == 100);
      std::fill(each->data(), each->data() + each->size(), std::byte{1});
      CHECK(std::count(each->data(), each->data() + each->size(), std::byte{1}) == 100);
    }
  }
}

TEST_CASE(
    "uploads can be downloaded, whole and in parts, through every queue and any kind of host "
    "memory") {
  ForEachBare([](Backend& backend) {
    const std::vector<float> values = Draw(1, 10007);
    tensor::AlignedBuffer locked = backend.AllocateHost(values.size() * sizeof(float)).value();
    std::copy(values.begin(), values.end(), locked.floats().begin());
    auto event = backend.MakeQueueMark().value();
    for (const DeviceQueue queue : {DeviceQueue::kCompute, DeviceQueue::kIn, DeviceQueue::kOut}) {
      for (const bool page_locked : {false, true}) {
        Memory memory = backend.Allocate(values.size() * sizeof(float), "copy").value();
        const auto from =
            page_locked ? std::span<const std::byte>(locked.data(), locked.size()) : Bytes(values);
        backend.Upload(queue, from.first(404), memory.as<std::byte>().first(404));
        backend.Upload(queue, from.subspan(404), memory.as<std::byte>().subspan(404));
        std::vector<float> back = Poison(values.size());
        backend.Download(queue, memory.as<std::byte>(), std::as_writable_bytes(std::span(back)));
        backend.Record(queue, *event);
        CHECK(backend.Wait(*event).ok());
        CHECK(SameBits(back, values));
      }
    }
  });
}

TEST_CASE("queues wait for each other with events, and an unrecorded event counts as passed") {
  ForEachBare([](Backend& backend) {
    const std::size_t n = 5000;
    Array x(backend, std::vector<float>(n)), y(backend, std::vector<float>(n));
    auto unused = backend.MakeQueueMark().value(), there = backend.MakeQueueMark().value(),
         made = backend.MakeQueueMark().value(), out = backend.MakeQueueMark().value();
    CHECK(backend.Wait(*unused).ok());
    backend.Await(DeviceQueue::kCompute, *unused);
    std::vector<float> results[4];
    const std::vector<float> inputs[4] = {Draw(1, n), Draw(2, n), Draw(3, n), Draw(4, n)};
    for (int step = 0; step < 4; ++step) {  // the host never waits between two steps
      if (step > 0) backend.Await(DeviceQueue::kIn, *made);
      backend.Upload(DeviceQueue::kIn, Bytes(inputs[step]), x.memory.as<std::byte>());
      backend.Record(DeviceQueue::kIn, *there);
      backend.Await(DeviceQueue::kCompute, *there);
      if (step > 0) backend.Await(DeviceQueue::kCompute, *out);
      backend.Scale(2, x.span(), y.span());
      backend.Record(DeviceQueue::kCompute, *made);
      backend.Await(DeviceQueue::kOut, *made);
      results[step] = Poison(n);
      backend.Download(DeviceQueue::kOut, y.memory.as<std::byte>(),
                       std::as_writable_bytes(std::span(results[step])));
      backend.Record(DeviceQueue::kOut, *out);
    }
    CHECK(backend.Wait(*out).ok());
    for (int step = 0; step < 4; ++step) {
      std::vector<float> want = inputs[step];
      for (float& v : want) v *= 2;
      CHECK(SameBits(results[step], want));
    }
  });
}

TEST_CASE("memory may be freed while work on it is pending") {
  ForEachBare([](Backend& backend) {
    const std::vector<float> ones(3000, 1.0f);
    Array y(backend, std::vector<float>(3000)), x(backend, ones);
    for (int i = 0; i < 5; ++i) {
      Memory part = backend.Allocate(3000 * sizeof(float), "part").value();
      backend.Scale(static_cast<float>(i), x.span(), part.as<float>());
      backend.AddScaled(1, part.as<float>(), y.span());
    }
    CHECK(SameBits(y.Get(), std::vector<float>(3000, 10.0f)));
  });
}

// A step as a graph makes it. It uploads a dropout key and x, and computes y by dropout of x, the
// sum of squares of y, and the flag of non-finite values.
struct SmallStep {
  explicit SmallStep(Backend& b)
      : backend(b),
        x(b, std::vector<float>(1000, 1.0f)),
        y(b, std::vector<float>(1000)),
        key(b.Allocate(sizeof(std::uint64_t), "key").value()),
        result(b.Allocate(2 * sizeof(std::uint64_t), "result").value()),
        made(b.MakeQueueMark().value()) {}
  struct Numbers {
    double squares;
    std::uint64_t not_finite;
  };
  Numbers Run(const std::vector<float>& values, std::uint64_t step_key) {
    keys = {step_key};
    backend.Upload(DeviceQueue::kCompute, Bytes(keys), key.as<std::byte>());
    backend.Upload(DeviceQueue::kCompute, Bytes(values), x.memory.as<std::byte>());
    const std::vector<std::uint64_t> signature = {
        7, reinterpret_cast<std::uintptr_t>(x.span().data())};
    replayed = backend.BeginStep(signature);
    if (!replayed) {
      backend.Enter("layer", Phase::kForward);
      backend.Zero(result.as<std::byte>().subspan(8));
      backend.Dropout(0.5, key.as<const std::uint64_t>(), x.span(), y.span());
      backend.SumOfSquares(y.span(), result.as<double>().data());
      backend.FindNotFinite(y.span(), result.as<std::uint64_t>().data() + 1);
      backend.Record(DeviceQueue::kCompute, *made);
    }
    backend.EndStep();
    out = Poison(1000);
    backend.Await(DeviceQueue::kOut, *made);
    backend.Download(DeviceQueue::kOut, y.memory.as<std::byte>(),
                     std::as_writable_bytes(std::span(out)));
    backend.Record(DeviceQueue::kOut, *made);
    Numbers numbers{};
    status = backend.Finish(result.as<std::byte>(), std::as_writable_bytes(std::span(&numbers, 1)));
    CHECK(backend.Wait(*made).ok());
    return numbers;
  }
  Backend& backend;
  Array x, y;
  Memory key, result;
  std::unique_ptr<QueueMark> made;
  std::vector<std::uint64_t> keys;
  std::vector<float> out;
  bool replayed = false;
  absl::Status status;
};

TEST_CASE("a step uses the current contents of its memory, replayed or not") {
  ForEachBare([](Backend& backend) {
    SmallStep step(backend);
    for (std::uint64_t key = 1; key < 6; ++key) {
      std::vector<float> x(1000, static_cast<float>(key));
      if (key == 4) x[500] = x[501] = x[502] = x[503] = std::nanf("");
      const SmallStep::Numbers numbers = step.Run(x, key);
      CHECK(step.status.ok());
      double squares = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float want = random::Uniform(key, i) >= 0.5f ? 2 * x[i] : 0.0f;
        squares += static_cast<double>(want) * want;
        if (!(step.out[i] == want || (std::isnan(want) && std::isnan(step.out[i]))))
          FAIL("key " << key << " element " << i << ": " << step.out[i]);
      }
      CHECK((key == 4 ? std::isnan(numbers.squares) : numbers.squares == Approx(squares)));
      CHECK(numbers.not_finite == (key == 4 ? 1 : 0));
    }
  });
}

TEST_CASE(
    "after an error primitives do nothing until the error is read, and the error names the layer") {
  ForEachBare([](Backend& backend) {
    Array x(backend, Draw(1, 12)), y(backend, std::vector<float>(12, 5.0f));
    backend.Enter("deep/conv", Phase::kForward);
    // The kernel is larger than the padded input. A library has no plan for such a convolution.
    const Conv2dShape impossible{1, 2, 2, 1, 1, 1, 1, 3, 4, 1, 1, 0, 0, 0, 0};
    backend.Conv2dForward(impossible, x.span().first(4), x.span(), {}, Activation::kLinear,
                          y.span().first(1));
    backend.Enter("after", Phase::kForward);
    backend.Scale(2, x.span(), y.span());
    const absl::Status error = backend.TakeError();
    CHECK_FALSE(error.ok());
    CHECK_THAT(std::string(error.message()),
               Catch::Contains("layer=deep/conv") && Catch::Contains("primitive=conv2d forward"));
    CHECK(y.Get()[1] == 5.0f);
    CHECK(backend.TakeError().ok());
    backend.Scale(2, x.span(), y.span());
    CHECK(y.Get()[1] == 2 * x.Get()[1]);
  });
}

}  // namespace
}  // namespace evergrad::worker
