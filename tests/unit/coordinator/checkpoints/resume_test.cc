// Tests the checkpoint from which a submission resumes, and the submissions that are refused
// (LEDGER line 28).
#include <catch2/catch.hpp>
#include <functional>

#include "common/base/status.h"
#include "coordinator/closures/closure_book.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/coordinator/checkpoints/checkpoints_fixture.h"

namespace evergrad::coordinator {
namespace {

const std::string kRuns = "file:///runs";
const JobUid kSelf(0x99);
std::string RunsFolder(JobUid uid, const std::string& name = "mnist") {
  return kRuns + "/" + name + "-" + JobUidString(uid);
}
std::string FolderOfJob(JobUid uid, const std::string& name = "mnist") {
  return RunsFolder(uid, name) + "/checkpoint";
}
SavedJob Job(std::uint64_t uid, std::int64_t written_ms) {
  SavedJob job{FolderOfJob(JobUid(uid))};
  job.uid = JobUid(uid);
  job.written_ms = written_ms;
  return job;
}
absl::StatusOr<ResumePoint> Find(fs::FileSystem& files, const config::CheckpointSpec& spec = {}) {
  return FindResumePoint(files, spec, RunsFolder(kSelf), "mnist", kSelf);
}
// Returns the point at which a submission resumes from `job`. The plan has 5 closures per epoch.
ResumePoint PointOf(const SavedJob& job) {
  fs::MemoryFileSystem files;
  job.Save(files);
  auto point = FindResumePoint(files, {}, RunsFolder(kSelf), job.name, kSelf);
  REQUIRE(point.ok());
  return *std::move(point);
}
std::string RefusalOf(const ResumePoint& point, const v1::Plan& plan) {
  const auto resumption = PlanResumption(point, plan, kSelf);
  REQUIRE_FALSE(resumption.ok());
  CHECK(absl::IsFailedPrecondition(resumption.status()));
  CHECK(BlameOf(resumption.status()) == Blame::kUser);
  return std::string(resumption.status().message());
}
bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the newest manifest of an earlier job of the same name is used, not the job's own") {
  fs::MemoryFileSystem files;
  Job(1, 1000).Save(files);
  SavedJob second = Job(2, 3000);
  second.Save(files);
  second.lsn = 7;
  second.Save(files);
  Job(3, 2000).Save(files);
  Job(kSelf.value(), 9000).Save(files);
  SavedJob other = Job(4, 9000);
  other.name = "mnist-2";
  other.folder = FolderOfJob(JobUid(4), "mnist-2");
  other.Save(files);
  REQUIRE(
      // This job has a folder but no checkpoint.
      files.MakeFolders(kRuns + "/mnist-0000000000000005/logs").ok());
  REQUIRE(fs::WriteWhole(files, kRuns + "/mnist-0000000000000006", "a file").ok());
  const auto point = Find(files);
  REQUIRE(point.ok());
  CHECK(point->folder == FolderOfJob(JobUid(2)));
  CHECK(point->uri == FolderOfJob(JobUid(2)) + "/" + snapshot::ManifestName(2));
  CHECK(point->manifest.shards(0).lsn() == 7);
  CHECK(point->open_closures == 0u);
  CHECK(point->passed_over.empty());
}

TEST_CASE("a job resumes from jobs of its owner and jobs without one, and an admin's from all") {
  fs::MemoryFileSystem files;
  const std::pair<std::uint64_t, const char*> jobs[] = {
      {1, ""}, {2, "user/alice"}, {3, "user"}, {4, "admin/carol"}, {5, "user/bob"}};
  std::int64_t written_ms = 0;
  for (const auto& [uid, owner] : jobs) {
    SavedJob job = Job(uid, written_ms += 1000);
    job.owner = owner;
    job.Save(files);
  }
  const std::pair<const char*, std::uint64_t> resumed[] = {
      {"user/bob", 5},  {"user/alice", 2},    {"user", 3},
      {"user/alic", 1}, {"admin/carol", 5},   {"admin", 5},
      {"", 5},          {"administrator", 1}, {"operator/ctl", 1}};
  for (const auto& [owner, uid] : resumed) {
    CAPTURE(owner);
    const auto point = FindResumePoint(files, {}, RunsFolder(kSelf), "mnist", kSelf, owner);
    REQUIRE(point.ok());
    CHECK(point->folder == FolderOfJob(JobUid(uid)));
  }
}

TEST_CASE("checkpoints of other users are not found, and the error states their number") {
  fs::MemoryFileSystem files;
  for (const std::uint64_t uid : {1u, 2u}) {
    SavedJob job = Job(uid, 1000);
    job.owner = "user/alice";
    job.Save(files);
  }
  const auto point = FindResumePoint(files, {}, RunsFolder(kSelf), "mnist", kSelf, "user/bob");
  CHECK(absl::IsNotFound(point.status()));
  CHECK(Has(std::string(point.status().message()), "folders_of_other_users=2"));
}

TEST_CASE("a job with its own checkpoint directory searches only there") {
  fs::MemoryFileSystem files;
  Job(1, 1000).Save(files);
  config::CheckpointSpec spec;
  spec.directory = "/shared";
  const auto none = Find(files, spec);
  CHECK(absl::IsNotFound(none.status()));
  CHECK(BlameOf(none.status()) == Blame::kUser);
  CHECK(Has(std::string(none.status().message()), "looked_at=/shared/mnist-*"));
  SavedJob job = Job(2, 10);
  job.folder = CheckpointFolder(spec, RunsFolder(job.uid), "mnist", job.uid);
  job.Save(files);
  CHECK(Find(files, spec)->folder == "/shared/mnist-0000000000000002");
  CHECK(Find(files)->folder == FolderOfJob(JobUid(1)));
  fs::MemoryFileSystem empty;
  CHECK(Has(std::string(Find(empty).status().message()),
            "looked_at=file:///runs/mnist-*/checkpoint folders=0"));
}

TEST_CASE(
    "a damaged manifest and one with a damaged file are skipped and reported, and the next older "
    "one is used") {
  fs::MemoryFileSystem files;
  SavedJob old = Job(1, 1000), young = Job(2, 2000);
  old.Save(files);
  young.Save(files);
  young.lsn = 2;
  young.written_ms = 3000;
  young.Save(files);
  REQUIRE(files.Damage(young.folder + "/" + snapshot::ManifestName(2), 300, std::byte{1}).ok());
  auto point = Find(files);
  REQUIRE(point.ok());
  CHECK(point->manifest.number() == 1);
  CHECK(point->manifest.job_uid() == 2);
  REQUIRE(point->passed_over.size() == 1);
  CHECK(Has(std::string(point->passed_over[0].message()), snapshot::ManifestName(2)));

  const std::string shard = young.folder + "/" + snapshot::ShardFileName(ShardId(1), {1, 1}, 1);
  SECTION("the file is truncated") { REQUIRE(files.Truncate(shard, 500).ok()); }
  SECTION("a bit in the middle of the values is flipped") {
    const std::string bytes = *fs::ReadWhole(files, shard, 1 << 20);
    const std::size_t block = bytes.find("EGBK");  // the first block holds values
    REQUIRE(block != std::string::npos);
    REQUIRE(files.Damage(shard, block + 32, std::byte{1}).ok());
    CHECK(snapshot::DescribeShardFile(files, shard).ok());
  }
  point = Find(files);
  REQUIRE(point.ok());
  CHECK(point->manifest.job_uid() == 1);
  REQUIRE(point->passed_over.size() == 2);
  CHECK(Has(std::string(point->passed_over[1].message()), "lsn-1"));

  // A manifest with a missing file is used only if no other manifest is left.
  REQUIRE(files.Remove(old.folder + "/" + snapshot::ShardFileName(ShardId(0), {1, 1}, 1)).ok());
  point = Find(files);
  REQUIRE(point.ok());
  CHECK(point->manifest.job_uid() == 1);
  CHECK_FALSE(point->open_closures.has_value());
  CHECK(point->passed_over.size() == 3);
  SavedJob third = Job(3, 500);
  third.Save(files);
  CHECK(Find(files)->manifest.job_uid() == 3);

  // After this damage no readable manifest is left.
  REQUIRE(files.Truncate(third.folder + "/" + snapshot::ManifestName(1), 10).ok());
  REQUIRE(files.Truncate(old.folder + "/" + snapshot::ManifestName(1), 10).ok());
  const auto none = Find(files);
  CHECK(absl::IsDataLoss(none.status()));
  CHECK(Has(std::string(none.status().message()), "folders=3"));
  CHECK(Has(std::string(none.status().message()), "file ends early"));
}

TEST_CASE("a manifest that was copied into another job's folder is skipped") {
  fs::MemoryFileSystem files;
  SavedJob job = Job(1, 1000);
  job.folder = FolderOfJob(JobUid(2));
  job.Save(files);
  const auto none = Find(files);
  CHECK(absl::IsDataLoss(none.status()));
  CHECK(Has(std::string(none.status().message()), "in the folder of another job"));
}

TEST_CASE(
    "under the same plan each shard continues where its file ends, whatever closures it contains") {
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet::Range(0, 12), IntervalSet::Range(0, 11)};
  job.refused = IntervalSet{13};
  job.open = {14, 15};
  const ResumePoint point = PointOf(job);
  CHECK(point.open_closures == 4u);
  v1::Plan plan = SmallPlan();
  // The fingerprint of the plan does not depend on these settings.
  plan.set_epochs(9);
  plan.clear_eval_examples();
  for (v1::ShardSpec& shard : *plan.mutable_shards())
    shard.mutable_variable()->mutable_optimizer()->set_learning_rate(0.5);
  const auto resumption = PlanResumption(point, plan, kSelf);
  REQUIRE(resumption.ok());
  CHECK(resumption->same_plan);
  CHECK(resumption->closures_done == 11);
  CHECK(resumption->epochs_done == 2);
  REQUIRE(resumption->snapshots.size() == 2);
  const Snapshot& s = resumption->snapshots[1];
  CHECK(s.Uri() == job.folder + "/" + snapshot::ShardFileName(ShardId(1), {1, 1}, 1));
  CHECK(s.sha256 == point.manifest.shards(1).sha256());
  CHECK(s.bytes == point.manifest.shards(1).bytes());
  CHECK(s.job == JobUid(1));
  CHECK(s.plan_fingerprint == snapshot::kFingerprint);
  CHECK(s.epoch == ShardEpoch{1, 1});
  CHECK(s.lsn == 1);
  CHECK(s.done == IntervalSet::Range(0, 11));
  CHECK(s.refused == IntervalSet{13});
  CHECK(s.resumed);
  CHECK_FALSE(s.replace_ledger);
  CHECK(resumption->text ==
        "continues from checkpoint 1 of job 0000000000000001: 11 of 45 closures are done (2 whole "
        "epochs)");
}

