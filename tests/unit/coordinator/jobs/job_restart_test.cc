// Tests that the coordinator's process may end at any moment, and that another process continues
// the job from the store. Nothing may be counted twice or lost, the sums must be the same to the
// bit, and metrics.jsonl must have no gap and no line twice.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "common/random/philox.h"
#include "evergrad/v1/journal.pb.h"
#include "lines_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Json = nlohmann::json;

void CheckFiles(const FakeCluster& c, std::uint64_t steps, std::uint64_t epochs) {
  std::uint64_t step = 0, epoch = 0, ends = 0, submitted = 0;
  for (const Json& line : Lines(c)) {
    CHECK(ends == 0);
    if (line["kind"] == "step") CHECK(line["step"] == step++);
    if (line["kind"] == "epoch") CHECK(line["epoch"] == ++epoch);
    if (line["kind"] == "event" && line["text"] == "submitted") ++submitted;
    if (line["kind"] == "end") ++ends;
  }
  CHECK(step == steps);
  CHECK(epoch == epochs);
  CHECK(submitted == 1);
  CHECK(ends == 1);
}

TEST_CASE(
    "a task that leaves or joins while the last files are written is reported, but not after the "
    "end line") {
  for (const bool journal : {false, true}) {
    FakeCluster c({}, {.jobs_max = 8, .torn_max = 0, .persistent = journal});
    AddTasks(c);
    c.host.while_written = [&] {
      if (!c.job->writing()) return;  // this is the write of job.yaml at the start of the job
      c.job->OnServerAway(c.servers["1"].task, "its session closed");
      c.KillWorker("1");
      c.job->Tick();
    };
    REQUIRE(c.RunToEnd());
    c.Deliver();
    CheckFiles(c, 32, 2);
    CHECK(Lines(c).back()["kind"] == "end");
    int told = 0;
    const v1::JobStatus status = c.Status();
    for (const v1::Event& event : status.events())
      told += event.kind() == "away" || event.kind() == "death";
    CHECK(told == 2);
  }
}

