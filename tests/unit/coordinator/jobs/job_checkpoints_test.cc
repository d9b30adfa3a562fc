// Tests the checkpoints of a job: rounds of cuts, manifests, retention, the state to which a lost
// shard returns, the last checkpoint, and resuming.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "common/snapshot/manifest.h"
#include "job_fixture.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

constexpr char kFolder[] = "/runs/fake-0000000000abcdef/checkpoint";

// Returns the settings of a job that makes a checkpoint every 200 ms of the manual clock.
std::function<void(config::JobSpec&, JobOptions&)> Saving(
    std::function<void(config::JobSpec&, JobOptions&)> more = {}) {
  return [more](config::JobSpec& spec, JobOptions& options) {
    spec.checkpoint.on = true;
    spec.checkpoint.given = true;
    spec.checkpoint.every = std::chrono::milliseconds(200);
    if (more) more(spec, options);
  };
}

void AddTasks(FakeCluster& c) {
  c.AddServer("0");
  c.AddServer("1");
  c.AddWorker("0");
  c.job->Start();
}

// Finishes the closures below `limit` that the workers hold.
void FinishHeld(FakeCluster& c, std::uint64_t limit = ~0ull) {
  for (auto& [identity, worker] : c.workers) {
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held))
      if (grant.closure() < limit) c.Finish(worker, grant);
  }
}

std::vector<std::string> FilesIn(const FakeCluster& c, const char* folder = kFolder) {
  std::vector<std::string> names;
  const auto list = c.host.disk->List(folder);
  if (!list.ok()) return names;
  for (const fs::ListedFile& entry : *list) names.push_back(entry.name);
  return names;
}

v1::Manifest Newest(const FakeCluster& c, const char* folder = kFolder) {
  const auto newest = snapshot::FindNewestManifest(*c.host.disk, folder);
  REQUIRE(newest.ok());
  return newest->manifest;
}

IntervalSet DoneOf(const v1::ShardFile& file) {
  const auto done = client::FromProto(file.done());
  REQUIRE(done.ok());
  return *done;
}

TEST_CASE("a job that succeeds leaves a complete manifest whose files hold all of its closures") {
  FakeCluster c(Saving());
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  REQUIRE(c.Status().state() == "SUCCEEDED");
  const v1::Manifest manifest = Newest(c);
  CHECK(manifest.complete());
  CHECK(manifest.job_name() == "fake");
  REQUIRE(manifest.shards_size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(DoneOf(manifest.shards(i)).ToString() == IntervalSet::Range(0, 16).ToString());
    CHECK(snapshot::CheckShardOf(*c.host.disk, kFolder, manifest, i, true).ok());
  }
  // Counts the manifest's metrics of both epochs.
  int losses = 0, counts = 0;
  for (const v1::FinishedMetric& metric : manifest.metrics()) {
    losses += metric.scope() == "train" && metric.name() == "loss";
    counts += metric.scope() == "eval" && metric.name() == "count";
  }
  CHECK(losses == 2);
  CHECK(counts == 2);
  const v1::CheckpointStatus status = c.Status().checkpoint();
  CHECK(status.complete());
  CHECK(status.number() == manifest.number());
  const Json result = Json::parse(c.host.files.at("/runs/fake-0000000000abcdef/result.json"));
  CHECK(result["checkpoint"]["complete"] == true);
  CHECK(result["checkpoint"]["path"] ==
        std::string(kFolder) + "/" + snapshot::ManifestName(manifest.number()));
  CHECK(result["repair"]["shards_rolled_back"] == 0);
}

TEST_CASE("without checkpoints no shard is cut and no file is written") {
  FakeCluster c([](config::JobSpec& spec, JobOptions&) { spec.checkpoint.on = false; });
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.cuts == 0);
  CHECK(c.host.disk->bytes() == 0);
  CHECK_FALSE(c.Status().has_checkpoint());
}

TEST_CASE(
    "manifests beyond `keep` are retired, and their files are deleted once the journal has "
    "forgotten them") {
  FakeCluster c(Saving([](config::JobSpec& spec, JobOptions&) {
    spec.checkpoint.keep = 2;
    spec.training.epochs = 4;
  }));
  AddTasks(c);
  // The test finishes one closure per second, so that there are several checkpoint rounds.
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  for (int i = 0; i < 20; ++i) {
    REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
    const MonoTime until = c.host.clock.Now() + std::chrono::seconds(1);
    c.Run([&] { return c.host.clock.Now() >= until; });
    const v1::Grant grant = c.workers["0"].held.front();
    c.Finish(c.workers["0"], grant);
  }
  c.Run([&] { return false; }, std::chrono::seconds(1));
  std::size_t manifests = 0, shards = 0;
  std::set<std::string> named;
  for (const std::string& name : FilesIn(c)) {
    if (const auto number = snapshot::ParseManifestName(name)) {
      ++manifests;
      const auto manifest = snapshot::ReadManifest(*c.host.disk, fs::JoinUri(kFolder, name));
      REQUIRE(manifest.ok());
      for (const v1::ShardFile& file : manifest->shards()) named.insert(file.file());
    } else {
      ++shards;
    }
  }
  CHECK(manifests == 2);
  CHECK(c.Status().checkpoint().manifests() > 10);
  CHECK(shards >= named.size());
  CHECK(shards <= named.size() + 4);  // a shard's newest file may be newer than all manifests
  // All files that the journal names must exist.
  const auto stored = c.host.memory.Load(c.job->uid());
  REQUIRE(stored.ok());
  for (const auto& snapshots : stored->snapshots) {
    CHECK(snapshots.size() <= 3);
    for (const Snapshot& s : snapshots) CHECK(c.host.disk->Exists(s.Uri()).value());
  }
}