TEST_CASE(
    "another plan begins at the same epoch, from a complete manifest that ends with an epoch") {
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet::Range(0, 10), IntervalSet::Range(0, 10)};
  const ResumePoint point = PointOf(job);
  v1::Plan plan = SmallPlan(/*batch_size=*/25, /*epochs=*/3, "another");  // 2 closures per epoch
  const auto resumption = PlanResumption(point, plan, kSelf);
  INFO(resumption.status());
  REQUIRE(resumption.ok());
  CHECK_FALSE(resumption->same_plan);
  CHECK(resumption->epochs_done == 2);
  CHECK(resumption->closures_done == 4);
  REQUIRE(resumption->snapshots.size() == 2);
  for (const Snapshot& s : resumption->snapshots) {
    CHECK(s.resumed);
    CHECK(s.replace_ledger);
    CHECK(s.done == IntervalSet::Range(0, 4));
    CHECK(s.refused.empty());
    CHECK(s.plan_fingerprint == snapshot::kFingerprint);
  }
  CHECK(Has(resumption->text,
            "2 epochs are done, under another plan (spec.data.batch_size was=10 is=25)"));
  // A cancelled closure counts as ended.
  job.done = {IntervalSet::Range(0, 10).Minus(IntervalSet{3}),
              IntervalSet::Range(0, 10).Minus(IntervalSet{3})};
  job.refused = IntervalSet{3};
  CHECK(PlanResumption(PointOf(job), plan, kSelf)->closures_done == 4);
  // If the plan has exactly as many epochs as are done, nothing is left to do. A plan with fewer
  // epochs is refused as a mistake.
  CHECK(PlanResumption(point, SmallPlan(25, 2, "another"), kSelf)->closures_done == 4);
  CHECK(Has(RefusalOf(point, SmallPlan(25, 1, "another")),
            "the checkpoint is beyond the end of this job: epochs_done=2 spec.training.epochs=1"));
}