TEST_CASE("concurrent Dones are one commit, and none is answered before it") {
  FakeCluster c([](config::JobSpec&, JobOptions& o) { o.sizing.attempts_max = 8; },
                {.persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  const auto all_held = [&] {
    return c.workers["0"].held.size() >= 2 && c.workers["1"].held.size() >= 2;
  };
  REQUIRE(c.Run(all_held));
  c.turns_held = true;
  const std::uint64_t before = c.host.memory.accepted();
  std::size_t said = 0;
  for (auto& [identity, worker] : c.workers) {
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
      c.Finish(worker, grant);
      ++said;
    }
  }
  CHECK(c.host.memory.accepted() == before);
  for (auto& [identity, worker] : c.workers) CHECK(c.host.sent[worker.task].empty());
  CHECK(c.Status().closures_succeeded() == said);

  SECTION("the process ends before its turn, and the Dones are repeated and counted once") {
    c.turns_held = false;
    c.Restart();
    CHECK(c.Status().closures_succeeded() == said);
  }
  SECTION("the turn ends") {
    c.turns_held = false;
    c.job->EndTurn();
    CHECK(c.host.memory.accepted() == before + 1);
    std::size_t answers = 0, grants = 0;
    for (auto& [identity, worker] : c.workers) {
      for (const v1::CoordinatorMessage& m : c.host.sent[worker.task]) {
        answers += m.has_done_answer() && !m.done_answer().superseded();
        grants += m.has_grant();
      }
    }
    CHECK(answers == said);
    CHECK(grants > 0);
  }
  SECTION("any other commit includes the Dones") {
    c.job->Tick();
    CHECK(c.host.memory.accepted() == before + 1);
    c.turns_held = false;
    c.Restart();
    CHECK(c.Status().closures_succeeded() == said);
  }
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  REQUIRE(c.RunToEnd());
  CheckFiles(c, 32, 2);
}

TEST_CASE("a job that resumes at any moment, repeatedly, ends as without interruptions") {
  FakeCluster quiet;
  AddTasks(quiet);
  REQUIRE(quiet.RunToEnd());
  const v1::JobStatus want = quiet.Status();
  REQUIRE(want.state() == "SUCCEEDED");

  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::uint64_t drawn = 0;
    const auto below = [&](std::uint64_t n) {
      return static_cast<std::uint64_t>(random::Uniform(seed, drawn++) * static_cast<double>(n));
    };
    FakeCluster c([&](config::JobSpec&,
                      JobOptions& o) { o.notes_max = 1 + static_cast<std::uint32_t>(seed % 7); },
                  {.jobs_max = 8, .torn_max = seed % 3 == 0 ? 4u : 0u, .persistent = true});
    // Some closures stay unfinished for a while, so that the next process has attempts to adopt.
    c.hold = [&](const FakeWorker&, const v1::Grant&) { return below(3) == 0; };
    AddTasks(c);
    for (int life = 0; life < 5 && !c.job->ended(); ++life) {
      const int turns = static_cast<int>(below(14));
      for (int i = 0; i < turns && !c.job->ended(); ++i) {
        c.Run([] { return false; }, std::chrono::milliseconds(25 * below(2)));
        c.turns_held = below(3) == 0;
        if (!c.turns_held) c.job->EndTurn();
        for (auto& [identity, worker] : c.workers) {
          for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
            if (below(2) == 0) c.Finish(worker, grant);  // the process may end before it answers
          }
        }
      }
      if (c.job->ended()) break;
      c.host.memory.TearTail(below(4));
      c.Restart();
    }
    c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    c.turns_held = false;
    c.job->EndTurn();
    for (auto& [identity, worker] : c.workers) {
      c.FinishHeld(worker);
    }
    const bool ended = c.RunToEnd();
    INFO(c.Status().ShortDebugString());
    REQUIRE(ended);
    c.Deliver();
    CHECK(c.refused.empty());
    CHECK(c.host.store_failure.ok());
    const v1::JobStatus got = c.Status();
    CHECK(got.state() == "SUCCEEDED");
    CHECK(got.closures_succeeded() == want.closures_succeeded());
    CHECK(got.closures_failed() == 0);
    CHECK(got.closures_cancelled() == 0);
    CHECK(got.steps_done() == want.steps_done());
    CHECK(got.attempts() >= got.closures_succeeded());
    REQUIRE(got.epoch_rows_size() == want.epoch_rows_size());
    for (int i = 0; i < got.epoch_rows_size(); ++i) {
      CHECK(got.epoch_rows(i).steps() == want.epoch_rows(i).steps());
      CHECK(got.epoch_rows(i).train_loss() == want.epoch_rows(i).train_loss());  // equal to the bit
      CHECK(got.epoch_rows(i).counting_sum() == want.epoch_rows(i).counting_sum());
    }
    CheckFiles(c, 32, 2);
    const Json result = Json::parse(c.host.files.at("/runs/fake/result.json"));
    CHECK(result["closures"]["succeeded"] == 16);
    std::uint64_t worker_steps = 0;
    for (const Json& task : result["tasks"])
      worker_steps += task["role"] == "worker" ? task["steps"].get<std::uint64_t>() : 0;
    CHECK(worker_steps == 32);

    // The next life of the coordinator must still know a job that has ended.
    auto later =
        Job::Restore(&c.host, c.options, c.job->uid(), *c.host.memory.LoadJob(c.job->uid()));
    REQUIRE(later.ok());
    CHECK((*later)->ended());
    v1::JobStatus status;
    (*later)->FillStatus(&status, 0);
    CHECK(status.state() == "SUCCEEDED");
    CHECK(status.result_json() == got.result_json());
    CHECK(status.epoch_rows_size() == got.epoch_rows_size());
  }
}

TEST_CASE("servers with the shards of the map keep them over a restart, without a rollback") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4; }));
  const auto starts = [&] {
    std::vector<std::uint64_t> found;
    for (const auto& [identity, server] : c.servers) {
      for (const auto& [p, shard] : server.shards)
        found.push_back(shard.assign.epoch().term() * 1000 + shard.assign.epoch().n());
    }
    return found;
  };
  const auto before = starts();
  c.Restart();
  c.Deliver();
  CHECK(starts() == before);
  CHECK(c.last_adopted.size() > 0);
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "RUNNING");
  CHECK(status.closures_rerun() == 0);
  // The revision of the status is above every revision of the former life, so a client that waits
  // for a change gets an answer.
  CHECK(status.revision() > (1ull << 32));
}

