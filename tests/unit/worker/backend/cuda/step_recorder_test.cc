#include "worker/backend/cuda/step_recorder.h"

#include <catch2/catch.hpp>
#include <optional>

#include "tests/unit/worker/backend/cuda/call_log_fixture.h"

namespace evergrad::worker {
namespace {

constexpr GraphCapture::Key kKey = 7;

struct Recording {
  CallLog log;
  FirstError error;
  StepTimes times{CallLog::api(), CallLog::context()};
  std::optional<StepRecorder> recorder;
  explicit Recording(std::uint32_t warm_up) {
    GraphCapture::Options options;
    options.warm_up = warm_up;
    recorder.emplace(CallLog::api(), CallLog::context(), options, &times, &error);
    recorder->Enter("before", Phase::kForward);
  }
  EgEvent* Event() {
    EgCudaError ignored{};
    EgEvent* event = nullptr;
    CallLog::api()->make_event(CallLog::context(), 0, &event, &ignored);
    log.Take();
    return event;
  }
  void Zero() { recorder->Compute(EgZero{}); }
  void Scale() { recorder->Compute(EgScale{}); }
  void Cast() { recorder->Compute(EgCast{}); }
};

TEST_CASE("a step's requests are submitted as they are made, then captured, then replayed") {
  Recording r(1);
  EgEvent *const there = r.Event(), *const made = r.Event();
  const auto run = [&] {
    if (!r.recorder->BeginStep(kKey, 1)) {
      r.recorder->Await(DeviceQueue::kCompute, there);
      r.Zero();
      r.recorder->RunPlan("product", nullptr, {});
      r.recorder->Record(DeviceQueue::kCompute, made);
    }
    r.recorder->EndStep();
    return r.log.Take();
  };
  const std::string requests = "await 0 e1, compute EG_OP_ZERO, run_plan p0 0, record 0 e2";
  CHECK(run() == requests);
  CHECK(run() == "begin_capture, " + requests + ", end_capture g1, launch g1");
  CHECK(run() == "launch g1");
  CHECK(run() == "launch g1");
  CHECK(r.recorder->stats().replays == 2);
  CHECK(r.recorder->stats().calls == 4);
  CHECK(r.error.ok());
  r.recorder.reset();
  CHECK(r.log.Take() == "drop_graph g1");
}

TEST_CASE("another fingerprint destroys a step's graph, and the step is captured again") {
  Recording r(0);
  for (const std::uint64_t fingerprint : {1, 1, 2}) {
    if (!r.recorder->BeginStep(kKey, fingerprint)) r.Zero();
    r.recorder->EndStep();
  }
  CHECK(r.log.Take() ==
        "begin_capture, compute EG_OP_ZERO, end_capture g1, launch g1, launch g1, drop_graph g1, "
        "begin_capture, compute EG_OP_ZERO, end_capture g2, launch g2");
}

TEST_CASE("a request that cannot be captured ends the capture, and all requests run in order") {
  Recording r(0);
  r.log.fail["compute EG_OP_SCALE"] = EG_CUDA_FAILED;
  REQUIRE_FALSE(r.recorder->BeginStep(kKey, 1));
  r.Zero();
  r.Scale();
  r.Cast();
  r.recorder->EndStep();
  CHECK(r.log.Take() ==
        "begin_capture, compute EG_OP_ZERO, compute EG_OP_SCALE fails, end_capture g1, drop_graph "
        "g1, compute EG_OP_ZERO, compute EG_OP_SCALE, compute EG_OP_CAST");
  CHECK(r.error.ok());
  CHECK(r.recorder->stats().failures == 1);
}

TEST_CASE("a capture that cannot begin or end leaves a step whose requests have run") {
  for (const bool begins : {false, true}) {
    Recording r(0);
    r.log.fail[begins ? "end_capture" : "begin_capture"] = EG_CUDA_FAILED;
    REQUIRE_FALSE(r.recorder->BeginStep(kKey, 1));
    r.Zero();
    r.recorder->EndStep();
    CHECK(r.log.Take() == (begins ? "begin_capture, compute EG_OP_ZERO, end_capture g1 fails, "
                                    "compute EG_OP_ZERO"
                                  : "begin_capture fails, compute EG_OP_ZERO"));
    CHECK(r.error.ok());
    CHECK(r.recorder->stats().graphs == 0);
  }
}

TEST_CASE("a recorded request that fails names its own layer, and nothing runs after it") {
  Recording r(0);
  REQUIRE_FALSE(r.recorder->BeginStep(kKey, 1));
  r.recorder->Enter("first", Phase::kForward);
  r.Zero();
  r.Scale();
  r.recorder->Enter("second", Phase::kBackward);
  r.log.Take();
  r.log.fail["compute EG_OP_ZERO"] = EG_CUDA_NO_MEMORY;
  r.recorder->StopCapture("scratch grew");
  r.Cast();
  r.recorder->Record(DeviceQueue::kCompute, nullptr);
  r.recorder->StopCapture("no capture is left");
  CHECK(r.log.Take() == "end_capture g1, drop_graph g1, compute EG_OP_ZERO fails");
  CHECK(r.error.layer() == "second");
  r.recorder->EndStep();
  const absl::Status status = r.error.Take();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(status.message() ==
        "backend could not compute: layer=first phase=forward primitive=EG_OP_ZERO cause=made to "
        "fail");
  CHECK(r.log.Take().empty());
}

TEST_CASE("the graph of a step with an error is never launched") {
  Recording r(0);
  REQUIRE_FALSE(r.recorder->BeginStep(kKey, 1));
  r.Zero();
  r.error.Refuse("embedding", absl::InternalError("no such shape"));
  r.Scale();
  r.recorder->EndStep();
  CHECK(r.log.Take() == "begin_capture, compute EG_OP_ZERO, end_capture g1, drop_graph g1");
  // The error must be kept until it is returned. Before that, no step may be captured or replayed.
  CHECK_FALSE(r.recorder->BeginStep(kKey, 1));
  r.recorder->EndStep();
  CHECK(r.log.Take().empty());
  CHECK_FALSE(r.error.Take().ok());
  CHECK_FALSE(r.recorder->BeginStep(kKey, 1));
  r.recorder->EndStep();
  CHECK(r.log.Take() == "begin_capture, end_capture g2, launch g2");
}

TEST_CASE("a graph is destroyed before an event that it contains, and no other graph is") {
  Recording r(0);
  EgEvent *const mine = r.Event(), *const other = r.Event();
  for (const auto& [key, event] : {std::pair(kKey, mine), std::pair(kKey + 1, other)}) {
    REQUIRE_FALSE(r.recorder->BeginStep(key, 1));
    r.recorder->Await(DeviceQueue::kCompute, event);
    r.recorder->EndStep();
  }
  r.log.Take();
  r.recorder->DropEvent(mine);
  CHECK(r.log.Take() == "drop_graph g1, drop_event e1");
  CHECK(r.recorder->stats().graphs == 1);
  CHECK(r.recorder->BeginStep(kKey + 1, 1));
  r.recorder->EndStep();
  CHECK(r.log.Take() == "launch g2");
  // Its graph would wait for an event that no longer exists.
  CHECK_FALSE(r.recorder->BeginStep(kKey, 1));
  r.recorder->EndStep();
}

TEST_CASE("measured edges surround the waits of a step, also in its graph") {
  Recording r(0);
  r.log.timed = true;
  EgEvent* const there = r.Event();
  REQUIRE_FALSE(r.recorder->BeginStep(kKey, 1));
  r.log.Take();
  r.recorder->Await(DeviceQueue::kCompute, there);
  r.recorder->Await(DeviceQueue::kCompute, there);
  r.Zero();
  r.Scale();
  r.recorder->Await(DeviceQueue::kCompute, there);
  r.recorder->EndStep();
  // Two Awaits in a row are measured as one wait. The event e3 at the end of the step is outside
  // the graph.
  CHECK(r.log.Take() ==
        "make_event e5, make_event e6, record 0 e5, await 0 e1, await 0 e1, record 0 e6, compute "
        "EG_OP_ZERO, compute EG_OP_SCALE, make_event e7, make_event e8, record 0 e7, await 0 e1, "
        "record 0 e8, end_capture g1, launch g1, record 0 e3");
  CHECK(r.recorder->BeginStep(kKey, 1));
  CHECK(r.times.waits() == 2);  // the waits of the graph
  r.recorder->EndStep();
}

TEST_CASE("a profile has one range at a time, and a replayed step has one range") {
  Recording r(0);
  r.recorder->Enter("dense", Phase::kForward);
  CHECK(r.log.Take().empty());
  r.log.profiled = true;
  r.recorder.emplace(CallLog::api(), CallLog::context(), GraphCapture::Options{.warm_up = 0},
                     &r.times, &r.error);
  for (int i = 0; i < 2; ++i) {
    if (!r.recorder->BeginStep(kKey, 1)) {
      r.recorder->Enter("dense", Phase::kForward);
      r.recorder->Enter("dense", Phase::kBackward);
    }
    r.recorder->EndStep();
  }
  r.recorder->Enter("left open", Phase::kFinish);
  r.recorder.reset();
  CHECK(r.log.Take() ==
        "begin_capture, push_range dense forward, pop_range, push_range dense backward, pop_range, "
        "end_capture g1, launch g1, push_range replay, launch g1, pop_range, push_range left open "
        "finish, pop_range, drop_graph g1");
}

}  // namespace
}  // namespace evergrad::worker