TEST_CASE(
    "another plan is refused if the checkpoint is incomplete or ends inside of an epoch, and the "
    "difference is named") {
  v1::Plan plan = SmallPlan(25, 4, "another");
  plan.set_shuffle_seed(8);
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet::Range(0, 10), IntervalSet::Range(0, 9)};
  std::string text = RefusalOf(PointOf(job), plan);
  CHECK(Has(text,
            "cannot resume: the checkpoint was saved under another plan (spec.data.batch_size "
            "was=10 is=25, "
            "spec.data.shuffle.seed was=7 is=8) and it is not "
            "complete: its shards hold different closures"));
  CHECK(Has(text, "checkpoint=" + job.folder + "/" + snapshot::ManifestName(1)));
  CHECK(Has(text, "leave out spec.checkpoint.resume"));
  job.done = {IntervalSet::Range(0, 9), IntervalSet::Range(0, 9)};
  CHECK(Has(RefusalOf(PointOf(job), plan),
            "does not end with an epoch: closures_done=9 closures_per_epoch=5"));
  job.done = {IntervalSet::Range(0, 11).Minus(IntervalSet{4}),
              IntervalSet::Range(0, 11).Minus(IntervalSet{4})};
  CHECK(Has(RefusalOf(PointOf(job), plan), "does not end with an epoch"));
  job.done = {IntervalSet::Range(0, 10), IntervalSet::Range(0, 10)};
  job.open = {10};
  CHECK(Has(RefusalOf(PointOf(job), plan), "partly applied closures: open=2"));
}

