// Tests the checks that a job makes before it trusts the reports of its workers (LEDGER lines 34 to
// 38).
#include <catch2/catch.hpp>

#include "common/grants/grant_proof.h"
#include "job_fixture.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

// Makes each Done report that every update touched every shard. 16 closures of 2 updates then give
// 32 updates in each shard.
void ReportAllTouched(FakeCluster& c) {
  c.on_done = [](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() == v1::TRAIN) done->mutable_touched();
  };
}

void Begin(FakeCluster& c) {
  c.AddWorker("0");
  c.AddServer("0");
  c.job->Start();
}

TEST_CASE(
    "each grant of training has a proof for the servers, which get the key with each Assign, and "
    "other work has none") {
  FakeCluster c;
  ReportAllTouched(c);
  Begin(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  REQUIRE_FALSE(c.assigns.empty());
  for (const v1::Assign& assign : c.assigns) CHECK(assign.grant_key() == FakeCluster::kGrantKey);
  std::map<v1::WorkKind, int> seen;
  for (const v1::Grant& grant : c.granted) {
    ++seen[grant.kind()];
    const bool fits = grants::ProofFits(grant.proof(), FakeCluster::kGrantKey, c.job->uid(),
                                        ClosureId(grant.closure()),
                                        client::FromProto<Attempt>(grant.attempt()), "0");
    CHECK(fits == (grant.kind() == v1::TRAIN));
    CHECK(grant.proof().empty() == (grant.kind() != v1::TRAIN));
  }
  CHECK(seen.size() == 4);  // describe, train, evaluate and export
}

TEST_CASE("a job keeps its key over a restart of the coordinator, and shows it to no client") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  ReportAllTouched(c);
  c.hold = [&](const FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN && grant.closure() == 5;
  };
  Begin(c);
  REQUIRE(c.Run([&] { return c.job->open_closures() == 1; }));
  const std::size_t assigned = c.assigns.size();
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Restart({"0"});
  c.AddServer("1");
  REQUIRE(c.RunToEnd());
  REQUIRE(c.assigns.size() > assigned);
  CHECK(c.assigns.back().grant_key() == FakeCluster::kGrantKey);
  CHECK(c.granted.back().kind() == v1::EXPORT);
  CHECK_THAT(c.Status().SerializeAsString(), !Contains(FakeCluster::kGrantKey));
}

TEST_CASE(
    "a worker that answers Done without working fails the job, with the shard, the expected and "
    "the found count") {
  FakeCluster c;
  ReportAllTouched(c);
  c.updates_reported = 30;  // the two updates of one closure are missing
  Begin(c);
  REQUIRE(c.RunToEnd());
  const v1::JobStatus status = c.Status();
  CHECK(status.state() == "FAILED");
  CHECK_FALSE(status.updates_exact());
  CHECK_THAT(status.first_cause().message(),
             Contains("shard 0 (counting/samples rows 0-15)") && Contains("expected=32") &&
                 Contains("found=30") && Contains("a worker reported work that it did not do"));
}

TEST_CASE("a job that applied each update once reports it in its status and its result") {
  FakeCluster c;
  ReportAllTouched(c);
  Begin(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(c.Status().updates_exact());
  CHECK_THAT(c.host.files.at("/runs/fake/result.json"), Contains("\"updates_exact\": true"));
}

TEST_CASE(
    "the shards that workers touched according to their reports are known after a restart of the "
    "coordinator") {
  FakeCluster c({}, {.jobs_max = 8, .persistent = true});
  c.on_done = [](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() != v1::TRAIN) return;
    for (std::uint32_t shard = 0; shard < 4; ++shard) {
      done->mutable_touched()->add_shards(shard);
      done->mutable_touched()->add_updates(grant.closure() % 2);
    }
  };
  c.updates_reported = 8;  // only 8 of 32 updates touch the shard
  c.hold = [](const FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN && grant.closure() >= 9;
  };
  Begin(c);
  REQUIRE(c.Run([&] { return c.job->steps_done() == 18; }));
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  c.Restart();
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(c.Status().updates_exact());
}

