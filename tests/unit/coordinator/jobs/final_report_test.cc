// Tests the final report of a job and the requests for reports about its shards, without a Job
// object.
#include "coordinator/jobs/final_report.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using Kind = FinalReport::Kind;
using std::chrono::milliseconds;

// Shard 0 is at server "a", and shard 1 is at server "b".
struct Fixture : PartFixture {
  Fixture() { Place(); }
  void Begin(Kind kind) {
    report.Begin(kind, [this] { said.push_back("reported"); });
  }
  // Returns the numbers of the requests that `task` got since the last call.
  std::vector<std::uint64_t> Asked(TaskId task) {
    std::vector<std::uint64_t> requests;
    for (const v1::CoordinatorMessage& message : Take(task)) {
      if (message.has_report_shards()) requests.push_back(message.report_shards().request_id());
    }
    return requests;
  }
  // Server `task` answers the request with a report that it holds the shards `held`.
  void Answer(TaskId task, std::uint64_t request, std::vector<std::uint32_t> held) {
    v1::ShardReport message;
    message.set_request_id(request);
    for (const std::uint32_t shard : held) {
      v1::ShardState* state = message.add_shards();
      state->set_job_uid(id.uid.value());
      state->set_shard(shard);
      *state->mutable_epoch() = EpochOf(shard);
    }
    report.OnReport(task, message);
  }
  void Wait(milliseconds time) {
    host.clock.Advance(time);
    report.Check();
  }
  FinalReport report{Part()};
};

TEST_CASE("a complete report waits for every shard, and says which server sums them") {
  Fixture f;
  f.Begin(Kind::kComplete);
  const std::uint64_t request = f.Asked(f.kFirst).at(0);
  CHECK(f.Asked(f.kSecond) == std::vector<std::uint64_t>{request});
  f.Answer(f.kFirst, request, {0});
  f.Wait(10 * f.options.report_timeout);
  CHECK_FALSE(f.Said("reported"));
  CHECK(f.report.WaitingFor() == "1 shard to be summed by ps_server/b");
  f.Answer(f.kSecond, request, {1});
  CHECK(f.Said("reported"));
  CHECK(f.report.answer().complete);
  CHECK(f.report.answer().servers == std::vector<std::string>{"a", "b"});
  CHECK(f.report.WaitingFor().empty());
}

TEST_CASE("the report of a sealed job has what the servers answer, and ends at its time at last") {
  Fixture f;
  f.Begin(Kind::kSealed);
  const std::uint64_t request = f.Asked(f.kFirst).at(0);
  f.Answer(f.kFirst, request, {0});
  CHECK_FALSE(f.Said("reported"));
  SECTION("every server has answered") { f.Answer(f.kSecond, request, {}); }
  SECTION("a server does not answer") { f.Wait(f.options.report_timeout); }
  CHECK(f.Said("reported"));
  CHECK_FALSE(f.report.answer().complete);
  CHECK(f.report.answer().shards.size() == 1);
}

TEST_CASE("a void report is not accepted, and the next one is") {
  Fixture f;
  f.Begin(Kind::kComplete);
  const std::uint64_t old = f.Asked(f.kFirst).at(0);
  f.report.Void();
  CHECK(f.report.WaitingFor().empty());
  f.Answer(f.kFirst, old, {0});
  f.Answer(f.kSecond, old, {1});
  CHECK_FALSE(f.Said("reported"));
  CHECK(f.report.answer().shards.empty());
  f.Begin(Kind::kComplete);
  const std::uint64_t request = f.Asked(f.kFirst).at(0);
  f.Answer(f.kFirst, request, {0});
  f.Answer(f.kSecond, request, {1});
  CHECK(f.said == std::vector<std::string>{"reported"});
}

TEST_CASE("others may ask while the job runs, and an ended job answers with its report") {
  Fixture f;
  std::vector<std::size_t> answers;
  const auto ask = [&] {
    f.report.Ask(false, milliseconds(50), [&](const FinalReport::Answer& answer) {
      answers.push_back(answer.shards.size());
    });
  };
  ask();
  f.Answer(f.kFirst, f.Asked(f.kFirst).at(0), {0});
  f.Wait(milliseconds(50));
  CHECK(answers == std::vector<std::size_t>{1});
  ask();
  f.Begin(Kind::kSealed);
  const std::uint64_t request = f.Asked(f.kFirst).back();
  f.Answer(f.kFirst, request, {0});
  f.Answer(f.kSecond, request, {1});
  f.book.reset();
  f.report.End();  // the report ends while its request is unanswered
  ask();
  CHECK(answers == std::vector<std::size_t>{1, 2, 2});
}

TEST_CASE("the journal keeps the report, and a shard of it without its server is refused") {
  Fixture f;
  f.Begin(Kind::kSealed);
  f.Answer(f.kFirst, f.Asked(f.kFirst).at(0), {0});
  f.Wait(f.options.report_timeout);
  v1::JobSnapshot snapshot;
  f.report.Fill(&snapshot);
  Fixture next;
  REQUIRE(next.report.Read(snapshot).ok());
  CHECK(next.report.answer().servers == std::vector<std::string>{"a"});
  CHECK(next.report.answer().shards.at(0).shard() == 0);
  snapshot.add_final_shards();
  CHECK(absl::IsInvalidArgument(next.report.Read(snapshot)));
}

}  // namespace
}  // namespace evergrad::coordinator