TEST_CASE("each difference that makes another plan is named") {
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet{0}, IntervalSet{0}};
  for (v1::ShardSpec& shard : *job.plan.mutable_shards()) {
    shard.mutable_variable()->mutable_optimizer()->set_type("sgd");
    shard.mutable_variable()->mutable_initializer()->set_seed(5);
  }
  const ResumePoint point = PointOf(job);
  const auto refusal = [&](const std::function<void(v1::Plan*)>& change) {
    v1::Plan plan = job.plan;
    plan.set_fingerprint("another");
    change(&plan);
    return RefusalOf(point, plan);
  };
  const auto each = [](v1::Plan* plan, const std::function<void(v1::VariableSpec*)>& change) {
    for (v1::ShardSpec& shard : *plan->mutable_shards()) change(shard.mutable_variable());
  };
  CHECK(Has(refusal([](v1::Plan*) {}), "(the data (files, their contents, fields) or the model"));
  CHECK(Has(refusal([](v1::Plan* p) { p->set_train_examples(99); }),
            "(training examples was=100 is=99)"));
  CHECK(Has(refusal([](v1::Plan* p) { p->set_steps_per_closure(1); }),
            "(spec.training.steps_per_closure was=2 is=1)"));
  CHECK(Has(refusal([](v1::Plan* p) { p->set_shuffle(false); }),
            "(spec.data.shuffle was=on is=off)"));
  CHECK(Has(refusal([&](v1::Plan* p) {
              each(p, [](v1::VariableSpec* v) { v->mutable_initializer()->set_seed(6); });
            }),
            "(spec.training.seed was=5 is=6)"));
  CHECK(Has(refusal([&](v1::Plan* p) {
              each(p, [](v1::VariableSpec* v) { v->mutable_optimizer()->set_type("adam"); });
            }),
            "(optimizer was=sgd is=adam) and its shards do not match"));
  CHECK(Has(refusal([&](v1::Plan* p) {
              each(p, [](v1::VariableSpec* v) { v->mutable_optimizer()->set_momentum(0.9); });
            }),
            "(momentum was=0 is=0.9) and its shards do not match"));
  CHECK(
      Has(refusal([&](v1::Plan* p) { each(p, [](v1::VariableSpec* v) { v->set_name("other"); }); }),
          "(variable of shard 0 was=dense/kernel is=other) and its shards do not match"));
  CHECK(Has(refusal([&](v1::Plan* p) { each(p, [](v1::VariableSpec* v) { v->set_shape(1, 4); }); }),
            "(shape of dense/kernel was=[12, 3] is=[12, 4])"));
  CHECK(Has(refusal([](v1::Plan* p) { p->mutable_shards(0)->set_row_end(5); }),
            "(rows of shard 0 (dense/kernel) was=0..6 is=0..5)"));
  CHECK(
      Has(refusal([](v1::Plan* p) { p->mutable_shards()->RemoveLast(); }), "(shards was=2 is=1)"));
}

