// Tests the rounds in which shards are cut, and the manifests of these rounds, without a Job
// object.
#include "coordinator/jobs/checkpoint_rounds.h"

#include <catch2/catch.hpp>

#include "common/snapshot/manifest.h"
#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;
using Stage = CheckpointRounds::Stage;

struct Fixture : PartFixture {
  explicit Fixture(bool given = true) {
    id.spec.checkpoint.every = seconds(1);
    id.spec.checkpoint.given = given;
    Place();
    rounds.emplace(Part(), &epochs,
                   CheckpointRounds::Hooks{.round_ended = [] {},
                                           .saved = [](const v1::Manifest&) {},
                                           .over = [this] { said.push_back("over"); }});
    rounds->SetStage(Stage::kWorking);
  }
  void Tick(std::chrono::milliseconds later = seconds(2)) {
    host.clock.Advance(later);
    rounds->Tick(host.Now(), false);
  }
  // Returns the server's answer to a cut of `shard`.
  v1::ShardDurable Durable(std::uint32_t shard) {
    v1::CutShards cut;
    cut.set_job_uid(id.uid.value());
    cut.set_folder(rounds->folder());
    cut.set_plan_fingerprint(plan_message.fingerprint());
    v1::ShardDurable durable;
    durable.set_job_uid(cut.job_uid());
    durable.set_shard(shard);
    *durable.mutable_epoch() = EpochOf(shard);
    *durable.mutable_file() = WriteShardFile(
        host.disk.get(), cut, plan_message.shards(static_cast<int>(shard)), EpochOf(shard),
        client::ToProto(book->durable().map[shard].start), ++lsn, IntervalSet(), IntervalSet());
    return durable;
  }
  v1::ShardDurable Failed(std::uint32_t shard, const absl::Status& status) {
    v1::ShardDurable durable;
    durable.set_shard(shard);
    *durable.mutable_epoch() = EpochOf(shard);
    *durable.mutable_error() = client::ToErrorDetail(status);
    return durable;
  }
  void Save(std::uint32_t shard) {
    REQUIRE(rounds->OnDurable(shard == 0 ? kFirst : kSecond, Durable(shard)).ok());
  }
  void SaveAll() {
    Save(0);
    Save(1);
    RunFileThread();
  }
  std::size_t CutsOf(TaskId task) {
    std::size_t cuts = 0;
    for (const v1::CoordinatorMessage& message : Take(task)) cuts += message.has_cut();
    return cuts;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  std::optional<CheckpointRounds> rounds;
  std::uint64_t lsn = 0;
};

TEST_CASE("a round orders a cut of each shard, and its manifest names their files") {
  Fixture f;
  f.Tick();
  REQUIRE(f.CutsOf(f.kFirst) == 1);
  REQUIRE(f.CutsOf(f.kSecond) == 1);
  f.Save(0);
  // The name of the saved file is first committed to the journal.
  CHECK(f.said == std::vector<std::string>{"persist"});
  CHECK(f.rounds->round_open());
  f.Save(1);
  CHECK_FALSE(f.rounds->round_open());
  CHECK(f.rounds->status().number() == 0);
  f.RunFileThread();
  CHECK(f.rounds->status().number() == 1);
  CHECK(f.note.checkpoint().number() == 1);
  const auto newest = snapshot::FindNewestManifest(*f.host.disk, f.rounds->folder());
  REQUIRE(newest.ok());
  CHECK(newest->manifest.shards(1).file() == f.book->NewestSnapshot(ShardId(1))->file);
  f.Tick();
  CHECK(f.rounds->round_open());
  f.rounds->SetStage(Stage::kSealing);
  CHECK_FALSE(f.rounds->round_open());
}

TEST_CASE("shards without an owner are not cut, and only their owner saves the others") {
  Fixture f;
  f.shards.Unplace(ShardId(0));
  f.Tick();
  CHECK(f.CutsOf(f.kFirst) == 0);
  CHECK(f.rounds->OnDurable(f.kFirst, f.Durable(1)).ok());
  CHECK(f.host.foreign == std::vector<std::string>{"ShardDurable for a shard of another server"});
  CHECK(f.said.empty());
  v1::ShardDurable malformed = f.Durable(1);
  malformed.mutable_file()->set_lsn(77);
  CHECK(absl::IsInvalidArgument(f.rounds->OnDurable(f.kSecond, malformed)));
}

TEST_CASE("a manifest is written without a shard that does not answer within a minute") {
  Fixture f;
  f.Tick();
  f.SaveAll();
  const std::string former = f.book->NewestSnapshot(ShardId(1))->file;
  f.Tick();
  f.Save(0);
  f.Tick(seconds(30));
  CHECK(f.rounds->round_open());
  f.Tick(seconds(31));
  f.RunFileThread();
  CHECK(f.rounds->status().number() == 2);
  CHECK(f.Said("some shards are not saved after 61 s: shards=1 first=1 at ps_server/b"));
  CHECK_FALSE(f.Said("written again"));
  CHECK(snapshot::FindNewestManifest(*f.host.disk, f.rounds->folder())->manifest.shards(1).file() ==
        former);
}

TEST_CASE("a permanent error fails a job that asked for checkpoints, and other jobs continue") {
  const bool given = GENERATE(true, false);
  Fixture f(given);
  f.Tick();
  CHECK(f.rounds->OnDurable(f.kFirst, f.Failed(0, absl::PermissionDeniedError("no"))).ok());
  CHECK(f.Said("fail user: checkpoint: ps_server/a: no") == given);
  CHECK(f.Said("continues without checkpoints") == !given);
  CHECK(f.rounds->on() == given);
}

TEST_CASE("a server's trouble is reported once a minute, also from time 0 of the clock on") {
  Fixture f;
  f.rounds->BeginRound();
  v1::ShardDurable durable = f.Failed(0, absl::UnavailableError("disk full"));
  durable.set_tried_again(true);
  const auto report = [&] {
    REQUIRE(f.rounds->OnDurable(f.kFirst, durable).ok());
    return std::count(f.said.begin(), f.said.end(),
                      "warning: cannot write a checkpoint, retrying: ps_server/a: disk full");
  };
  REQUIRE(f.host.Now() == MonoTime{0});
  CHECK(report() == 1);
  f.host.clock.Advance(seconds(59));
  CHECK(report() == 1);
  f.host.clock.Advance(seconds(1));
  CHECK(report() == 2);
}

TEST_CASE("the last checkpoint waits for equal ledgers and ends when it is written") {
  Fixture f;
  f.shards.Give(ShardId(1), false);
  f.rounds->SetStage(Stage::kLast);
  f.Tick();
  CHECK(f.said == std::vector<std::string>{"closes"});
  f.shards.Give(ShardId(1), true);
  // Every owner accepts every Close that the book has for its shards.
  for (const auto& [task, server] : f.shards.servers()) {
    for (const auto& close : f.book->MakeCloses(task, server.identity))
      f.book->OnClosed(task, close.shard, close.epoch, true);
  }
  f.Tick();
  f.SaveAll();
  CHECK(f.rounds->status().complete());
  CHECK(f.said.back() == "over");
}

TEST_CASE("a rollback makes the last manifest an ordinary one") {
  Fixture f;
  f.rounds->SetStage(Stage::kLast);
  f.rounds->BeginRound();
  f.Save(0);
  f.Save(1);
  f.rounds->SetStage(Stage::kWorking);
  f.rounds->SetStage(Stage::kLast);
  f.RunFileThread();
  CHECK(f.rounds->status().number() == 1);
  CHECK_FALSE(f.Said("over"));
}

TEST_CASE("a sealed job waits for a shard only for a limited time, and reports an unsaved one") {
  Fixture f;
  f.rounds->SetStage(Stage::kSealed);
  f.rounds->BeginRound();
  f.Save(0);
  CHECK(f.rounds->WaitingFor() == "shards to be saved: 1 left");
  f.Tick(f.options.seal_timeout - std::chrono::milliseconds(1));
  CHECK_FALSE(f.Said("over"));
  f.Tick(std::chrono::milliseconds(1));
  CHECK(f.Said("1 of 2 shards were not saved in this state, first=1 at ps_server/b"));
  CHECK(f.said.back() == "over");
}

TEST_CASE("a restart restores the newest checkpoint, and the end of checkpoints") {
  Fixture f(false);
  f.Tick();
  f.SaveAll();
  v1::JobSnapshot snapshot;
  f.rounds->Fill(&snapshot);
  Fixture next(false);
  next.rounds->Read(snapshot);
  CHECK(next.rounds->status().number() == 1);
  CHECK(next.rounds->on());
  snapshot.set_checkpoints_off(true);
  next.rounds->Read(snapshot);
  CHECK_FALSE(next.rounds->on());
}

}  // namespace
}  // namespace evergrad::coordinator