TEST_CASE(
    "the event of a rollback counts the ended closures that run again, over all shards together") {
  FakeCluster c(Saving());
  AddTasks(c);
  std::uint64_t finish = 5;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  const auto saved = [&](const std::set<std::uint32_t>& shards, std::uint64_t closures) {
    const DurableState state = *c.host.memory.Load(c.job->uid());
    for (const std::uint32_t s : shards)
      if (state.snapshots[s].empty() ||
          state.snapshots[s].back().done.ToString() != IntervalSet::Range(0, closures).ToString())
        return false;
    return true;
  };
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 5 && saved({0, 1, 2, 3}, 5); }));
  const DurableState state = *c.host.memory.Load(c.job->uid());
  std::vector<std::uint32_t> of_one;
  for (std::uint32_t s = 0; s < 4; ++s)
    if (state.map[s].server == "1") of_one.push_back(s);
  REQUIRE(of_one.size() == 2);
  SECTION("the snapshots lack no closure") {
    c.AddServer("1", /*keeps=*/false);
    CHECK_THAT(AllEvents(c), Contains("2 shards go back to the newest snapshot; no closure that "
                                      "had ended is run again for these shards"));
  }
  SECTION("one of two shards was saved again") {
    c.cut_error = [&](const v1::CutShards&, std::uint32_t shard) {
      return shard == of_one[0] ? absl::DeadlineExceededError("held") : absl::OkStatus();
    };
    finish = 6;
    FinishHeld(c, finish);
    REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 6 && saved({of_one[1]}, 6); }));
    c.AddServer("1", /*keeps=*/false);
    CHECK_THAT(AllEvents(c), Contains("2 shards go back to the newest snapshot; up to 1 closure "
                                      "that had ended is run again for these shards"));
  }
}

TEST_CASE(
    "a lost server's shards return to their newest snapshots, and only missing closures run again "
    "on them") {
  FakeCluster c(Saving());
  AddTasks(c);
  std::uint64_t finish = 5;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 5; }));
  // Waits until the snapshot files of all shards contain all five closures.
  REQUIRE(c.Run([&] {
    const DurableState state = *c.host.memory.Load(c.job->uid());
    for (const auto& snapshots : state.snapshots)
      if (snapshots.empty() ||
          snapshots.back().done.ToString() != IntervalSet::Range(0, 5).ToString())
        return false;
    return true;
  }));
  // From now on server 1 saves no files, while three more closures run.
  c.cut_error = [](const v1::CutShards&, std::uint32_t) {
    return absl::DeadlineExceededError("held");
  };
  finish = 8;
  FinishHeld(c, finish);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 8; }));
  c.cut_error = [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  c.assigns.clear();
  c.granted.clear();
  c.AddServer("1", /*keeps=*/false);
  c.AddWorker("1");  // worker 0 is busy
  REQUIRE(c.Run([&] { return c.assigns.size() == 2 && c.Status().closures_rerun() == 3; }));
  for (const v1::Assign& assign : c.assigns) {
    CHECK(assign.has_snapshot());
    CHECK(assign.snapshot().sha256().size() == 32);
    CHECK(assign.snapshot().job_uid() == c.job->uid().value());
    CHECK_FALSE(assign.snapshot().resumed());
  }
  std::set<std::uint64_t> rerun;
  for (const v1::Grant& g : c.granted) {
    if (g.kind() != v1::TRAIN || g.all_targets()) continue;
    CHECK(g.targets_size() == 2);
    rerun.insert(g.closure());
  }
  CHECK(rerun == std::set<std::uint64_t>{5, 6, 7});
  CHECK_THAT(AllEvents(c),
             Contains("ps_server/1 registered without the shards that it held: 2 shards go back "
                      "to the newest snapshot; up to 3 closures that had "
                      "ended are run again for these shards"));
  finish = ~0ull;
  FinishHeld(c, finish);
  REQUIRE(c.RunToEnd());
  REQUIRE(c.Status().state() == "SUCCEEDED");
  const Json result = Json::parse(c.host.files.at("/runs/fake-0000000000abcdef/result.json"));
  CHECK(result["repair"]["shards_rolled_back"] == 2);
  CHECK(result["repair"]["closures_rerun"] == 3);
  CHECK(result["repair"]["updates_redone"] == 6);
  CHECK(Newest(c).complete());
}

TEST_CASE("a damaged newest file is replaced by an older one and then by the seed, with an event") {
  FakeCluster c(Saving());
  AddTasks(c);
  std::uint64_t finish = 3;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  const auto go = [&](std::uint64_t to) {
    finish = to;
    FinishHeld(c, finish);
    REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == to; }));
    c.Run([] { return false; }, std::chrono::seconds(1));
  };
  go(3);
  go(6);
  std::vector<Snapshot> known = c.host.memory.Load(c.job->uid())->snapshots[0];
  REQUIRE(known.size() >= 2);
  const std::string owner = c.servers["0"].shards.count(0) != 0 ? "0" : "1";
  REQUIRE(c.host.disk->Damage(known.back().Uri(), 100, std::byte{1}).ok());
  c.assigns.clear();
  SECTION("the file before is used") {
    c.AddServer(owner, /*keeps=*/false);
    c.AddWorker("1");
    REQUIRE(c.Run([&] { return c.job->WaitingFor().empty() && c.Status().closures_rerun() > 0; }));
    CHECK_THAT(AllEvents(c), Contains("shard 0 cannot be restored from its snapshot"));
    CHECK_THAT(AllEvents(c), Contains(known.back().file));
    CHECK_THAT(AllEvents(c),
               Contains("the previous snapshot is used: " + known[known.size() - 2].file));
  }
  SECTION("the seed is used") {
    for (const Snapshot& s : known) {
      if (&s != &known.back()) REQUIRE(c.host.disk->Remove(s.Uri()).ok());
    }
    c.AddServer(owner, /*keeps=*/false);
    c.AddWorker("1");
    REQUIRE(c.Run([&] { return c.job->WaitingFor().empty() && c.Status().closures_rerun() > 0; }));
    CHECK_THAT(AllEvents(c), Contains("the shard starts from its initial values"));
  }
  // Only shard 0 lost its file. The other shards of the server must be restored from their files.
  for (const v1::Assign& assign : c.assigns) {
    if (assign.spec().shard() != 0) CHECK(assign.has_snapshot());
  }
  go(12);
  finish = ~0ull;
  FinishHeld(c, finish);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
}