TEST_CASE("an impossible report of touched shards is refused and changes nothing") {
  FakeCluster c;
  bool spoiled = false;
  c.on_done = [&](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() != v1::TRAIN) return;
    done->mutable_touched();
    if (std::exchange(spoiled, true)) return;
    done->mutable_touched()->add_shards(77);
    done->mutable_touched()->add_updates(0);
  };
  Begin(c);
  REQUIRE(c.Run([&] { return !c.refused.empty(); }));
  CHECK_THAT(std::string(c.refused.front().message()),
             Contains("shards that only some updates of a closure touch"));
  CHECK(c.Status().state() == "RUNNING");
}

TEST_CASE("extra updates in invisible files of a resumed job cause no accusation of a worker") {
  const auto settings = [](std::uint32_t epochs, bool resume) {
    return [=](config::JobSpec& spec, JobOptions&) {
      spec.training.epochs = epochs;
      spec.checkpoint.on = true;
      spec.checkpoint.every = std::chrono::milliseconds(200);
      spec.checkpoint.resume = resume;
    };
  };
  const auto dense = [](const v1::Grant& grant, v1::Done* done) {
    if (grant.kind() == v1::DESCRIBE)
      done->mutable_describe()->mutable_variables(0)->set_name("dense/kernel");
    if (grant.kind() == v1::TRAIN) done->mutable_touched();
  };
  FakeCluster former(settings(3, false));
  former.on_done = dense;
  former.hold = [](const FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN && grant.closure() >= 16;
  };
  Begin(former);
  REQUIRE(former.Run([&] { return former.Status().closures_succeeded() == 16; }));
  former.job->Cancel();
  REQUIRE(former.RunToEnd());
  REQUIRE(former.Status().checkpoint().number() > 0);
  // Moves the files to another disk, as if the servers kept them on their own disks.
  const auto elsewhere = std::make_shared<fs::MemoryFileSystem>();
  const std::string folder = "/runs/fake-0000000000abcdef/checkpoint";
  REQUIRE(elsewhere->MakeFolders(folder).ok());
  const auto entries = former.host.disk->List(folder);
  REQUIRE(entries.ok());
  for (const fs::ListedFile& entry : *entries) {
    if (entry.name.rfind("shard-", 0) != 0) continue;
    const std::string uri = fs::JoinUri(folder, entry.name);
    REQUIRE(fs::WriteWhole(*elsewhere, uri, *fs::ReadWhole(*former.host.disk, uri, 1 << 20)).ok());
    REQUIRE(former.host.disk->Remove(uri).ok());
  }
  FakeCluster c(settings(2, true), {}, JobUid(0xd00d), former.host.disk);
  c.elsewhere = elsewhere;
  c.on_done = dense;
  c.updates_reported = 40;  // 32 updates, and 8 of the third epoch, which had begun
  Begin(c);
  REQUIRE(c.RunToEnd());
  INFO(c.Status().first_cause().message());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK_THAT(AllEvents(c), Contains("resumed at step 32 of 32"));
  CHECK_FALSE(c.Status().updates_exact());
}

void SayDropped(FakeCluster& c, FakeWorker& worker, const v1::Grant& grant, bool superseded) {
  v1::TaskMessage message;
  v1::AttemptDropped& dropped = *message.mutable_dropped();
  dropped.set_job_uid(grant.job_uid());
  dropped.set_closure(grant.closure());
  *dropped.mutable_attempt() = grant.attempt();
  dropped.set_superseded(superseded);
  dropped.set_shard(0);
  std::erase_if(worker.held,
                [&](const v1::Grant& g) { return g.attempt().n() == grant.attempt().n(); });
  c.Say(worker.task, message);
}

