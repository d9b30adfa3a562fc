// Tests the queries that a job sends to the owners of its shards, without a Job object.
#include "coordinator/jobs/shard_queries.h"

#include <catch2/catch.hpp>

#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

const TaskId kServerA(1), kServerB(2);
constexpr JobUid kJob(9);

struct Fixture {
  std::vector<std::pair<TaskId, v1::CoordinatorMessage>> sent;
  ShardQueries queries{kJob, [this](TaskId task, const v1::CoordinatorMessage& message) {
                         sent.emplace_back(task, message);
                       }};
  ShardQueries::Servers servers{{kServerA, "a"}, {kServerB, "b"}};
  // Server a owns two shards, and server b owns one.
  ShardQueries::Owners owners{Owner("a", 1), Owner("a", 1), Owner("b", 1)};
  std::optional<ShardQueries::Answer> answer;
  int answers = 0;

  static ShardOwner Owner(const std::string& server, std::uint64_t epoch) {
    ShardOwner owner;
    owner.server = server;
    owner.epoch = ShardEpoch{1, epoch};
    return owner;
  }
  void Begin(ShardQueries::Question question) {
    queries.Begin(question, servers, [this](const ShardQueries::Answer& a) {
      answer = a;
      ++answers;
    });
  }
  // Server `task` answers the request with a report about `shards`, at the epochs of the map.
  bool Report(TaskId task, std::uint64_t request, std::vector<std::uint32_t> shards,
              bool more = false, bool all_spoken_ends = false) {
    v1::ShardReport report;
    report.set_request_id(request);
    report.set_more(more);
    for (const std::uint32_t shard : shards) {
      v1::ShardState* state = report.add_shards();
      state->set_job_uid(kJob.value());
      state->set_shard(shard);
      if (shard < owners.size()) *state->mutable_epoch() = client::ToProto(owners[shard].epoch);
    }
    return queries.OnReport(task, servers.at(task), report, owners, all_spoken_ends);
  }
};

TEST_CASE("every server is asked, and the answer is complete when every shard has been reported") {
  Fixture f;
  f.Begin({.request = 5, .digests = true, .deadline = seconds(10)});
  REQUIRE(f.sent.size() == 2);
  CHECK(f.sent[0].second.report_shards().request_id() == 5);
  CHECK(f.sent[0].second.report_shards().digests());
  f.Report(kServerB, 5, {2});
  f.Report(kServerA, 5, {1}, /*more=*/true);
  CHECK_FALSE(f.answer);
  f.Report(kServerA, 5, {0});
  REQUIRE(f.answer);
  CHECK(f.answer->complete);
  CHECK(f.answer->servers == std::vector<std::string>{"a", "a", "b"});
  CHECK(f.queries.empty());
}

TEST_CASE("a shard counts only from its owner, in its current epoch, for this job and request") {
  Fixture f;
  f.Begin({.request = 5, .deadline = seconds(10)});
  f.Report(kServerB, 5, {0, 1, 2, 7});
  f.Report(kServerA, 6, {0, 1});
  f.owners[0].epoch = ShardEpoch{1, 2};
  f.Report(kServerA, 5, {1});
  f.owners[0].epoch = ShardEpoch{1, 3};
  f.queries.Check(seconds(10), std::nullopt, seconds(5), f.servers, f.owners);
  REQUIRE(f.answer);
  CHECK_FALSE(f.answer->complete);
  REQUIRE(f.answer->shards.size() == 2);
  CHECK(f.answer->shards[0].shard() == 1);
  CHECK(f.answer->shards[1].shard() == 2);
}

TEST_CASE("a query ends at its deadline, and not before") {
  Fixture f;
  f.Begin({.request = 5, .deadline = seconds(10)});
  f.queries.Check(seconds(9), std::nullopt, seconds(5), f.servers, f.owners);
  CHECK(f.answers == 0);
  f.queries.Check(seconds(10), std::nullopt, seconds(5), f.servers, f.owners);
  CHECK(f.answers == 1);
}

TEST_CASE(
    "a final report is requested beyond its deadline, and only from servers that still owe "
    "shards") {
  Fixture f;
  f.Begin({.request = 5, .deadline = seconds(10), .report = 3});
  // Server A's answer is complete, but does not have the second shard that server A owns.
  CHECK(f.Report(kServerA, 5, {0}));
  f.sent.clear();
  f.queries.Check(seconds(10), 3, seconds(5), f.servers, f.owners);
  REQUIRE(f.sent.size() == 1);
  CHECK(f.sent[0].first == kServerA);
  CHECK(f.queries.Missing(3, f.owners) == std::map<std::string, std::size_t>{{"a", 1}, {"b", 1}});
  CHECK(f.queries.Missing(4, f.owners).empty());
  CHECK(f.answers == 0);
  // The job now needs report number 4, so this query for report number 3 ends.
  f.queries.Check(seconds(15), 4, seconds(5), f.servers, f.owners);
  CHECK(f.answers == 1);
}

TEST_CASE("a new server is asked by queries that lack its shards") {
  Fixture f;
  f.servers.erase(kServerB);
  f.Begin({.request = 5, .deadline = seconds(10)});
  f.Begin({.request = 6, .deadline = seconds(10)});
  f.Report(kServerA, 5, {0, 1});
  f.sent.clear();
  f.queries.Ask(kServerB, ShardId(0));
  REQUIRE(f.sent.size() == 1);
  CHECK(f.sent[0].second.report_shards().request_id() == 6);
  f.sent.clear();
  f.queries.Ask(kServerB);
  CHECK(f.sent.size() == 2);
}

TEST_CASE("the query of a sealed job ends when no server owes an answer") {
  Fixture f;
  f.Begin({.request = 5, .deadline = seconds(10)});
  f.Report(kServerA, 5, {0}, false, /*all_spoken_ends=*/true);
  CHECK(f.answers == 0);
  f.queries.Forget(kServerB);
  f.Report(kServerA, 5, {}, false, /*all_spoken_ends=*/true);
  CHECK(f.answers == 1);
}

TEST_CASE("an answer may begin another query, and the end of the job answers all queries") {
  Fixture f;
  f.queries.Begin(
      {.request = 5, .deadline = seconds(1)}, f.servers,
      [&](const ShardQueries::Answer&) { f.Begin({.request = 6, .deadline = seconds(9)}); });
  f.queries.Check(seconds(1), std::nullopt, seconds(5), f.servers, f.owners);
  CHECK_FALSE(f.queries.empty());
  ShardQueries::Answer last;
  last.complete = true;
  f.queries.FinishAll(last);
  CHECK(f.queries.empty());
  REQUIRE(f.answer);
  CHECK(f.answer->complete);
}

}  // namespace
}  // namespace evergrad::coordinator