TEST_CASE("manifests are written during the repair of a shard and the absence of a server") {
  FakeCluster c(Saving());
  AddTasks(c);
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 4;
  };
  REQUIRE(c.Run([&] {
    return c.Status().closures_succeeded() == 4 && c.Status().checkpoint().number() >= 1;
  }));
  c.job->OnServerAway(c.servers["1"].task, "its session closed");
  c.servers["1"].silent = true;
  const std::uint64_t before = c.Status().checkpoint().number();
  FinishHeld(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() > before; }));
}

TEST_CASE(
    "a permanent write error fails a job that asked for checkpoints, and ends the checkpoints of "
    "other jobs") {
  const bool given = GENERATE(true, false);
  FakeCluster c(Saving([&](config::JobSpec& spec, JobOptions&) { spec.checkpoint.given = given; }));
  AddTasks(c);
  const auto code = GENERATE(absl::StatusCode::kPermissionDenied,
                             // This error means that a part of the path is a file.
                             absl::StatusCode::kFailedPrecondition);
  c.cut_error = [code](const v1::CutShards&, std::uint32_t) {
    return absl::Status(code, "cannot write: path=/runs");
  };
  REQUIRE(c.RunToEnd());
  if (given) {
    CHECK(c.Status().state() == "FAILED");
    CHECK(c.Status().first_cause().kind() == "user");
    CHECK_THAT(c.Status().first_cause().message(),
               Contains("checkpoint: ") && Contains("path=/runs"));
  } else {
    CHECK(c.Status().state() == "SUCCEEDED");
    CHECK_THAT(AllEvents(c),
               Contains("the job continues without checkpoints: ") && Contains("path=/runs"));
  }
}

TEST_CASE("a folder that the coordinator cannot see is detected at the first manifest") {
  const bool given = GENERATE(true, false);
  FakeCluster c(Saving([&](config::JobSpec& spec, JobOptions&) { spec.checkpoint.given = given; }));
  AddTasks(c);
  c.elsewhere = std::make_shared<fs::MemoryFileSystem>();
  REQUIRE(c.RunToEnd());
  if (given) {
    CHECK(c.Status().state() == "FAILED");
    CHECK_THAT(c.Status().first_cause().message(),
               Contains("the checkpoint folder is not shared") && Contains("checkpoint.directory"));
  } else {
    CHECK(c.Status().state() == "SUCCEEDED");
    CHECK_THAT(
        AllEvents(c),
        Contains("the job continues without checkpoints: the checkpoint folder is not shared"));
  }
}

TEST_CASE(
    "a checkpoint that only the servers' hosts can read is never called complete, and those hosts "
    "are named") {
  FakeCluster c(Saving([&](config::JobSpec& spec, JobOptions&) { spec.checkpoint.given = false; }));
  AddTasks(c);
  c.elsewhere = std::make_shared<fs::MemoryFileSystem>();
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "SUCCEEDED");
  CHECK(status.checkpoint().number() == 0);
  CHECK_FALSE(status.checkpoint().complete());
  CHECK_THAT(status.checkpoint().trouble(), Contains("on host near") && Contains("4 of 4") &&
                                                Contains("host-of-0 (2)") &&
                                                Contains("host-of-1 (2)"));
  CHECK(FilesIn(c).empty());  // the manifest would name a missing file, so no manifest was written
  const Json result = Json::parse(c.host.files.at("/runs/fake-0000000000abcdef/result.json"));
  CHECK(result["checkpoint"].is_null());
  CHECK_THAT(result["checkpoint_trouble"].get<std::string>(), Contains("host-of-1"));
}

TEST_CASE(
    "the last checkpoint is complete after the coordinator has read every byte, and damage does "
    "not block the job for ever") {
  const bool given = GENERATE(true, false);
  FakeCluster c(Saving([&](config::JobSpec& spec, JobOptions&) { spec.checkpoint.given = given; }));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  CHECK_FALSE(c.Status().checkpoint().complete());
  c.on_saved = [&](const std::string& uri, const v1::ShardFile& file) {
    if (file.shard() != 2 || file.done().bounds_size() == 0) return;
    // The damage is in the values. The header, the ledger and the footer of the file are unchanged.
    REQUIRE(c.host.disk->Damage(uri, file.bytes() / 2, std::byte{1}).ok());
  };
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK_FALSE(status.checkpoint().complete());
  CHECK_THAT(status.checkpoint().trouble(), Contains("host-of-"));
  if (given) {
    CHECK(status.state() == "FAILED");
    CHECK_THAT(status.first_cause().message(),
               Contains("the last checkpoint") && Contains("cannot read back"));
  } else {
    CHECK(status.state() == "SUCCEEDED");
    CHECK_THAT(AllEvents(c), Contains("the final state of the job has no checkpoint"));
  }
}

TEST_CASE(
    "a server whose files become invisible to the coordinator does not make the last checkpoint a "
    "success") {
  FakeCluster c(Saving([&](config::JobSpec& spec, JobOptions&) { spec.checkpoint.given = false; }));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const std::uint64_t number = c.Status().checkpoint().number();
  c.elsewhere = std::make_shared<fs::MemoryFileSystem>();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK_FALSE(c.Status().checkpoint().complete());
  CHECK(c.Status().checkpoint().number() >= number);
  CHECK_THAT(c.Status().checkpoint().trouble(),
             Contains("the final state of the job has no checkpoint") && Contains("cannot see"));
  // The older checkpoint remains. Its files name the closures that they contain, which are not all
  // 16.
  CHECK(DoneOf(Newest(c).shards(0)).size() < 16);
}

