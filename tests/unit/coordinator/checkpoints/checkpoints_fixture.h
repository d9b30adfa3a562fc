// Jobs with saved checkpoints. A job has two shards of one variable, whose valid files are on a
// file system in memory.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/checkpoints/checkpoints.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"

namespace evergrad::coordinator {

// Returns a plan in which an epoch has 5 closures: 100 examples, batches of 10, and 2 steps in a
// closure.
inline v1::Plan SmallPlan(std::uint32_t batch_size = 10, std::uint32_t epochs = 4,
                          const std::string& fingerprint = snapshot::kFingerprint) {
  v1::Plan plan;
  plan.set_train_examples(100);
  plan.set_batch_size(batch_size);
  plan.set_steps_per_closure(2);
  plan.set_epochs(epochs);
  plan.set_shuffle(true);
  plan.set_shuffle_seed(7);
  plan.set_eval_examples(20);
  plan.set_eval_batch_size(batch_size);
  plan.set_eval_steps_per_closure(2);
  plan.set_fingerprint(fingerprint);
  for (std::uint32_t shard = 0; shard < 2; ++shard) *plan.add_shards() = snapshot::SmallSpec(shard);
  return plan;
}

struct SavedJob {
  std::string folder;
  std::string name = "mnist";
  std::string owner;
  JobUid uid{1};
  v1::Plan plan = SmallPlan();
  std::vector<IntervalSet> done = {{}, {}};
  IntervalSet refused;
  std::vector<std::uint64_t> open;  // closures that are open in every shard
  std::uint64_t lsn = 1;            // the lsn in the shard files
  ShardEpoch epoch{1, 1};
  std::int64_t written_ms = 1000;

  // Writes the shard files that do not exist yet, and returns a manifest of all shard files.
  v1::Manifest Cut(fs::FileSystem& files) const {
    REQUIRE(files.MakeFolders(folder).ok());
    v1::Manifest manifest;
    manifest.set_job_uid(uid.value());
    manifest.set_job_name(name);
    manifest.set_owner(owner);
    *manifest.mutable_plan() = plan;
    manifest.set_written_ms(written_ms);
    v1::FinishedMetric& metric = *manifest.add_metrics();
    metric.set_scope("eval");
    metric.set_epoch(1);
    metric.set_name("accuracy");
    metric.set_value(0.5);
    for (std::uint32_t shard = 0; shard < 2; ++shard) {
      v1::ShardFileHeader header = snapshot::SmallHeader(shard);
      header.set_job_uid(uid.value());
      header.set_plan_fingerprint(plan.fingerprint());
      *header.mutable_dense() = plan.shards(static_cast<int>(shard));
      *header.mutable_epoch() = snapshot::ToProto(epoch);
      *header.mutable_start() = snapshot::ToProto(MapVersion{1, 1});
      header.set_lsn(lsn);
      header.set_vlsn(lsn);
      v1::ShardLedger ledger;
      *ledger.mutable_done() = snapshot::ToProto(done[shard]);
      *ledger.mutable_refused() = snapshot::ToProto(refused);
      for (const std::uint64_t closure : open) {
        v1::OpenClosure& one = *ledger.add_open();
        one.set_closure(closure);
        *one.mutable_attempt() = snapshot::ToProto(Attempt{1, 9});
        one.add_bits(1);
      }
      const std::string file = snapshot::ShardFileName(ShardId(shard), epoch, lsn);
      const std::string uri = fs::JoinUri(folder, file);
      if (!*files.Exists(uri)) snapshot::WriteSmall(files, uri, header, ledger, /*updates=*/lsn);
      const auto report = snapshot::VerifyShardFile(files, uri);
      INFO(report.status());
      REQUIRE(report.ok());
      v1::ShardFile& entry = *manifest.add_shards();
      entry.set_shard(shard);
      entry.set_file(file);
      entry.set_bytes(report->bytes);
      entry.set_sha256(report->sha256.data(), report->sha256.size());
      *entry.mutable_epoch() = header.epoch();
      *entry.mutable_start() = header.start();
      entry.set_lsn(header.lsn());
      entry.set_vlsn(header.vlsn());
      *entry.mutable_done() = ledger.done();
      *entry.mutable_refused() = ledger.refused();
    }
    manifest.set_complete(snapshot::DoneSetsAreEqual(manifest));
    return manifest;
  }
  Saved Save(fs::FileSystem& files, std::uint32_t keep = 3) const {
    auto saved = SaveManifest(files, {folder, Cut(files), keep});
    INFO(saved.status());
    REQUIRE(saved.ok());
    return *std::move(saved);
  }
};

inline std::vector<std::string> Names(fs::FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  const auto entries = files.List(folder);
  if (entries.ok())
    for (const fs::ListedFile& entry : *entries) names.push_back(entry.name);
  return names;
}
inline std::size_t Count(fs::FileSystem& files, const std::string& folder,
                         const std::string& prefix) {
  const std::vector<std::string> names = Names(files, folder);
  return static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(),
                    [&](const std::string& name) { return name.rfind(prefix, 0) == 0; }));
}

}  // namespace evergrad::coordinator
