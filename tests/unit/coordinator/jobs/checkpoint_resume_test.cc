// Tests how a job continues from the checkpoint of an earlier job, without a Job object.
#include "coordinator/jobs/checkpoint_resume.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

constexpr char kFolder[] = "/checkpoints/part-0000000000000001";

// The plan has two shards and sixteen closures of one step each.
struct Fixture : PartFixture {
  Fixture() {
    id.spec.checkpoint.on = id.spec.checkpoint.resume = true;
    id.spec.checkpoint.directory = "/checkpoints";
    plan_message.set_train_examples(64);
    plan_message.set_batch_size(4);
    plan_message.set_steps_per_closure(1);
    plan_message.set_epochs(1);
    plan_message.set_eval_batch_size(1);
    plan_message.set_eval_steps_per_closure(1);
    epochs.SetPlan(&*plan);
    epochs.BeginPlan();
    book.reset();
  }
  // Saves a checkpoint of an earlier job. Both shards have the closures `done` as done and the
  // closures `refused` as refused.
  void Save(const IntervalSet& done, const IntervalSet& refused = {}) {
    SaveRequest request;
    request.folder = kFolder;
    v1::Manifest& manifest = request.manifest;
    manifest.set_job_name(id.spec.name);
    manifest.set_job_uid(1);
    manifest.set_written_ms(5);
    *manifest.mutable_plan() = plan_message;
    v1::CutShards cut;
    cut.set_job_uid(1);
    cut.set_folder(kFolder);
    cut.set_plan_fingerprint(plan_message.fingerprint());
    for (std::uint32_t p = 0; p < 2; ++p)
      *manifest.add_shards() = WriteShardFile(
          host.disk.get(), cut, plan_message.shards(static_cast<int>(p)),
          client::ToProto(ShardEpoch{1, 1}), client::ToProto(MapVersion{1, 1}), 9, done, refused);
    const auto saved = SaveManifest(*host.disk, request);
    REQUIRE(saved.ok());
  }
  void Look() {
    resume.Look();
    RunFileThread();
  }
  // Makes the job's closure book, as a job does after it has read the checkpoint.
  Record Begin() {
    book = std::make_unique<ClosureBook>(
        ClosureBook::Options{.closures = plan->closures(), .shards = 2}, DurableState{});
    Record begun = book->BeginLife(Term(1));
    book->CloseWindow();
    resume.Apply(&begun);
    return begun;
  }

  EpochAccount epochs{{}, MonoTime{0}};
  WorkerClaims claims{Part(), &epochs};
  CheckpointRounds rounds{
      Part(), &epochs, {.round_ended = [] {}, .saved = [](const auto&) {}, .over = [] {}}};
  CheckpointResume resume{
      Part(),
      &epochs,
      &claims,
      &rounds,
      {.done = [this] { said.push_back("looked"); },
       .account_context = [this] { return EpochAccount::Context{host.Now()}; }}};
};

TEST_CASE("without a checkpoint the job begins at its first step") {
  Fixture f;
  f.Look();
  CHECK(
      f.Said("state: there is no checkpoint to resume from, so the job begins at its first step"));
  CHECK(f.said.back() == "looked");
  f.Begin();
  CHECK(f.book->durable().succeeded.empty());
  CHECK(f.rounds.status().resumed_from().empty());
}

TEST_CASE("a job takes over the closures that are done in every shard") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5));
  f.Look();
  CHECK(f.said == std::vector<std::string>{"looked"});
  const Record begun = f.Begin();
  CHECK(f.book->durable().succeeded.size() == 5);
  CHECK_FALSE(begun.succeeded_add.empty());
  CHECK(f.epochs.steps_done() == 5);
  CHECK(f.rounds.status().resumed_from().find(kFolder) != std::string::npos);
  CHECK(f.Said(absl::StrCat("state: resumed at step 5 of 16 from ", kFolder)));
  CHECK(f.Said("not reproducible: the job resumes from a checkpoint"));
}

TEST_CASE("updates that a former job lost stay lost, and an event names their closures") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5), IntervalSet::Range(5, 7));
  f.Look();
  f.Begin();
  CHECK(
      f.Said("lost: updates that the earlier job lost when a server died are not recovered; "
             "2 closures are not run again: "));
}

TEST_CASE("a checkpoint is taken over once") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5));
  f.Look();
  f.Begin();
  f.said.clear();
  f.Begin();
  CHECK(f.said.empty());
  CHECK(f.book->durable().succeeded.empty());
}

TEST_CASE("a checkpoint of another model fails the job as the user's error") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5));
  f.plan_message.set_fingerprint("other");
  f.plan_message.mutable_shards(0)->mutable_variable()->set_name("v");
  f.Look();
  REQUIRE(f.said.size() == 1);
  CHECK_THAT(f.said[0], Contains("fail user: "));
}

TEST_CASE("damaged checkpoints fail the job with the setting's name") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5));
  const auto saved = f.host.disk->List(kFolder);
  REQUIRE(saved.ok());
  for (const auto& entry : *saved) {
    if (entry.name.find("shard") != std::string::npos)
      REQUIRE(f.host.disk->Truncate(fs::JoinUri(kFolder, entry.name), 10).ok());
  }
  f.Look();
  REQUIRE(f.said.size() == 1);
  CHECK_THAT(f.said[0], Contains("fail user: checkpoint.resume: "));
}

TEST_CASE("a job that ends meanwhile does not begin its plan") {
  Fixture f;
  f.Save(IntervalSet::Range(0, 5));
  f.resume.Look();
  f.ending = true;
  f.RunFileThread();
  CHECK(f.said.empty());
}

}  // namespace
}  // namespace evergrad::coordinator