TEST_CASE(
    "a server's full disk is reported at once, and the last checkpoint continues when there is "
    "space") {
  FakeCluster c(Saving());
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  c.cut_error = [](const v1::CutShards&, std::uint32_t) {
    return absl::ResourceExhaustedError("cannot write file: the disk is full: path=/far");
  };
  FinishHeld(c);
  REQUIRE(
      c.Run([&] { return !c.Status().checkpoint().trouble().empty(); }, std::chrono::seconds(2)));
  CHECK_THAT(c.Status().checkpoint().trouble(),
             Contains("ps_server/") && Contains("the disk is full: path=/far"));
  CHECK_THAT(AllEvents(c), Contains("cannot write a checkpoint, retrying: ps_server/") &&
                               !Contains("checkpoints are written again"));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  CHECK_FALSE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(120)));
  CHECK(c.Status().phase() == "saving");
  CHECK_THAT(c.job->WaitingFor(),
             Contains("the last checkpoint: ") && Contains("the disk is full"));
  c.cut_error = [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  // Servers retry their orders by themselves, which this fixture does not imitate. The new sessions
  // of the servers have the same effect, because the orders are sent again.
  for (const char* identity : {"0", "1"}) c.AddServer(identity, /*keeps=*/true);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(c.Status().checkpoint().trouble().empty());
}

TEST_CASE("the end of a checkpoint problem is one event, also after a restart of the coordinator") {
  const bool restarted = GENERATE(false, true);
  CAPTURE(restarted);
  FakeCluster c(Saving(), {.persistent = true});
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const std::uint64_t room = c.host.disk->bytes();
  // The servers' disks are not full, so the servers get a file system of their own.
  c.elsewhere = std::make_shared<fs::MemoryFileSystem>();
  c.host.disk->SetBytesMax(room);
  FinishHeld(c);
  REQUIRE(c.Run([&] {
    return AllEvents(c).find("cannot write a checkpoint, retrying") != std::string::npos;
  }));
  CHECK_THAT(AllEvents(c), !Contains("checkpoints are written again"));
  // Waits until the journal has the reason of the failed write.
  c.Run([] { return false; }, std::chrono::milliseconds(100));
  if (restarted) c.Restart();
  c.elsewhere = nullptr;
  c.host.disk->SetBytesMax(1 << 30);
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  const std::string events = AllEvents(c);
  const std::size_t again = events.find("state: checkpoints are written again: checkpoint ");
  REQUIRE(again != std::string::npos);
  CHECK(events.rfind("cannot write a checkpoint, retrying") < again);
  CHECK(events.find("checkpoints are written again", again + 10) == std::string::npos);
}

TEST_CASE(
    "the age of the newest checkpoint grows until the next one, and is absent without "
    "checkpoints") {
  FakeCluster c(Saving());
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const double before = c.job->checkpoint_age_seconds().value();
  // No shard has changed, so no checkpoint may be written.
  c.Run([] { return false; }, std::chrono::seconds(7));
  CHECK(c.job->checkpoint_age_seconds().value() == Approx(before + 7).margin(0.1));
  FinishHeld(c);
  const std::uint64_t number = c.Status().checkpoint().number();
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() > number; }));
  CHECK(c.job->checkpoint_age_seconds().value() < 1);
  FakeCluster without;
  AddTasks(without);
  CHECK_FALSE(without.job->checkpoint_age_seconds());
}

TEST_CASE("the last checkpoint waits for space and reports it") {
  FakeCluster c(Saving());
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  c.host.disk->SetBytesMax(c.host.disk->bytes());
  c.cut_error = [](const v1::CutShards&, std::uint32_t) {
    return absl::DeadlineExceededError("the server tries again by itself");
  };
  CHECK_FALSE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(20)));
  CHECK(c.Status().phase() == "saving");
  CHECK_THAT(c.job->WaitingFor(), Contains("shards to be saved: 4 left"));
  CHECK_FALSE(c.Run([&] { return c.job->ended(); }, std::chrono::seconds(60)));
  CHECK_THAT(AllEvents(c),
             Contains("cannot write a checkpoint, retrying: some shards are not saved after 60 s: "
                      "shards=4 first=0 at ps_server/"));
  c.host.disk->SetBytesMax(1 << 30);
  c.cut_error = [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  // The two servers open new sessions. The orders whose answers were held back end with the old
  // sessions, and the files are ordered again.
  for (const char* identity : {"0", "1"}) c.AddServer(identity, /*keeps=*/true);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(Newest(c).complete());
}