TEST_CASE(
    "a closure whose newest attempt is superseded repeatedly ends the job, which names closure and "
    "shard") {
  FakeCluster c;
  c.hold = [](const FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN && grant.closure() == 5;
  };
  Begin(c);
  int drops = 0;
  const bool ended = c.Run([&] {
    FakeWorker& worker = c.workers.at("0");
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
      if (grant.closure() != 5 || grant.kind() != v1::TRAIN) continue;
      ++drops;
      SayDropped(c, worker, grant, true);
    }
    return c.job->ended();
  });
  REQUIRE(ended);
  CHECK(drops == 8);
  CHECK(c.Status().state() == "FAILED");
  CHECK_THAT(c.Status().first_cause().message(),
             Contains("closure=5") && Contains("shard=0") && Contains("never granted"));
}

TEST_CASE(
    "an attempt that is superseded occasionally, or refused for another reason, does not affect "
    "the job") {
  FakeCluster c;
  ReportAllTouched(c);
  c.hold = [](const FakeWorker&, const v1::Grant& grant) {
    return grant.kind() == v1::TRAIN && grant.closure() % 4 == 1;
  };
  Begin(c);
  std::map<std::uint64_t, int> drops;
  const bool ended = c.Run([&] {
    FakeWorker& worker = c.workers.at("0");
    for (const v1::Grant& grant : std::vector<v1::Grant>(worker.held)) {
      if (grant.kind() != v1::TRAIN || grant.closure() % 4 != 1) continue;
      const int n = ++drops[grant.closure()];
      if (n > 20)
        c.Finish(worker, grant);
      else
        SayDropped(c, worker, grant, n <= 7);
    }
    return c.job->ended();
  });
  REQUIRE(ended);
  CHECK(c.Status().state() == "SUCCEEDED");
}

void Claim(const FakeCluster& c, v1::Hello* hello, std::uint64_t closure, Attempt attempt,
           const std::string& proof, v1::WorkKind kind = v1::TRAIN) {
  v1::HeldAttempt& held = *hello->add_attempts();
  held.set_job_uid(c.job->uid().value());
  held.set_closure(closure);
  *held.mutable_attempt() = client::ToProto(attempt);
  held.set_kind(kind);
  held.set_all_targets(true);
  held.set_proof(proof);
  held.set_granted_to("0");
}

// worker/0 gets at least two closures and does not finish them.
void BeginHolding(FakeCluster& c) {
  ReportAllTouched(c);
  c.hold = [](const FakeWorker&, const v1::Grant& grant) { return grant.kind() == v1::TRAIN; };
  Begin(c);
  REQUIRE(c.Run([&] { return c.workers.at("0").held.size() >= 2; }));
}

// Finishes all granted closures. The job must end as it does if no worker lies.
void CheckHonestEnd(FakeCluster& c) {
  const std::vector<v1::Grant> honest = c.workers.at("0").held;
  REQUIRE_FALSE(honest.empty());
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  for (auto& [identity, worker] : c.workers) c.FinishHeld(worker);
  c.Deliver();
  for (const v1::Grant& grant : honest) {
    CHECK(c.workers.at("0").answered.count(grant.attempt().n()) == 1);
    CHECK(c.workers.at("0").superseded.count(grant.attempt().n()) == 0);
  }
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(c.Status().updates_exact());
}

TEST_CASE(
    "an attempt in a Hello without a grant is not adopted, whether it is above or below the "
    "current one or of a later closure") {
  FakeCluster c;
  BeginHolding(c);
  const v1::Grant grant = c.workers.at("0").held[1];
  const Attempt current = client::FromProto<Attempt>(grant.attempt());
  std::size_t claims = 0;
  for (const std::string& proof :
       {std::string(), std::string(grants::kProofBytes, 'x'), std::string(grant.proof())}) {
    v1::Hello hello;
    Claim(c, &hello, grant.closure(), {current.term, current.n + 1000}, proof);
    Claim(c, &hello, grant.closure(), {current.term, current.n - 1}, proof);
    Claim(c, &hello, 15, {current.term, current.n + 2000}, proof);
    claims += 3;
    c.AddWorker("thief-" + std::to_string(claims), hello);
    CHECK(c.last_adopted.empty());
    CHECK(c.host.foreign.size() == claims);
    CHECK(c.host.foreign.back() == "Hello with an attempt that was not granted to the worker");
  }
  CheckHonestEnd(c);
}

