// Tests psctl job audit on files alone. The fault scenarios in tests/chaos run the same audit on
// the checkpoints of real jobs.
#include "coordinator/psctl/job_audit.h"

#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/coordinator/psctl/checkpoint_fixture.h"

namespace evergrad::psctl {
namespace {

using Catch::Matchers::Contains;

// A checkpoint with two dense shards of one variable. An epoch has ten examples in batches of two,
// with two steps per closure. It therefore has three closures, of which the last one has a single
// step.
struct AuditStage : Stage {
  struct Cut {
    IntervalSet done, refused;
    // The bit u is set if the shard has update u of the closure.
    std::map<std::uint64_t, std::uint64_t> open;
    std::uint64_t updates = 0, skips = 0;
  };
  fs::MemoryFileSystem files;
  v1::Manifest manifest;

  explicit AuditStage(const std::vector<Cut>& cuts, const std::string& yaml = "") {
    manifest.set_job_uid(9);
    manifest.set_job_name("audited");
    manifest.set_number(1);
    manifest.set_yaml(yaml);
    v1::Plan& plan = *manifest.mutable_plan();
    plan.set_train_examples(10);
    plan.set_batch_size(2);
    plan.set_steps_per_closure(2);
    plan.set_epochs(2);
    plan.set_eval_batch_size(2);
    plan.set_eval_steps_per_closure(2);
    plan.set_fingerprint(std::string(64, 'a'));
    REQUIRE(files.MakeFolders("/c").ok());
    for (std::uint32_t p = 0; p < cuts.size(); ++p) {
      v1::ShardSpec& spec = *plan.add_shards();
      spec.set_shard(p);
      spec.mutable_variable()->set_name("dense/kernel");
      spec.mutable_variable()->add_shape(2 * cuts.size());
      spec.mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
      spec.mutable_variable()->mutable_optimizer()->set_type("sgd");
      spec.set_row_begin(2 * p);
      spec.set_row_end(2 * p + 2);
      *manifest.add_shards() = Write(spec, cuts[p]);
    }
    manifest.set_complete(snapshot::DoneSetsAreEqual(manifest));
    REQUIRE(snapshot::WriteManifest(files, "/c", manifest).ok());
  }
  v1::ShardFile Write(const v1::ShardSpec& spec, const Cut& cut) {
    v1::ShardFile entry;
    entry.set_shard(spec.shard());
    const std::uint64_t lsn = 50;
    entry.set_file(snapshot::ShardFileName(ShardId(spec.shard()), {1, 2}, lsn));
    v1::ShardFileHeader header;
    header.set_job_uid(9);
    header.set_shard(spec.shard());
    header.mutable_epoch()->set_term(1);
    header.mutable_epoch()->set_n(2);
    header.set_lsn(lsn);
    header.set_kind(v1::SHARD_KIND_DENSE);
    header.set_plan_fingerprint(std::string(64, 'a'));
    *header.mutable_dense() = spec;
    auto file = files.Create("/c/" + entry.file());
    REQUIRE(file.ok());
    auto writer = snapshot::ShardFileWriter::Begin(file->get(), header);
    REQUIRE(writer.ok());
    REQUIRE((*writer)->BeginSection(snapshot::Section::kValues, 0).ok());
    REQUIRE((*writer)->Append(std::vector<std::byte>(8)).ok());
    v1::ShardCounters counters;
    counters.set_updates_applied(cut.updates);
    if (cut.skips > 0) {
      counters.add_skips()->set_reason("nan");
      counters.mutable_skips(0)->set_count(cut.skips);
    }
    REQUIRE((*writer)->WriteCounters(counters).ok());
    v1::ShardLedger ledger;
    *ledger.mutable_done() = snapshot::ToProto(cut.done);
    *ledger.mutable_refused() = snapshot::ToProto(cut.refused);
    for (const auto& [c, bits] : cut.open) {
      v1::OpenClosure& open = *ledger.add_open();
      open.set_closure(c);
      open.add_bits(bits);
    }
    REQUIRE((*writer)->WriteLedger(ledger).ok());
    const auto digest = (*writer)->Finish();
    REQUIRE(digest.ok());
    REQUIRE((*file)->Commit().ok());
    entry.set_bytes(digest->bytes);
    entry.set_sha256(std::string(reinterpret_cast<const char*>(digest->sha256.data()), 32));
    *entry.mutable_epoch() = header.epoch();
    entry.set_lsn(lsn);
    *entry.mutable_done() = ledger.done();
    *entry.mutable_refused() = ledger.refused();
    return entry;
  }
  Audit Read() {
    auto audit = AuditCheckpoint(files, "/c/" + snapshot::ManifestName(1), manifest);
    INFO(audit.status());
    REQUIRE(audit.ok());
    return *std::move(audit);
  }
};

TEST_CASE(
    "an ended job has every example of every epoch in every shard, and as many updates as the "
    "ledgers record") {
  const AuditStage::Cut whole{IntervalSet::Range(0, 6), {}, {}, 10, 0};
  AuditStage stage({whole, {IntervalSet::Range(0, 6), {}, {}, 9, 1}});
  const Audit audit = stage.Read();
  CHECK(audit.violations.empty());
  CHECK(audit.complete);
  REQUIRE(audit.epochs.size() == 2);
  for (const AuditEpoch& epoch : audit.epochs) CHECK(epoch.applied == 10);
  CHECK(audit.closures_done == 6);
  CHECK(audit.updates == 20);
}

TEST_CASE(
    "in a running job the done, partly done, refused and remaining examples add up to the data "
    "set") {
  // Closure 2 is the last closure of an epoch, with one step of two examples. Shard 1 does not have
  // closure 1. Closure 3 is open in shard 0, which has only its second update.
  AuditStage stage({{IntervalSet{0, 1, 4}, IntervalSet{2}, {{3, 0b10}}, 7, 0},
                    {IntervalSet{0, 4}, IntervalSet{2}, {}, 4, 0}});
  const Audit audit = stage.Read();
  CHECK(audit.violations.empty());
  CHECK(audit.epochs[0].applied == 4);
  CHECK(audit.epochs[0].partly == 4);
  CHECK(audit.epochs[0].refused == 2);
  CHECK(audit.epochs[0].to_do == 0);
  CHECK(audit.epochs[1].applied == 4);
  CHECK(audit.epochs[1].partly == 4);
  CHECK(audit.epochs[1].to_do == 2);
}

TEST_CASE("one missing or extra update in the values is a violation, which names the shard") {
  for (const std::uint64_t updates : {9u, 11u}) {
    AuditStage stage({{IntervalSet::Range(0, 6), {}, {}, 10, 0},
                      {IntervalSet::Range(0, 6), {}, {}, updates, 0}});
    const Audit audit = stage.Read();
    REQUIRE(audit.violations.size() == 1);
    CHECK_THAT(audit.violations[0], Contains("shard 1 (dense/kernel)") &&
                                        Contains("ledger=10 values=" + std::to_string(updates)));
  }
}

TEST_CASE("updates of a lost or cancelled closure are no violation, unless they exceed its steps") {
  // The refused closures are closure 5 with one step and closure 4 with two steps. The values may
  // contain up to three updates of these closures.
  for (const std::uint64_t updates : {7u, 9u, 10u, 11u}) {
    AuditStage stage({{IntervalSet::Range(0, 4), IntervalSet{4, 5}, {}, updates, 0}});
    const Audit audit = stage.Read();
    CAPTURE(updates);
    CHECK(audit.violations.size() == (updates == 11 ? 1 : 0));
    CHECK(audit.refused_updates == (updates == 11 ? 0 : updates - 7));
    CHECK(audit.epochs[1].refused == 6);
  }
}

TEST_CASE("the audit verb reads a folder, prints its proof, and ends with 1 if a byte is damaged") {
  const AuditStage::Cut whole{IntervalSet::Range(0, 6), {}, {}, 10, 0};
  AuditStage stage({whole, whole});
  const auto disk = fs::MakeLocalFileSystem();
  REQUIRE(disk->MakeFolders(stage.folder / "job").ok());
  const auto entries = stage.files.List("/c");
  REQUIRE(entries.ok());
  for (const fs::ListedFile& entry : *entries)
    REQUIRE(fs::WriteWhole(*disk, stage.folder / "job/" + entry.name,
                           *fs::ReadWhole(stage.files, "/c/" + entry.name, 1 << 20))
                .ok());
  const auto run = [&](std::vector<std::string> args) {
    stage.out.str("");
    stage.err.str("");
    args.insert(args.begin(), {"job", "audit"});
    return RunPsctl(stage.context, args);
  };
  CHECK(run({"--checkpoint", stage.folder / "job"}) == kSucceeded);
  CHECK_THAT(stage.out.str(), Contains("exact: in each of epochs 1 to 2 every example was applied "
                                       "exactly once, in every one of 2 shards"));
  CHECK_THAT(stage.out.str(), Contains("20 updates in the shards' values, each in a ledger"));
  CHECK(run({"--checkpoint", stage.folder / "job", "--output", "json"}) == kSucceeded);
  CHECK(nlohmann::json::parse(stage.out.str())["epochs"][1]["applied"] == 10);
  CHECK(run({}) == kUsage);
  CHECK(run({"--checkpoint", stage.folder / "job", "--job", "x"}) == kUsage);
  Stage::Flip(stage.folder / "job/" + stage.manifest.shards(1).file(), 300);
  CHECK(run({"--checkpoint", stage.folder / "job"}) == kFailed);
  CHECK_THAT(stage.err.str(), Contains("offset="));
}

}  // namespace
}  // namespace evergrad::psctl