TEST_CASE("a cancelled job is saved after its seal, and a new job resumes at that step") {
  FakeCluster c(Saving());
  AddTasks(c);
  std::uint64_t finish = 4;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= finish;
  };
  REQUIRE(c.Run([&] {
    return c.Status().closures_succeeded() == 4 && c.Status().checkpoint().number() >= 1;
  }));
  finish = 11;
  FinishHeld(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 11; }));
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  REQUIRE(c.Status().state() == "CANCELLED");
  const v1::Manifest manifest = Newest(c);
  for (const v1::ShardFile& file : manifest.shards())
    CHECK(DoneOf(file).ToString() == IntervalSet::Range(0, 11).ToString());
  CHECK(c.Status().checkpoint().trouble().empty());
  CHECK_THAT(AllEvents(c), !Contains("is only partly saved"));
  CHECK(
      Json::parse(c.host.files.at("/runs/fake-0000000000abcdef/result.json"))["checkpoint_trouble"]
          .is_null());

  const auto resumed = [&](std::function<void(config::JobSpec&)> change) {
    return [change](config::JobSpec& spec, JobOptions&) {
      spec.checkpoint.resume = true;
      change(spec);
    };
  };
  SECTION("the plan is the same, and learning rate, epochs and checkpoint policy may differ") {
    FakeCluster d(Saving(resumed([](config::JobSpec& spec) {
                    spec.training.epochs = 3;
                    spec.checkpoint.every = std::chrono::milliseconds(100);
                  })),
                  {}, JobUid(0xd00d), c.host.disk);
    d.AddServer("5");  // another number of servers than in job c
    d.AddWorker("w");
    d.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
    d.job->Start();
    REQUIRE(d.Run([&] { return d.Status().state() == "RUNNING"; }));
    CHECK(d.Status().steps_done() == 22);
    d.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
    d.FinishHeld(d.workers["w"]);
    REQUIRE(d.RunToEnd());
    REQUIRE(d.Status().state() == "SUCCEEDED");
    std::vector<std::uint64_t> trained;
    for (const v1::Grant& g : d.granted)
      if (g.kind() == v1::TRAIN) trained.push_back(g.closure());
    CHECK(trained ==
          std::vector<std::uint64_t>{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
    for (const v1::Assign& assign : d.assigns) {
      CHECK(assign.snapshot().resumed());
      CHECK_FALSE(assign.snapshot().replace_ledger());
      CHECK(assign.snapshot().job_uid() == c.job->uid().value());
    }
    CHECK(d.Status().closures_succeeded() == 24);
    CHECK(d.Status().steps_done() == 48);
    CHECK_THAT(AllEvents(d), Contains("resumed at step 22 of 48 from " + std::string(kFolder)));
    REQUIRE(d.Status().epoch_rows_size() == 3);
    CHECK(d.Status().epoch_rows(0).train_loss() == c.Status().epoch_rows(0).train_loss());
    const Json result = Json::parse(d.host.files.at("/runs/fake-000000000000d00d/result.json"));
    CHECK_THAT(result["resumed_from"].get<std::string>(), Contains(kFolder));
    CHECK(Newest(d, "/runs/fake-000000000000d00d/checkpoint").complete());
  }
  SECTION("another batch size is refused in the middle of an epoch, with the reason") {
    FakeCluster d(Saving(resumed([](config::JobSpec& spec) { spec.data.batch_size = 8; })), {},
                  JobUid(0xd00d), c.host.disk);
    AddTasks(d);
    REQUIRE(d.RunToEnd());
    CHECK(d.Status().state() == "FAILED");
    CHECK(d.Status().first_cause().kind() == "user");
    CHECK_THAT(d.Status().first_cause().message(), Contains("batch"));
  }
  SECTION("a checkpoint with a damaged file is skipped, and the one before is used") {
    REQUIRE(c.host.disk->Damage(fs::JoinUri(kFolder, manifest.shards(2).file()), 80, std::byte{4})
                .ok());
    FakeCluster d(Saving(resumed([](config::JobSpec&) {})), {}, JobUid(0xd00d), c.host.disk);
    AddTasks(d);
    REQUIRE(d.RunToEnd());
    CHECK(d.Status().state() == "SUCCEEDED");
    CHECK_THAT(AllEvents(d),
               Contains("a newer checkpoint is skipped: ") && Contains(manifest.shards(2).file()));
  }
}

TEST_CASE(
    "a sealed job that is not saved in time reports it everywhere, and the checkpoint before "
    "remains usable") {
  FakeCluster c(Saving());
  AddTasks(c);
  std::uint64_t finish = 4;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= finish;
  };
  REQUIRE(c.Run([&] {
    return c.Status().closures_succeeded() == 4 && c.Status().checkpoint().number() >= 1 &&
           DoneOf(Newest(c).shards(0)).size() == 4;
  }));
  const bool all = GENERATE(true, false);
  c.cut_error = [all](const v1::CutShards&, std::uint32_t shard) {
    return all || shard == 2 ? absl::DeadlineExceededError("no answer: the disk stands still")
                             : absl::OkStatus();
  };
  finish = 11;
  FinishHeld(c);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 11; }));
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  REQUIRE(c.Status().state() == "CANCELLED");
  const std::string want = all ? "the final state of the job is only partly saved: 4 of 4 shards "
                                 "were not saved in this state, first=0 at ps_server/"
                               : "the final state of the job is only partly saved: 1 of 4 shards "
                                 "were not saved in this state, first=2 at ps_server/";
  CHECK_THAT(AllEvents(c), Contains("warning: " + want));
  CHECK_THAT(
      c.Status().checkpoint().trouble(),
      Contains(want) &&
          Contains("is older: a job that resumes from it repeats the work that was done after it"));
  CHECK_THAT(
      Json::parse(c.host.files.at("/runs/fake-0000000000abcdef/result.json"))["checkpoint_trouble"]
          .get<std::string>(),
      Contains(want));
  CHECK(DoneOf(Newest(c).shards(2)).ToString() == IntervalSet::Range(0, 4).ToString());
  CHECK(DoneOf(Newest(c).shards(0)).ToString() == IntervalSet::Range(0, all ? 4 : 11).ToString());

  FakeCluster d(Saving([](config::JobSpec& spec, JobOptions&) { spec.checkpoint.resume = true; }),
                {}, JobUid(0xd00d), c.host.disk);
  AddTasks(d);
  REQUIRE(d.RunToEnd());
  CHECK(d.Status().state() == "SUCCEEDED");
}

TEST_CASE(
    "updates that a job lost with a server stay lost in the resuming job, which reports them") {
  FakeCluster c(
      Saving([](config::JobSpec& spec, JobOptions&) { spec.training.on_lost_updates = "report"; }));
  AddTasks(c);
  std::uint64_t finish = 4;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && (g.closure() >= finish || !g.all_targets());
  };
  REQUIRE(c.Run([&] {
    return c.Status().closures_succeeded() == 4 && c.Status().checkpoint().number() >= 1 &&
           DoneOf(Newest(c).shards(0)).size() == 4;
  }));
  c.cut_error = [](const v1::CutShards&, std::uint32_t) {
    return absl::UnavailableError("not now");
  };
  finish = 6;
  FinishHeld(c, finish);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 6; }));
  c.AddServer("1");  // another process, so its shards return to their snapshots
  for (int lost = 0; lost < 2; ++lost) {
    const auto repair = [&] {
      const auto& held = c.workers["0"].held;
      return std::find_if(held.begin(), held.end(), [](const v1::Grant& g) {
        return g.kind() == v1::TRAIN && !g.all_targets();
      });
    };
    REQUIRE(c.Run([&] { return repair() != c.workers["0"].held.end(); }));
    const v1::Grant grant = *repair();
    c.FailGrant(c.workers["0"], grant, "data are not those of the plan: file=images", true);
  }
  CHECK(c.Status().closures_lost() == 2);
  c.cut_error = [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
  REQUIRE(c.Run([&] {
    return !DoneOf(Newest(c).shards(0)).empty() &&
           IntervalSet::Range(0, 6).ToString() == DoneOf(Newest(c).shards(0)).ToString();
  }));
  c.job->Cancel();
  REQUIRE(c.RunToEnd());

  FakeCluster d(Saving([](config::JobSpec& spec, JobOptions&) { spec.checkpoint.resume = true; }),
                {}, JobUid(0xd00d), c.host.disk);
  AddTasks(d);
  REQUIRE(d.RunToEnd());
  CHECK(d.Status().state() == "SUCCEEDED");
  CHECK_THAT(AllEvents(d),
             Contains("lost: updates that the earlier job lost when a server died are not "
                      "recovered; 2 closures are not run again: 4-5"));
}

