#include "worker/backend/cuda/plan_cache.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/unit/worker/backend/cuda/call_log_fixture.h"

namespace evergrad::worker {
namespace {

EgPlanKey KeyOf(std::int64_t m) {
  EgPlanKey key{};
  key.m = m;
  return key;
}

struct Plans {
  CallLog log;
  FirstError error;
  std::shared_ptr<DeviceMemory> memory =
      std::make_shared<DeviceMemory>(CallLog::api(), CallLog::context());
  StepTimes times{CallLog::api(), CallLog::context()};
  StepRecorder recorder{CallLog::api(), CallLog::context(), GraphCapture::Options{.warm_up = 0},
                        &times, &error};
  WorkMemory work{std::move(memory), &recorder, &error};
  PlanCache cache{CallLog::api(), CallLog::context(), 4096, &work, &recorder, &error};
  Plans() { log.offered = {{0, 0, 0}, {8192, 1, 0}, {4096, 1, 0}, {0, 1, 0}}; }
  bool Run(std::int64_t m) { return cache.Run("product", KeyOf(m), {}); }
};

TEST_CASE("the first deterministic plan whose workspace fits is made once and kept") {
  Plans p;
  CHECK(p.Run(1));
  CHECK(p.log.Take() == "plans, make_plan 2, allocate, run_plan p1 4096");
  CHECK(p.Run(1));
  CHECK(p.log.Take() == "run_plan p1 4096");
  CHECK(p.Run(2));  // both plans use the same workspace
  CHECK(p.log.Take() == "plans, make_plan 2, run_plan p2 4096");
  CHECK(p.cache.stats().made == 2);
  CHECK(p.cache.stats().measured == 0);
  CHECK(p.cache.Find(KeyOf(1))->workspace_bytes == 4096);
  CHECK(p.cache.Find(KeyOf(3)) == nullptr);
}

TEST_CASE("if bits need not repeat, each plan that fits is measured and the fastest is kept") {
  Plans p;
  p.log.timed = true;
  p.log.offered = {{0, 0, 0}, {8192, 1, 0}, {0, 1, 0}};
  CHECK(p.Run(1));
  p.log.Take();
  p.cache.SetReproducible(false);
  CHECK(p.Run(1));
  const auto measured = [](const std::string& plan, const std::string& begin,
                           const std::string& end) {
    std::string text = "make_event " + begin + ", make_event " + end + ", ";
    for (int run = 0; run < 3; ++run)
      text += "record 0 " + begin + ", run_plan " + plan + " 0, record 0 " + end + ", wait " + end +
              ", ";
    return text + "drop_event " + begin + ", drop_event " + end + ", ";
  };
  CHECK(p.log.Take() == "plans, make_plan 0, " + measured("p2", "e1", "e2") + "make_plan 2, " +
                            measured("p3", "e3", "e4") + "drop_plan p2, run_plan p3 0");
  CHECK(p.cache.stats().measured == 2);
  // The choices of both modes must be kept when the mode changes.
  p.cache.SetReproducible(true);
  CHECK(p.Run(1));
  CHECK(p.log.Take() == "run_plan p1 0");
}

TEST_CASE("a shape without a plan is asked for once, and the library's reason is kept") {
  Plans p;
  p.log.fail["plans"] = EG_CUDA_BAD_SHAPE;
  p.log.offered.clear();
  CHECK_FALSE(p.Run(1));
  CHECK_FALSE(p.Run(1));
  CHECK(p.log.Take() == "plans fails");
  CHECK(p.cache.Find(KeyOf(1))->refused == "made to fail");
  CHECK(p.error.ok());
}

TEST_CASE("a plan that was out of memory is requested again after memory was freed or a while") {
  Plans p;
  p.log.offered = {{0, 1, 0}};
  Memory other(DeviceMemory::Allocate(p.work.device(), 512, "other").value());
  const auto refuse = [&] {
    p.log.fail["make_plan 0"] = EG_CUDA_NO_MEMORY;
    CHECK_FALSE(p.Run(1));
    CHECK(p.log.fail.empty());
    CHECK(p.cache.Find(KeyOf(1))->no_memory == "made to fail");
  };
  refuse();
  p.log.Take();
  for (std::uint32_t i = 1; i < PlanCache::kAskedAgain; ++i) CHECK_FALSE(p.Run(1));
  CHECK(p.log.Take().empty());
  refuse();
  CHECK(p.log.Take() == "plans, make_plan 0 fails");
  CHECK_FALSE(p.Run(1));
  other = {};
  CHECK(p.Run(1));
  CHECK(p.log.Take() == "plans, make_plan 0, run_plan p1 0");
}

TEST_CASE("making a plan and growing its workspace each end the capture of a step") {
  Plans p;
  REQUIRE(p.Run(1));
  p.log.Take();
  p.log.offered = {{0, 1, 0}};
  REQUIRE_FALSE(p.recorder.BeginStep(7, 1));
  CHECK(p.Run(1));
  CHECK(p.Run(2));
  p.recorder.EndStep();
  CHECK(p.log.Take() ==
        "begin_capture, run_plan p1 4096, end_capture g1, drop_graph g1, run_plan p1 4096, plans, "
        "make_plan 0, run_plan p2 0");
  REQUIRE_FALSE(p.recorder.BeginStep(7, 1));
  CHECK(p.Run(2));
  CHECK(p.work.Grow(WorkPiece::kScratch, 100) != nullptr);
  CHECK(p.Run(2));
  p.recorder.EndStep();
  CHECK(p.log.Take() ==
        "begin_capture, run_plan p2 0, end_capture g2, drop_graph g2, run_plan p2 0, run_plan p2 "
        "0");
}

TEST_CASE("a full cache destroys its plans when the device has run them, and begins anew") {
  Plans p;
  p.log.offered = {{0, 1, 0}};
  for (std::int64_t m = 0; m < static_cast<std::int64_t>(PlanCache::kPlansMax); ++m)
    REQUIRE(p.Run(m));
  CHECK(p.cache.generation() == 0);
  p.log.Take();
  CHECK(p.Run(-1));
  CHECK(p.cache.generation() == 1);
  CHECK(p.log.Take().rfind("make_event e1, record 0 e1, wait e1, drop_event e1, drop_plan p", 0) ==
        0);
  CHECK(p.cache.Find(KeyOf(1)) == nullptr);
  CHECK(p.Run(-1));
  CHECK(p.log.Take() == absl::StrCat("run_plan p", PlanCache::kPlansMax + 1, " 0"));
}

}  // namespace
}  // namespace evergrad::worker
