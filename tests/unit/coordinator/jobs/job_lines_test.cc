// Tests metrics.jsonl on a full disk. The file must contain whole lines only, in order, and no line
// twice. Lines that are lost must be counted and reported.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "common/random/philox.h"
#include "lines_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

constexpr char kTrouble[] =
    "metrics.jsonl cannot be written; its lines are kept in memory and written later";

std::vector<std::uint64_t> NumbersOf(const std::vector<Json>& lines, const char* kind) {
  std::vector<std::uint64_t> numbers;
  for (const Json& line : lines) {
    if (line["kind"] == kind) numbers.push_back(line[kind].get<std::uint64_t>());
  }
  return numbers;
}

void CheckWhole(const FakeCluster& c, std::uint64_t steps, std::uint64_t epochs) {
  const std::vector<Json> lines = Lines(c);
  const std::vector<std::uint64_t> step = NumbersOf(lines, "step"),
                                   epoch = NumbersOf(lines, "epoch");
  REQUIRE(step.size() == steps);
  for (std::size_t i = 0; i < step.size(); ++i) CHECK(step[i] == i);
  REQUIRE(epoch.size() == epochs);
  for (std::size_t i = 0; i < epoch.size(); ++i) CHECK(epoch[i] == i + 1);
  REQUIRE_FALSE(lines.empty());
  CHECK(lines.back()["kind"] == "end");
  CHECK(lines.back()["lines_lost"] == 0);
}

std::size_t CountOf(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

Json Result(const FakeCluster& c) { return Json::parse(c.host.files.at("/runs/fake/result.json")); }

TEST_CASE(
    "lines that meet a full disk are kept and written later in order, and the problem and its end "
    "are events") {
  const bool journal = GENERATE(false, true), tears = GENERATE(false, true);
  CAPTURE(journal, tears);
  FakeCluster c({}, {.jobs_max = 8, .persistent = journal});
  c.host.tears = tears;
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return NumbersOf(Lines(c), "step").size() == 8; }));
  c.host.lines_bytes_max = c.host.files[kLinesFile].size() + 150;
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 12;
  };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 12; }));
  c.Run([] { return false; }, std::chrono::seconds(50));
  CHECK(CountOf(AllEvents(c), std::string("warning: ") + kTrouble + ": no space left on device") ==
        1);
  CHECK_THAT(AllEvents(c), !Contains("is written again"));
  c.Run([] { return false; }, std::chrono::seconds(20));
  CHECK(CountOf(AllEvents(c), kTrouble) == 2);  // the warning is repeated once a minute
  c.host.lines_bytes_max = ~0ull;
  c.Run([] { return false; }, std::chrono::seconds(3));
  CHECK(CountOf(AllEvents(c), "state: metrics.jsonl is written again, and no line is lost") == 1);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  c.Deliver();
  CheckWhole(c, 32, 2);
  CHECK(Result(c)["lines_lost"] == 0);
}

TEST_CASE("a coordinator that dies at any moment around a full disk leaves metrics.jsonl whole") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::uint64_t drawn = 0;
    const auto below = [&](std::uint64_t n) {
      return static_cast<std::uint64_t>(random::Uniform(seed, drawn++) * static_cast<double>(n));
    };
    FakeCluster c([&](config::JobSpec&,
                      JobOptions& o) { o.notes_max = 1 + static_cast<std::uint32_t>(seed % 7); },
                  {.jobs_max = 8, .torn_max = seed % 3 == 0 ? 4u : 0u, .persistent = true});
    c.host.tears = seed % 2 == 0;
    c.hold = [&](const FakeWorker&, const v1::Grant&) { return below(3) == 0; };
    AddTasks(c);
    for (int life = 0; life < 6 && !c.job->ended(); ++life) {
      const int turns = static_cast<int>(below(14));
      for (int i = 0; i < turns && !c.job->ended(); ++i) {
        c.host.lines_bytes_max =
            below(2) == 0 ? c.host.files[kLinesFile].size() + below(300) : ~0ull;
        c.Run([] { return false; }, std::chrono::milliseconds(500 * below(4)));
        for (auto& [identity, worker] : c.workers) {
          for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
            if (below(2) == 0) c.Finish(worker, grant);
          }
        }
        // The test makes space on the disk when the job writes its last files. If the disk stayed
        // full, the job would drop its last lines, which another test covers.
        if (c.job->writing()) c.host.lines_bytes_max = ~0ull;
      }
      if (c.job->ended() || c.job->writing()) break;
      c.host.memory.TearTail(below(4));
      c.Restart();
    }
    c.host.lines_bytes_max = ~0ull;
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
    REQUIRE(c.RunToEnd());
    c.Deliver();
    CHECK(c.Status().state() == "SUCCEEDED");
    CheckWhole(c, 32, 2);
    CHECK(Result(c)["lines_lost"] == 0);
    const std::string events = AllEvents(c);
    if (const std::size_t trouble = events.rfind(kTrouble); trouble != std::string::npos)
      CHECK(events.find("metrics.jsonl is written again", trouble) != std::string::npos);
  }
}