TEST_CASE("a job that resumes without a saved checkpoint begins at the first step and reports it") {
  FakeCluster c(Saving([](config::JobSpec& spec, JobOptions&) { spec.checkpoint.resume = true; }));
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK_THAT(
      AllEvents(c),
      Contains("there is no checkpoint to resume from, so the job begins at its first step"));
}

TEST_CASE("another plan continues from the end of a succeeded job's epochs") {
  FakeCluster c(Saving());
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  FakeCluster d(Saving([](config::JobSpec& spec, JobOptions&) {
                  spec.checkpoint.resume = true;
                  spec.data.batch_size = 8;
                  spec.training.epochs = 4;
                }),
                {}, JobUid(0xd00d), c.host.disk);
  AddTasks(d);
  REQUIRE(d.RunToEnd());
  REQUIRE(d.Status().state() == "SUCCEEDED");
  // The plan of job d has 64 examples in batches of 8, with two steps per closure, and therefore
  // four closures per epoch. Job c has finished the first two epochs.
  std::set<std::uint64_t> trained;
  for (const v1::Grant& g : d.granted)
    if (g.kind() == v1::TRAIN) trained.insert(g.closure());
  CHECK(trained == std::set<std::uint64_t>{8, 9, 10, 11, 12, 13, 14, 15});
  for (const v1::Assign& assign : d.assigns) CHECK(assign.snapshot().replace_ledger());
}

TEST_CASE(
    "a job that resumes with another batch size keeps the steps of old epochs, also after restarts "
    "and resumptions") {
  FakeCluster c(Saving());
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().steps_done() == 32);  // 2 epochs of 64 examples in batches of 4
  const auto resumed = [](std::uint32_t epochs) {
    return Saving([epochs](config::JobSpec& spec, JobOptions&) {
      spec.checkpoint.resume = true;
      spec.data.batch_size = 8;
      spec.training.epochs = epochs;
    });
  };
  const auto steps = [](const v1::JobStatus& status) {
    std::vector<std::uint64_t> of_epochs;
    for (const v1::EpochRow& row : status.epoch_rows()) of_epochs.push_back(row.steps());
    return of_epochs;
  };
  MemoryStateStore::Options store;
  store.persistent = true;
  FakeCluster d(resumed(4), store, JobUid(0xd00d), c.host.disk);
  d.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(d);
  REQUIRE(d.Run([&] { return d.Status().epoch_rows_size() == 2 && !d.granted.empty(); }));
  for (int life = 0; life < 2; ++life) {
    CHECK(steps(d.Status()) == std::vector<std::uint64_t>{16, 16});
    CHECK(d.Status().steps_done() == 32);
    CHECK(d.Status().steps_total() == 32 + 16);
    if (life == 0) d.Restart();
  }
  CHECK_THAT(AllEvents(d), Contains("resumed at step 32 of 48"));
  d.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(d);
  REQUIRE(d.RunToEnd());
  CHECK(d.Status().steps_done() == 48);
  CHECK(steps(d.Status()) == std::vector<std::uint64_t>{16, 16, 8, 8});
  // The step numbers in metrics.jsonl must continue after the 32 steps of the earlier job.
  std::istringstream lines(d.host.files.at("/runs/fake-000000000000d00d/metrics.jsonl"));
  std::set<std::uint64_t> at;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json["kind"] == "step") at.insert(json["step"].get<std::uint64_t>());
  }
  REQUIRE_FALSE(at.empty());
  CHECK(*at.begin() == 32);
  CHECK(*at.rbegin() < 48);
  // Job e continues from the checkpoint of d, with the plan of d. Epochs 1 and 2 still have the 16
  // steps that they had in c.
  FakeCluster e(resumed(5), {}, JobUid(0xe00e), c.host.disk);
  AddTasks(e);
  REQUIRE(e.RunToEnd());
  CHECK(steps(e.Status()) == std::vector<std::uint64_t>{16, 16, 8, 8, 8});
  CHECK(e.Status().steps_done() == 56);
}

TEST_CASE("a restarted coordinator restores its snapshots from the journal, resumed ones too") {
  MemoryStateStore::Options store;
  store.persistent = true;
  FakeCluster c(Saving(), store);
  AddTasks(c);
  std::uint64_t finish = 6;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  REQUIRE(c.Run([&] {
    return c.Status().closures_succeeded() == 6 && c.Status().checkpoint().number() >= 1;
  }));
  c.Run([] { return false; }, std::chrono::seconds(1));
  const std::uint64_t number = c.Status().checkpoint().number();
  c.assigns.clear();
  c.Restart({"1"});
  CHECK(c.Status().checkpoint().number() == number);
  c.AddServer("1");
  REQUIRE(c.Run([&] { return c.job->WaitingFor().empty() && !c.assigns.empty(); }));
  for (const v1::Assign& assign : c.assigns) CHECK(assign.has_snapshot());
  finish = ~0ull;
  FinishHeld(c, finish);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(Newest(c).number() > number);
  CHECK(Newest(c).complete());
}

TEST_CASE("a coordinator that dies during the search for a checkpoint searches again") {
  MemoryStateStore::Options store;
  store.persistent = true;
  FakeCluster c(Saving([](config::JobSpec& spec, JobOptions&) { spec.checkpoint.resume = true; }),
                store);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::DESCRIBE; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
  // The result of the describe closure makes the job look for a checkpoint. The file thread has not
  // finished this search when the process ends.
  c.Finish(c.workers["0"], c.workers["0"].held.front());
  c.AddServer("2");  // makes the job commit its whole state
  c.job->Tick();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Restart();
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
}

