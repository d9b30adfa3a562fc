// Tests LEDGER line 18a: a coordinator whose journal has lost a job that servers hold.
#include <catch2/catch.hpp>

#include "tests/unit/coordinator/service/task_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
constexpr std::uint64_t kLost = 0xabc;

// Returns the Hello of a server that holds one shard of `job`. The shard was assigned in the life
// `term` of a coordinator that kept a journal.
v1::Hello Holder(std::uint64_t job, std::uint64_t term, const std::string& identity = "0") {
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_PS_SERVER, identity, 100);
  hello.set_highest_term(term);
  hello.set_life_id(77);
  hello.set_journaled(true);
  v1::HeldShard* shard = hello.add_shards();
  shard->set_job_uid(job);
  shard->set_shard(3);
  shard->mutable_epoch()->set_term(term);
  shard->mutable_epoch()->set_n(1);
  *shard->mutable_start() = shard->epoch();
  return hello;
}

void Windowed(ControlOptions& options) { options.window = std::chrono::milliseconds(50); }
bool IsDrop(const v1::CoordinatorMessage& m) { return m.has_drop() || m.has_job_ended(); }

TEST_CASE(
    "a coordinator whose journal lost a job of a server ends before its first message, and the "
    "server keeps its shards") {
  MemoryStateStore store({.persistent = true});
  // The coordinator must not rely on the term in the journal. An empty journal may have been begun
  // several times since the job was lost.
  const std::uint64_t journal_term = GENERATE(0, 9);
  if (journal_term > 0) REQUIRE(store.CommitTerm(Term(journal_term)).ok());
  TestCluster c(Windowed, &store);
  TestTask& worker = c.Add(TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1));
  TestTask& server = c.Add(Holder(kLost, 5));
  REQUIRE(c.ended.WaitFor(std::chrono::seconds(20)));
  CHECK(c.end.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(c.end.message()),
             Contains("1 shard of job 0000000000000abc (term 5) at ps_server/0 (pid 100 on h)") &&
                 Contains("--forget-unknown-jobs") && Contains("Nothing was changed"));
  for (TestTask* task : {&worker, &server}) {
    const auto rejected = task->Rejected();
    REQUIRE(rejected);
    CHECK(rejected->kind() == "lost_journal");
    CHECK_FALSE(rejected->exit());
    CHECK(task->WaitEnd());
    CHECK_FALSE(
        task->Has([](const v1::CoordinatorMessage& m) { return m.has_registered() || IsDrop(m); }));
  }
  CHECK(store.term() == Term(journal_term));
}

TEST_CASE(
    "a server with a lost job after the start-up window ends a coordinator without jobs of its "
    "own") {
  MemoryStateStore store({.persistent = true});
  TestCluster c({}, &store);
  TestTask& server = c.Add(Holder(kLost, 1));
  REQUIRE(c.ended.WaitFor(std::chrono::seconds(20)));
  CHECK(server.WaitEnd());
  CHECK_FALSE(server.Has(IsDrop));
}

TEST_CASE(
    "a server with a lost job while another job lives is refused alone, and keeps its shards") {
  MemoryStateStore store({.persistent = true});
  TestCluster c({}, &store);
  REQUIRE(c.Submit(TestCluster::CountingYaml("own")).ok());
  TestTask& server = c.Add(Holder(kLost, 5, "1"));
  const auto rejected = server.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "lost_journal");
  CHECK_THAT(rejected->message(), Contains("job 0000000000000abc"));
  CHECK_FALSE(server.Has(IsDrop));
  c.AddWorker("0", 1);
  c.AddServer("0", 3);
  CHECK(c.WaitState("own", "SUCCEEDED").ok());
  CHECK(c.end.ok());
}

TEST_CASE("a coordinator without a journal does not drop the job of a coordinator with a journal") {
  TestCluster c(Windowed);
  TestTask& server = c.Add(Holder(kLost, 5));
  REQUIRE(c.ended.WaitFor(std::chrono::seconds(20)));
  CHECK(c.end.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(c.end.message()),
             Contains("started without a journal") &&
                 Contains("1 shard of job 0000000000000abc (term 5) at ps_server/0") &&
                 Contains("Start with --state-dir") && Contains("--forget-unknown-jobs") &&
                 Contains("Nothing was changed"));
  const auto rejected = server.Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "lost_journal");
  CHECK_FALSE(rejected->exit());
  CHECK(server.WaitEnd());
  CHECK_FALSE(
      server.Has([](const v1::CoordinatorMessage& m) { return m.has_registered() || IsDrop(m); }));
}

TEST_CASE(
    "shards of an unknown job are dropped on an operator's word, or if no journal held the job") {
  MemoryStateStore store({.persistent = GENERATE(true, false)});
  const bool forget = GENERATE(true, false), journaled = GENERATE(true, false);
  if (!forget && journaled) return;  // the other tests cover the case in which the job is kept
  TestCluster c([&](ControlOptions& o) { o.forget_unknown_jobs = forget; }, &store);
  v1::Hello hello = Holder(kLost, 5);
  hello.set_journaled(journaled);
  TestTask& server = c.Add(hello);
  CHECK(server.Wait(
      [](const v1::CoordinatorMessage& m) { return m.has_drop() && m.drop().job_uid() == kLost; }));
  CHECK(server.Registered()->journaled() == store.persistent());
  CHECK(c.end.ok());
}

TEST_CASE("shards of a job that was removed from the journal are dropped, because it is not lost") {
  MemoryStateStore store({.persistent = true});
  REQUIRE(store.Commit(JobUid(kLost), Record{}).ok());
  REQUIRE(store.Remove(JobUid(kLost)).ok());
  TestCluster c({}, &store);
  TestTask& server = c.Add(Holder(kLost, 5));
  CHECK(server.Wait(
      [](const v1::CoordinatorMessage& m) { return m.has_drop() && m.drop().job_uid() == kLost; }));
  CHECK(c.end.ok());
}

}  // namespace
}  // namespace evergrad::coordinator