TEST_CASE(
    "a plan that was divided for its servers is the same after a restart, whatever limits the "
    "servers report") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.server_budget_bytes_max = (64u << 10) + 16;  // limits partitions to four rows
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4; }));
  const auto shards = [&] {
    return c.servers.at("0").shards.size() + c.servers.at("1").shards.size();
  };
  CHECK(shards() == 16);
  c.server_budget_bytes_max = 0;
  c.Restart();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  CHECK(c.job->state() == JobState::kSucceeded);
  CHECK(c.Status().closures_rerun() == 0);
}

TEST_CASE(
    "a server that does not return with the coordinator is awaited by name, then its shards are "
    "moved") {
  FakeCluster c(
      [](config::JobSpec&, JobOptions& o) { o.server_lost_after = std::chrono::seconds(3); },
      {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4; }));
  c.Restart({"1"});
  c.Deliver();
  CHECK_THAT(c.Status().waiting_for(),
             Contains("ps_server/1 has not reconnected since the coordinator restarted"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "SUCCEEDED");
  CHECK(status.closures_rerun() >= 4);
  const Json result = Json::parse(status.result_json());
  CHECK(result["deaths"].size() == 1);
  CHECK(result["deaths"][0]["task"] == "ps_server/1");
}

TEST_CASE(
    "a pending cancellation continues after a restart, and a silent server's shards are unmapped") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4; }));
  for (auto& [identity, server] : c.servers) server.silent = true;
  c.job->Cancel();
  const std::uint64_t attempts = c.Status().attempts();
  c.Restart({"1"});
  CHECK_FALSE(c.job->ended());
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "CANCELLED");
  CHECK(status.attempts() == attempts);
  CHECK(status.closures_succeeded() == 4);
  CHECK(status.closures_cancelled() > 0);
}

TEST_CASE("while the store accepts nothing no work is granted, and the job reports the reason") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.host.trouble = "out of space for the coordinator's journal";
  AddTasks(c);
  c.Run([] { return false; }, std::chrono::seconds(1));
  CHECK(c.granted.empty());
  CHECK(c.Status().waiting_for() ==
        "the coordinator's journal: out of space for the coordinator's journal");
  c.host.trouble.clear();
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
}

TEST_CASE("a jump of the wall clock by an hour, also over a restart, changes only labels") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() >= 4; }));
  c.host.wall_offset_ms += 3'600'000;
  c.Run([] { return false; }, std::chrono::seconds(1));
  c.host.wall_offset_ms -= 7'200'000;
  c.Run([] { return false; }, std::chrono::seconds(1));
  c.Restart();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "SUCCEEDED");
  CHECK(status.attempts() == status.closures_succeeded());
  CHECK(Json::parse(status.result_json())["deaths"].empty());
  for (const v1::EpochRow& row : status.epoch_rows())
    CHECK((row.seconds() >= 0 && row.seconds() < 10));
}

TEST_CASE("a job that cannot be resumed is named") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  StoredJob stored = *c.host.memory.LoadJob(c.job->uid());
  stored.snapshot = "garbage";
  const absl::Status status = Job::Restore(&c.host, c.options, c.job->uid(), stored).status();
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(status.message()), Contains("job=0000000000abcdef"));
}

TEST_CASE("a journal row of a training job without a plan is refused, and names the job") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().state() == "RUNNING"; }));
  StoredJob stored = *c.host.memory.LoadJob(c.job->uid());
  v1::JobSnapshot snapshot;
  REQUIRE(snapshot.ParseFromString(stored.snapshot));
  REQUIRE(snapshot.phase() == "training");
  snapshot.set_has_plan(false);
  stored.snapshot = snapshot.SerializeAsString();
  stored.notes.clear();
  const absl::Status status = Job::Restore(&c.host, c.options, c.job->uid(), stored).status();
  CHECK_THAT(std::string(status.message()), Contains("job=0000000000abcdef"));
  CHECK_THAT(std::string(status.message()), Contains("no plan in phase training"));
}