TEST_CASE(
    "no manifest has a gap, because no job could resume from it and it would hide a whole one") {
  FakeCluster c(Saving());
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  c.cut_error = [](const v1::CutShards&, std::uint32_t shard) {
    return shard == 3 ? absl::UnavailableError("busy") : absl::OkStatus();
  };
  AddTasks(c);
  CHECK_FALSE(c.Run([&] { return c.Status().checkpoint().number() > 0; }, std::chrono::seconds(5)));
  CHECK(c.cuts == 3);
  SECTION("the manifest is written once the last shard has a file") {
    c.cut_error = [](const v1::CutShards&, std::uint32_t) { return absl::OkStatus(); };
    REQUIRE(c.Run([&] { return c.Status().checkpoint().number() > 0; }));
    const v1::Manifest manifest = Newest(c);
    for (const v1::ShardFile& file : manifest.shards()) CHECK_FALSE(file.file().empty());
  }
  SECTION("the manifest is not written at an early end either") {
    c.job->Cancel();
    REQUIRE(c.RunToEnd());
    CHECK_FALSE(snapshot::FindNewestManifest(*c.host.disk, kFolder).ok());
  }
}

TEST_CASE("files and their records stay bounded while manifests cannot be written") {
  FakeCluster c(Saving([](config::JobSpec& spec, JobOptions&) {
    spec.checkpoint.keep = 1;
    spec.training.epochs = 12;
  }));
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  AddTasks(c);
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  c.elsewhere = std::make_shared<fs::MemoryFileSystem>();  // the servers' disk is not full
  c.host.disk->SetBytesMax(c.host.disk->bytes());
  const auto most = [&] {
    std::size_t n = 0;
    const DurableState state = *c.host.memory.Load(c.job->uid());
    for (const auto& snapshots : state.snapshots) n = std::max(n, snapshots.size());
    return n;
  };
  for (int i = 0; i < 80; ++i) {
    REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
    c.Finish(c.workers["0"], c.workers["0"].held.front());
    c.Run([] { return false; }, std::chrono::seconds(6));
  }
  CHECK(most() > 40);
  CHECK(most() <= 65);
  CHECK_THAT(c.Status().checkpoint().trouble(), Contains("cannot see 4 of 4 shard files"));
}

TEST_CASE(
    "another plan's job returns to the file that it resumed from when its own are damaged, never "
    "to the seed") {
  FakeCluster c(Saving());
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  FakeCluster d(Saving([](config::JobSpec& spec, JobOptions&) {
                  spec.checkpoint.resume = true;
                  spec.checkpoint.keep = 1;
                  spec.data.batch_size = 8;
                  spec.training.epochs = 4;
                }),
                {}, JobUid(0xd00d), c.host.disk);
  std::uint64_t finish = 10;
  d.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  AddTasks(d);
  REQUIRE(d.Run([&] { return d.Status().closures_succeeded() == 10; }));
  d.Run([] { return false; }, std::chrono::seconds(2));
  const std::vector<Snapshot> known = d.host.memory.Load(d.job->uid())->snapshots[0];
  REQUIRE(known.size() == 2);
  CHECK(known[0].replace_ledger);
  REQUIRE(d.host.disk->Damage(known[1].Uri(), 100, std::byte{1}).ok());
  d.assigns.clear();
  d.AddServer(d.servers["0"].shards.count(0) != 0 ? "0" : "1", /*keeps=*/false);
  d.AddWorker("1");
  REQUIRE(d.Run([&] { return d.job->WaitingFor().empty() && !d.assigns.empty(); }));
  std::string from;
  for (const v1::Assign& assign : d.assigns)
    if (assign.spec().shard() == 0) from = assign.snapshot().uri();
  CHECK(from == known[0].Uri());
  finish = ~0ull;
  FinishHeld(d);
  REQUIRE(d.RunToEnd());
  CHECK(d.Status().state() == "SUCCEEDED");
}

TEST_CASE("the lines of a former job's epochs have that job's measurements") {
  FakeCluster c(Saving());
  double auc = 0.5;
  c.on_done = [&](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() != v1::EVALUATE) return;
    v1::NamedSum& sum = *done->mutable_metrics()->add_sums();
    sum.set_name("auc");
    sum.set_sum((auc += 0.125) * static_cast<double>(done->metrics().examples()));
  };
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  for (const int epoch : {0, 1}) {
    REQUIRE(c.Status().epoch_rows(epoch).metrics().count("auc") == 1);
    CHECK(c.Status().epoch_rows(epoch).metrics().at("auc") > 0.5);
  }
  CHECK(c.Status().epoch_rows(0).metrics().at("auc") !=
        c.Status().epoch_rows(1).metrics().at("auc"));
  const bool every = GENERATE(true, false);
  FakeCluster d(Saving([&](config::JobSpec& spec, JobOptions&) {
                  spec.checkpoint.resume = true;
                  spec.training.epochs = 4;
                  spec.training.evaluate_every_epochs = every ? 1 : 3;
                }),
                {}, JobUid(0xd00d), c.host.disk);
  AddTasks(d);
  REQUIRE(d.RunToEnd());
  d.Deliver();
  const std::string& text = d.host.files.at("/runs/fake-000000000000d00d/metrics.jsonl");
  std::uint64_t epoch = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const Json line = Json::parse(text.substr(begin, end - begin));
    begin = end + 1;
    if (line["kind"] != "epoch") continue;
    REQUIRE(line["epoch"] == ++epoch);
    CHECK(line["train_loss"].is_number());
    if (epoch > 2) continue;
    const v1::EpochRow before = c.Status().epoch_rows(static_cast<int>(epoch) - 1);
    CHECK(line["train_loss"].get<double>() == before.train_loss());
    CHECK(line["eval_auc"].get<double>() == before.metrics().at("auc"));
    CHECK(d.Status().epoch_rows(static_cast<int>(epoch) - 1).metrics().at("auc") ==
          before.metrics().at("auc"));
  }
  CHECK(epoch == 4);
}