TEST_CASE(
    "a worker that claims every closure after a restart of the coordinator takes none from their "
    "owners") {
  FakeCluster c;
  BeginHolding(c);
  v1::Hello claims, honest;
  for (std::uint64_t closure = 0; closure < 16; ++closure)
    Claim(c, &claims, closure, {1, 100'000 + closure}, std::string(grants::kProofBytes, 'x'));
  for (const v1::Grant& grant : c.workers.at("0").held)
    FakeCluster::AddHeld(grant, c.workers.at("0").map.version(), &honest);
  honest.set_process_uid(c.workers.at("0").process);
  const std::vector<v1::Grant> held = c.workers.at("0").held;
  c.host.term_now = Term(9);
  c.job->BeginAnew(Term(9));
  c.AddServer("0", true);
  c.AddWorker("thief", claims);
  CHECK(c.last_adopted.empty());
  c.AddWorker("0", honest, false);
  CHECK(c.last_adopted.size() == held.size());
  for (const v1::HeldAttempt& adopted : c.last_adopted) CHECK(adopted.proof().empty());
  c.workers.at("0").held = held;
  c.job->CloseWindow();
  CheckHonestEnd(c);
}

TEST_CASE("an attempt is adopted under the name in its Grant, whatever the worker's name is now") {
  FakeCluster c;
  BeginHolding(c);
  v1::Hello hello;
  for (const v1::Grant& grant : c.workers.at("0").held)
    FakeCluster::AddHeld(grant, c.workers.at("0").map.version(), &hello);
  c.host.term_now = Term(9);
  c.job->BeginAnew(Term(9));
  c.AddServer("0", true);
  c.AddWorker("7", hello);
  CHECK(c.last_adopted.size() == static_cast<std::size_t>(hello.attempts_size()));
  CHECK(c.host.foreign.empty());
}

TEST_CASE("an evaluation in a Hello is adopted only if it is current and belongs to the worker") {
  FakeCluster c;
  ReportAllTouched(c);
  c.hold = [](const FakeWorker&, const v1::Grant& grant) { return grant.kind() == v1::EVALUATE; };
  Begin(c);
  REQUIRE(c.Run([&] { return !c.workers.at("0").held.empty(); }));
  const v1::Grant grant = c.workers.at("0").held[0];
  const Attempt current = client::FromProto<Attempt>(grant.attempt());
  for (const Attempt claimed : {current, Attempt{current.term, current.n + 1000},
                                Attempt{current.term, current.n - 1}, Attempt{}}) {
    v1::Hello hello;
    Claim(c, &hello, grant.closure(), claimed, "", v1::EVALUATE);
    c.AddWorker("thief", hello);
    CHECK(c.last_adopted.empty());
  }
  v1::Hello back;
  back.set_process_uid(c.workers.at("0").process);
  Claim(c, &back, grant.closure(), current, "", v1::EVALUATE);
  c.AddWorker("0", back, false);
  CHECK(c.last_adopted.size() == 1);
}

TEST_CASE("a Hello that names an attempt several times adopts it once") {
  FakeCluster c;
  BeginHolding(c);
  const std::vector<v1::Grant> held = c.workers.at("0").held;
  v1::Hello hello;
  hello.set_process_uid(c.workers.at("0").process);
  for (int i = 0; i < 3; ++i) {
    for (const v1::Grant& grant : held)
      FakeCluster::AddHeld(grant, c.workers.at("0").map.version(), &hello);
  }
  c.AddWorker("0", hello, false);
  CHECK(c.last_adopted.size() == held.size());
  c.workers.at("0").held = held;
  CheckHonestEnd(c);
}

}  // namespace
}  // namespace evergrad::coordinator
