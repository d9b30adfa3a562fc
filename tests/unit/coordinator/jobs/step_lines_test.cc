// Tests the lines of the steps in metrics.jsonl, and the curve of the loss.
#include "coordinator/jobs/step_lines.h"

#include <catch2/catch.hpp>
#include <limits>

#include <nlohmann/json.hpp>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

struct Lines final : LineSink {
  bool Add(const std::string& json, bool frequent) override {
    CHECK(frequent);
    if (full) return false;
    all.push_back(nlohmann::json::parse(json));
    return true;
  }
  bool full = false;
  std::vector<nlohmann::json> all;
};

// The range of the plan that belongs to a closure with the steps 4 and 5.
const plan::ClosureRange kRange{1, 0, 8, 2, 4};
const std::vector<TrainedStep> kSteps{{4, 0.5, 4}, {5, 0.25, 4}};

TEST_CASE("a step makes a line and a point of the curve, numbered after the steps of former jobs") {
  StepLines steps({}, MonoTime{0});
  Lines lines;
  steps.Write(ClosureId(2), kRange, 10, kSteps, seconds(1), &lines);
  REQUIRE(lines.all.size() == 2);
  CHECK(lines.all[1]["step"] == 15);
  CHECK(lines.all[1]["epoch"] == 2);
  CHECK(lines.all[1]["closure"] == 2);
  CHECK(lines.all[1]["loss"] == 0.25);
  CHECK(lines.all[1]["examples"] == 4);
  REQUIRE(steps.curve().points().size() == 2);
  CHECK(steps.curve().points()[1].x == 15);
}

TEST_CASE("steps of other closures are omitted, and a loss of NaN makes no point") {
  StepLines steps({}, MonoTime{0});
  Lines lines;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  steps.Write(ClosureId(2), kRange, 0, {{3, 1, 4}, {4, nan, 4}, {6, 1, 4}}, seconds(1), &lines);
  REQUIRE(lines.all.size() == 1);
  CHECK(lines.all[0]["loss"].is_null());
  CHECK(steps.curve().points().empty());
}

TEST_CASE("the long-term rate of lines is limited, and omitted lines are counted") {
  StepLines steps({.burst = 3, .per_second = 1}, MonoTime{0});
  Lines lines;
  steps.Write(ClosureId(2), kRange, 0, kSteps, MonoTime{1}, &lines);
  steps.Write(ClosureId(2), kRange, 0, kSteps, MonoTime{2}, &lines);
  CHECK(lines.all.size() == 3);
  CHECK(steps.dropped() == 1);
  steps.Write(ClosureId(2), kRange, 0, kSteps, seconds(10), &lines);
  CHECK(lines.all.size() == 5);
  lines.full = true;
  steps.Write(ClosureId(2), kRange, 0, kSteps, seconds(20), &lines);
  CHECK(steps.dropped() == 3);
  CHECK(steps.curve().points().size() == 8);
}

TEST_CASE("while the journal is read no line is written, and none is counted as omitted") {
  StepLines steps({.burst = 1, .per_second = 1}, MonoTime{0});
  steps.Write(ClosureId(2), kRange, 0, kSteps, seconds(1), nullptr);
  CHECK(steps.dropped() == 0);
  CHECK(steps.curve().points().size() == 2);
}

}  // namespace
}  // namespace evergrad::coordinator