TEST_CASE(
    "a restored shard counts as held when its server reports it, also in a new session or to a new "
    "coordinator") {
  MemoryStateStore::Options store;
  store.persistent = true;
  FakeCluster c(Saving(), store);
  AddTasks(c);
  std::uint64_t finish = 3;
  c.hold = [&](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.all_targets() && g.closure() >= finish;
  };
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 3; }));
  c.Run([] { return false; }, std::chrono::seconds(1));
  finish = 6;
  FinishHeld(c, finish);
  REQUIRE(c.Run([&] { return c.Status().closures_succeeded() == 6; }));
  c.Run([] { return false; }, std::chrono::seconds(1));
  const std::string owner = c.servers["0"].shards.count(0) != 0 ? "0" : "1";
  c.hold_assign = [](const v1::Assign& assign) { return assign.spec().shard() == 0; };
  c.assigns.clear();
  c.AddServer(owner, /*keeps=*/false);
  REQUIRE(c.Run([&] { return c.assigns.size() == 2; }));
  c.servers[owner].shards[0].loading = true;
  if (GENERATE(true, false))
    c.Restart();
  else
    c.AddServer(owner, /*keeps=*/true);
  c.Deliver();
  CHECK_THAT(c.job->WaitingFor(), Contains("ps_server/" + owner + " has not yet loaded 1 shard"));
  v1::TaskMessage damaged;
  damaged.mutable_assigned()->set_job_uid(c.job->uid().value());
  damaged.mutable_assigned()->set_shard(0);
  *damaged.mutable_assigned()->mutable_epoch() = c.servers[owner].shards[0].assign.epoch();
  *damaged.mutable_assigned()->mutable_error() =
      client::ToErrorDetail(absl::DataLossError("damaged"));
  c.hold_assign = [](const v1::Assign&) { return false; };
  c.Say(c.servers[owner].task, damaged);
  REQUIRE(c.Run([&] { return c.job->WaitingFor().empty(); }));
  CHECK_THAT(
      AllEvents(c),
      Contains(
          "shard 0 cannot be restored from its snapshot: damaged; the previous snapshot is used"));
  finish = ~0ull;
  FinishHeld(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
}

TEST_CASE("the speed of a resumed job counts only its own work, however early it ends") {
  FakeCluster c(Saving());
  AddTasks(c);
  REQUIRE(c.RunToEnd());
  FakeCluster d(Saving([](config::JobSpec& spec, JobOptions&) {
                  spec.checkpoint.resume = true;
                  spec.training.epochs = 4;
                }),
                {}, JobUid(0xd00d), c.host.disk);
  d.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 18;
  };
  AddTasks(d);
  REQUIRE(d.Run([&] { return d.Status().closures_succeeded() == 18; }));
  d.job->Cancel();
  REQUIRE(d.RunToEnd());
  const Json result = Json::parse(d.host.files.at("/runs/fake-000000000000d00d/result.json"));
  CHECK(result["examples_per_second"].is_null());
  REQUIRE(d.Status().epoch_rows_size() == 2);
  CHECK(d.Status().epoch_rows(1).seconds() == 0);
  CHECK(d.Status().epoch_rows(1).train_loss() == c.Status().epoch_rows(1).train_loss());
}

TEST_CASE("malformed reports of files change nothing") {
  FakeCluster c(Saving());
  AddTasks(c);
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::TRAIN; };
  REQUIRE(c.Run([&] { return c.Status().checkpoint().number() >= 1; }));
  const DurableState before = *c.host.memory.Load(c.job->uid());
  const std::string owner = c.servers["0"].shards.count(0) != 0 ? "0" : "1",
                    other = owner == "0" ? "1" : "0";
  v1::TaskMessage good;
  v1::ShardDurable* said = good.mutable_shard_durable();
  said->set_job_uid(c.job->uid().value());
  said->set_shard(0);
  *said->mutable_epoch() = c.servers[owner].shards[0].assign.epoch();
  *said->mutable_file()->mutable_epoch() = said->epoch();
  said->mutable_file()->set_lsn(900);
  said->mutable_file()->set_sha256(std::string(32, 'x'));
  said->mutable_file()->set_file(
      snapshot::ShardFileName(ShardId(0), client::FromProto<ShardEpoch>(said->epoch()), 900));
  const auto spoiled = [&](std::function<void(v1::ShardDurable*)> spoil) {
    v1::TaskMessage bad = good;
    spoil(bad.mutable_shard_durable());
    CHECK(absl::IsInvalidArgument(c.Try(c.servers[owner].task, bad)));
  };
  spoiled([](v1::ShardDurable* d) { d->mutable_file()->set_file("../../etc/passwd"); });
  spoiled([](v1::ShardDurable* d) { d->mutable_file()->set_lsn(901); });
  spoiled([](v1::ShardDurable* d) { d->mutable_file()->set_sha256("short"); });
  spoiled([](v1::ShardDurable* d) { d->mutable_file()->mutable_done()->add_bounds(7); });
  spoiled([](v1::ShardDurable* d) { d->mutable_file()->set_shard(1); });
  spoiled([](v1::ShardDurable* d) {
    *d->mutable_file()->mutable_done() = client::ToProto(IntervalSet::Range(0, 17));
  });  // the plan has 16 closures
  // The report of a server about a shard of another server must be counted as foreign and then
  // ignored.
  CHECK(c.Try(c.servers[other].task, good).ok());
  v1::TaskMessage old = good;
  old.mutable_shard_durable()->mutable_epoch()->set_n(0);
  CHECK(c.Try(c.servers[owner].task, old).ok());  // a report about a former epoch must be ignored
  old.mutable_shard_durable()->set_shard(77);
  CHECK(c.Try(c.servers[owner].task, old).ok());
  CHECK(c.host.memory.Load(c.job->uid())->snapshots == before.snapshots);
  CHECK_FALSE(c.host.foreign.empty());
}

}  // namespace
}  // namespace evergrad::coordinator
