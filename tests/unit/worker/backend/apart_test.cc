// Tests the backend that imitates a device in tests (fixtures/apart_backend.h). It must notice the
// mistakes for whose detection it was made.
#include <catch2/catch.hpp>

#include "tests/unit/worker/backend/fixtures/contract_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

TEST_CASE("the host cannot access the memory of the device before, between and after primitives") {
  ApartBackend backend({});
  const float here = 1;
  CHECK(ApartBackend::Touchable(&here));
  Memory memory = backend.Allocate(64, "m").value();
  CHECK_FALSE(ApartBackend::Touchable(memory.as<float>().data()));
  backend.Zero(memory.as<std::byte>());
  CHECK(backend.TakeError().ok());
  CHECK_FALSE(ApartBackend::Touchable(memory.as<float>().data()));
}

TEST_CASE("host memory, freed memory and out-of-range memory are reported, also in lists") {
  ApartBackend backend({});
  Memory memory = backend.Allocate(16, "m").value();
  std::vector<float> host(4);
  backend.Zero(memory.as<std::byte>());
  CHECK(backend.TakeBreaches().empty());
  backend.Copy(memory.as<float>().first(2), std::span(host).first(2));
  CHECK(backend.TakeBreaches() == std::vector<std::string>{"not this backend's memory: Copy"});
  const std::vector<AnyIn> list = {memory.as<float>(), host};
  backend.Sum(list, memory.as<float>());
  CHECK(backend.TakeBreaches() == std::vector<std::string>{"not this backend's memory: Sum"});
  backend.Zero({memory.as<std::byte>().data() + 8, 16});
  CHECK(backend.TakeBreaches() == std::vector<std::string>{"not this backend's memory: Zero"});
  double sum = 0;
  backend.SumOfSquares(memory.as<float>(), &sum);
  CHECK(backend.TakeBreaches() ==
        std::vector<std::string>{"not this backend's memory: SumOfSquares"});
  const Out dropped = memory.as<float>();
  memory = Memory();
  backend.Copy(dropped, dropped);
  CHECK(backend.TakeBreaches().size() == 2);
  CHECK(backend.TakeError().ok());
}

TEST_CASE("an unordered copy has visible effects, and so has a missing wait of the host") {
  ApartBackend backend({});
  Memory x = backend.Allocate(4, "x").value(), y = backend.Allocate(4, "y").value();
  const std::vector<float> one = {1};
  std::vector<float> got = {7};
  auto event = backend.MakeQueueMark().value();
  backend.Upload(DeviceQueue::kIn, std::as_bytes(std::span(one)), x.as<std::byte>());
  backend.Copy(x.as<float>(), y.as<float>());  // the Await is missing
  backend.Download(DeviceQueue::kCompute, y.as<std::byte>(),
                   std::as_writable_bytes(std::span(got)));
  CHECK(std::isnan(got[0]));  // the Wait is missing
  backend.Record(DeviceQueue::kCompute, *event);
  CHECK(backend.Wait(*event).ok());
  CHECK(std::isnan(got[0]));
  backend.Copy(x.as<float>(), y.as<float>());
  // Between this copy and the download, an Await is missing.
  backend.Download(DeviceQueue::kOut, y.as<std::byte>(), std::as_writable_bytes(std::span(got)));
  backend.Record(DeviceQueue::kIn, *event);
  CHECK(backend.Wait(*event).ok());
  CHECK(backend.TakeError().ok());
  backend.Record(DeviceQueue::kOut, *event);
  CHECK(backend.Wait(*event).ok());
  CHECK(std::isnan(got[0]));
}

TEST_CASE(
    "an upload that does not wait for the readers of its target has visible effects if uploads run "
    "early") {
  ApartOptions options;
  options.late_in = false;
  ApartBackend backend(options);
  Memory x = backend.Allocate(4, "x").value(), y = backend.Allocate(4, "y").value();
  const std::vector<float> one = {1}, two = {2};
  std::vector<float> got = {7};
  auto event = backend.MakeQueueMark().value();
  backend.Upload(DeviceQueue::kIn, std::as_bytes(std::span(one)), x.as<std::byte>());
  backend.Copy(x.as<float>(), y.as<float>());
  backend.Upload(DeviceQueue::kIn, std::as_bytes(std::span(two)), x.as<std::byte>());
  backend.Download(DeviceQueue::kCompute, y.as<std::byte>(),
                   std::as_writable_bytes(std::span(got)));
  backend.Record(DeviceQueue::kCompute, *event);
  CHECK(backend.Wait(*event).ok());
  CHECK(got[0] == 2);
}

TEST_CASE(
    "forbidden actions of a step are reported: other calls under one signature, allocations, "
    "copies, waits") {
  ApartOptions options;
  options.replay = false;
  ApartBackend backend(options);
  Memory x = backend.Allocate(64, "x").value();
  auto event = backend.MakeQueueMark().value();
  std::vector<std::byte> host(64), result(8);
  const auto step = [&](auto body) {
    backend.BeginStep(std::vector<std::uint64_t>{1, 2});
    body();
    backend.EndStep();
    CHECK(backend.Finish(x.as<std::byte>().first(8), result).ok());
    return backend.TakeBreaches();
  };
  const auto scale = [&](float factor) {
    backend.Scale(factor, x.as<float>().first(4), x.as<float>().subspan(4, 4));
  };
  CHECK(step([&] { scale(2); }).empty());
  CHECK(step([&] { scale(2); }).empty());
  CHECK(step([&] { scale(3); }).size() == 1);
  CHECK(step([&] { scale(2), scale(2); }).size() == 1);
  CHECK(step([&] {
          scale(2);
          CHECK(backend.Wait(*event).ok());
        }) == std::vector<std::string>{"the host waits within a step"});
  CHECK(step([&] {
          scale(2);
          const Memory more = backend.Allocate(1, "more").value();
        }) == std::vector<std::string>{"allocation within a step: more"});
  CHECK(step([&] {
          scale(2);
          backend.Upload(DeviceQueue::kCompute, host, x.as<std::byte>());
        }) == std::vector<std::string>{"an upload within a step"});
  CHECK(backend.steps() == 7);
}

TEST_CASE("a replayed step runs the recorded calls, and calls during the replay are reported") {
  ApartBackend backend({});
  Memory x = backend.Allocate(8, "x").value();
  std::vector<std::byte> result(8);
  const std::vector<std::uint64_t> signature = {1};
  CHECK_FALSE(backend.BeginStep(signature));
  backend.AddScaled(1, x.as<float>().first(1), x.as<float>().subspan(1, 1));
  backend.EndStep();
  CHECK(backend.Finish(x.as<std::byte>(), result).ok());
  CHECK(backend.BeginStep(signature));
  backend.Zero(x.as<std::byte>());
  backend.EndStep();
  CHECK(backend.Finish(x.as<std::byte>(), result).ok());
  CHECK(backend.replayed() == 1);
  CHECK(backend.TakeBreaches().size() == 1);
}

}  // namespace
}  // namespace evergrad::worker