TEST_CASE("a coordinator that restarts with a full disk retries, and loses no line") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return NumbersOf(Lines(c), "step").size() == 8; }));
  c.host.lines_bytes_max = c.host.files[kLinesFile].size() + 10;
  c.host.tears = true;
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  c.Run([] { return false; }, std::chrono::seconds(2));
  REQUIRE_THAT(AllEvents(c), Contains(kTrouble));
  c.Restart();
  c.Run([] { return false; }, std::chrono::seconds(5));
  CHECK(CountOf(AllEvents(c), kTrouble) == 2);  // one warning in each of the two lives
  c.host.lines_bytes_max = ~0ull;
  c.Restart();
  c.Run([] { return false; }, std::chrono::seconds(2));
  CHECK_THAT(AllEvents(c), Contains("metrics.jsonl is written again, and no line is lost"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  c.Deliver();
  CheckWhole(c, 32, 2);
}

TEST_CASE(
    "step lines above their limit are lost and counted, and epochs, events and the end are kept") {
  const bool journal = GENERATE(false, true);
  CAPTURE(journal);
  constexpr std::uint64_t kSteps = 80000;
  FakeCluster c(
      [](config::JobSpec& spec, JobOptions& o) {
        spec.counting.examples = kSteps;
        spec.data.batch_size = 4;
        spec.training.epochs = 4;
        spec.training.steps_per_closure = 2;
        o.step_lines_burst = 1 << 20;
      },
      {.jobs_max = 8, .persistent = journal});
  c.on_done = [](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() != v1::TRAIN) return;
    // The loss differs between closures, so the lines have different lengths.
    for (v1::StepRecord& record : *done->mutable_metrics()->mutable_step_records())
      record.set_loss(1.0 / 3 + static_cast<double>(grant.closure()) * 1e-9);
  };
  std::uint64_t limit = 0;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= limit;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty() && !c.host.files[kLinesFile].empty(); }));
  c.host.lines_bytes_max = c.host.files[kLinesFile].size();
  limit = kSteps / 2 / 4 * 3;
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= limit; }));
  c.Run([] { return false; }, std::chrono::seconds(2));
  c.host.lines_bytes_max = ~0ull;
  limit = ~0ull;
  c.Run([] { return false; }, std::chrono::seconds(2));
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  c.Deliver();
  const std::vector<Json> lines = Lines(c);
  const Json& end = lines.back();
  REQUIRE(end["kind"] == "end");
  const std::uint64_t lost = end["lines_lost"];
  CHECK(lost > 0);
  CHECK(Result(c)["lines_lost"] == lost);
  const std::vector<std::uint64_t> steps = NumbersOf(lines, "step");
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  CHECK(steps.size() + end["step_lines_dropped"].get<std::uint64_t>() == kSteps);
  CHECK(NumbersOf(lines, "epoch") == std::vector<std::uint64_t>{1, 2, 3, 4});
  CHECK_THAT(AllEvents(c),
             Contains("metrics.jsonl is written again, but the buffer was full and dropped "));
}

TEST_CASE(
    "a job that ends with a full disk waits briefly for space, then reports the missing lines") {
  const bool journal = GENERATE(false, true), room_in_time = GENERATE(false, true);
  CAPTURE(journal, room_in_time);
  FakeCluster c({}, {.jobs_max = 8, .persistent = journal});
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty() && !c.host.files[kLinesFile].empty(); }));
  const std::string before = c.host.files[kLinesFile];
  c.host.lines_bytes_max = before.size();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.Run([&] { return c.job->writing(); }));
  c.Run([] { return false; }, std::chrono::seconds(2));
  CHECK_FALSE(c.job->ended());
  if (room_in_time) c.host.lines_bytes_max = ~0ull;
  REQUIRE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(10)));
  c.Deliver();
  CHECK(c.Status().state() == "SUCCEEDED");
  const Json result = Result(c);
  CHECK(result == Json::parse(c.Status().result_json()));
  if (room_in_time) {
    CheckWhole(c, 32, 2);
    CHECK(result["lines_lost"] == 0);
    return;
  }
  CHECK(c.host.files[kLinesFile] == before);
  CHECK(result["lines_lost"] > 0);
  CHECK_THAT(AllEvents(c), Contains("warning: metrics.jsonl ends too early, missing " +
                                    std::to_string(result["lines_lost"].get<std::uint64_t>()) +
                                    " lines: no space"));
}

}  // namespace
}  // namespace evergrad::coordinator