TEST_CASE("a shard without a saved file, and a plan shorter than the done work, are refused") {
  fs::MemoryFileSystem files;
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet{0}, {}};
  v1::Manifest manifest = job.Cut(files);
  v1::ShardFile empty;
  empty.set_shard(1);
  *manifest.mutable_shards(1) = empty;
  REQUIRE(SaveManifest(files, {job.folder, manifest, 3}).ok());
  CHECK(Has(RefusalOf(*Find(files), SmallPlan()), "shard 1 was not saved yet"));

  SavedJob more = Job(2, 2000);
  more.done = {IntervalSet::Range(0, 6), IntervalSet::Range(0, 5)};
  CHECK(Has(RefusalOf(PointOf(more), SmallPlan(10, 1)),
            "the checkpoint is beyond the end of this job: spec.training.epochs=1"));
  CHECK(PlanResumption(PointOf(more), SmallPlan(10, 2), kSelf).ok());
  more.done = {IntervalSet::Range(0, 5), IntervalSet::Range(0, 5)};
  CHECK(PlanResumption(PointOf(more), SmallPlan(10, 1), kSelf)->epochs_done == 1);
  CHECK(absl::IsInvalidArgument(PlanResumption(PointOf(more), SmallPlan(), JobUid(2)).status()));
}

TEST_CASE(
    "a plan shorter than the begun work is refused, and the message states the necessary epochs") {
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet::Range(0, 10), IntervalSet::Range(0, 10)};
  job.open = {10, 12};  // these closures are in the third epoch
  const ResumePoint point = PointOf(job);
  CHECK(point.open_end == 13);
  const std::string text = RefusalOf(point, SmallPlan(10, 2));
  CHECK(Has(text,
            "the checkpoint has open closures beyond the end of this job: spec.training.epochs=2"));
  CHECK(Has(text, "give at least 3 epochs"));
  CHECK(PlanResumption(point, SmallPlan(10, 3), kSelf)->closures_done == 10);
  // Open closures that are in the plan can be continued.
  job.done = {IntervalSet::Range(0, 8), IntervalSet::Range(0, 7)};
  job.open = {8, 9};
  CHECK(PlanResumption(PointOf(job), SmallPlan(10, 2), kSelf).ok());
}

TEST_CASE("a closure book begins from the saved state") {
  SavedJob job = Job(1, 1000);
  job.done = {IntervalSet::Range(0, 7), IntervalSet{0, 1, 2, 3, 5}};
  const auto resumption = PlanResumption(PointOf(job), SmallPlan(), kSelf);
  REQUIRE(resumption.ok());
  ClosureBook book({.closures = 20, .shards = 2}, DurableState{});
  book.BeginLife(Term(1));
  book.CloseWindow();
  book.ResumeFrom(resumption->snapshots);
  CHECK(book.durable().succeeded == IntervalSet{0, 1, 2, 3, 5});
  const auto change = book.Rollback(ShardId(1), "0");
  REQUIRE(change.assigns.size() == 1);
  CHECK(change.assigns[0].snapshot == resumption->snapshots[1]);
}

}  // namespace
}  // namespace evergrad::coordinator