TEST_CASE("a version with another plan of a job shows it if it has ended, and otherwise names it") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  const auto of_another_version = [&] {
    StoredJob stored = *c.host.memory.LoadJob(c.job->uid());
    v1::JobSnapshot snapshot;
    REQUIRE(snapshot.ParseFromString(stored.snapshot));
    REQUIRE(snapshot.has_plan());
    snapshot.set_plan_fingerprint("of another version");
    stored.snapshot = snapshot.SerializeAsString();
    return Job::Restore(&c.host, c.options, c.job->uid(), stored);
  };
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().state() == "RUNNING"; }));
  CHECK_THAT(std::string(of_another_version().status().message()),
             Contains("this version builds a different plan for the job"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  const auto job = of_another_version();
  INFO(job.status());
  REQUIRE(job.ok());
  v1::JobStatus status;
  (*job)->FillStatus(&status, 0);
  CHECK(status.state() == "SUCCEEDED");
  CHECK(status.steps_total() == c.Status().steps_total());
  CHECK(status.result_json() == c.Status().result_json());
}

TEST_CASE(
    "a version that refuses a job's YAML or plan shows an ended job, and names a living one with "
    "the reason") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  const bool yaml_refused = GENERATE(true, false);
  CAPTURE(yaml_refused);
  const std::string why = yaml_refused ? "this version refuses the job's YAML: "
                                       : "this version cannot build the job's plan: ";
  const auto by_another_version = [&] {
    StoredJob stored = *c.host.memory.LoadJob(c.job->uid());
    v1::JobSnapshot snapshot;
    REQUIRE(snapshot.ParseFromString(stored.snapshot));
    REQUIRE(snapshot.has_plan());
    if (yaml_refused) {
      snapshot.set_yaml("spec: {of: another version}\n");
    } else {
      // No plan can be built from a description that names a variable twice.
      const v1::VariableSpec again = snapshot.described().variables(0);
      *snapshot.mutable_described()->add_variables() = again;
    }
    v1::CountedClosure* unfolded = snapshot.add_unfolded();  // a failed job may have such closures
    unfolded->set_closure(1'000'000);
    stored.snapshot = snapshot.SerializeAsString();
    return Job::Restore(&c.host, c.options, c.job->uid(), stored);
  };
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().state() == "RUNNING"; }));
  const absl::Status living = by_another_version().status();
  CHECK(living.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(living.message()),
             Contains("job=0000000000abcdef name=" + c.Status().name() + " reason=" + why));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  const auto job = by_another_version();
  INFO(job.status());
  REQUIRE(job.ok());
  v1::JobStatus shown;
  (*job)->FillStatus(&shown, 0);
  const v1::JobStatus status = c.Status();
  CHECK(shown.name() == status.name());
  CHECK(shown.state() == "SUCCEEDED");
  CHECK(shown.result_json() == status.result_json());
  CHECK(shown.closures_succeeded() == status.closures_succeeded());
  CHECK(shown.steps_done() == status.steps_done());
  CHECK(shown.epoch_rows_size() == status.epoch_rows_size());
  CHECK(shown.epochs() == status.epochs());
  CHECK(shown.workers_size() == status.workers_size());
  REQUIRE(shown.events_size() == status.events_size() + 1);
  CHECK_THAT(shown.events(shown.events_size() - 1).text(),
             StartsWith("restored from the journal without its variables: " + why));
  CHECK((*job)->plan_message() == nullptr);
  // The job has ended, so none of these calls may do anything, and the query must be answered.
  (*job)->Resume(Term(99));
  (*job)->Tick();
  (*job)->Cancel();
  bool answered = false;
  (*job)->QueryShards(true, std::chrono::seconds(1),
                      [&](const Job::ShardAnswer&) { answered = true; });
  CHECK(answered);
  CHECK((*job)->ended());
}

TEST_CASE(
    "a shard that is adopted from its newest owner is dropped by the owner in the torn journal") {
  MemoryStateStore::Options store;
  store.persistent = true;
  store.torn_max = 64;
  FakeCluster c({}, store);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().state() == "RUNNING"; }));
  const FakeServer zombie = c.servers["0"];
  REQUIRE(zombie.shards.size() == 2);
  // The shards of server 0 move to the other server. Then the journal loses the record of this, and
  // server 0 turns out to be alive.
  c.job->OnServerLost(zombie.task, "0", "silent", false);
  REQUIRE(c.Run([&] { return c.servers["1"].shards.size() == 4; }));
  const auto owner_of_first = [&] {
    return c.host.memory.Load(c.job->uid())->map[zombie.shards.begin()->first].server;
  };
  while (owner_of_first() != "0") REQUIRE(c.host.memory.TearTail(1) == 1);
  c.Restart();
  c.Deliver();
  CHECK(c.servers["0"].shards.empty());
  CHECK(c.servers["1"].shards.size() == 4);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
}

}  // namespace
}  // namespace evergrad::coordinator
