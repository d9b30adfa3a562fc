// The input is one byte that says whether the target corrects the checksums, then the bytes of a
// shard file. The file is verified, described, and restored as a shard of the seeds' job.
//
// Property: the ledger of a verified file is the one that its description shows. A shard that is
// restored from the file has the file's digest of values. For a dense shard, a new file that is
// written from the restored shard has all digests of the first file.
#include "common/base/check.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/shard/shard.h"
#include "ps_server/snapshot/cut_file.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet.h"
#include "tests/fuzz/snapshot_seal.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::ps_server {
namespace {

constexpr char kUri[] = "file:///shard";

// DenseShard and SlotShard return the settings of the two shards of tests/golden/snapshot.
ShardSettings DenseShard() {
  ShardSettings settings;
  settings.job = JobUid(0x0123456789abcdef);
  settings.shard = ShardId(0);
  settings.variable = "dense/kernel";
  settings.variable_shape = tensor::Shape{12, 3};
  settings.row_end = 6;
  settings.optimizer.type = "counting";
  return settings;
}
ShardSettings SlotShard() {
  ShardSettings settings;
  settings.job = JobUid(0x0123456789abcdef);
  settings.shard = ShardId(1);
  settings.variable = "slot 1 of 128";
  storage::TableSettings table;
  table.name = "embedding";
  table.dimension = 2;
  table.optimizer.type = "counting";
  settings.slot = SlotSettings{1, 128, {table}};
  return settings;
}

void CheckRestore(fs::FileSystem& files, const ShardSettings& settings,
                  const snapshot::ShardFileReport& report) {
  RestoreOptions options;
  options.source.files = &files;
  options.source.uri = kUri;
  options.source.file_job = settings.job;
  options.source.plan_fingerprint = report.header.plan_fingerprint();
  options.settings = settings;
  options.epoch = {9, 9};
  options.start = {9, 9};
  const auto shard = RestoreShard(options);
  if (!shard.ok()) return;
  EG_CHECK(report.verified);
  EG_CHECK((*shard)->lsn() == report.header.lsn());
  EG_CHECK((*shard)->Digest() == report.value_digest);
  // For a slot, the digest of its optimizer state can differ, because a table drops counters that
  // its settings do not need. In addition, the rows of a slot are cut on a server's executor, which
  // this target does not have.
  if (settings.slot) return;
  EG_CHECK((*shard)->StateDigest() == report.state_digest);

  CutTarget target;
  target.files = &files;
  target.folder = "file:///written";
  target.plan_fingerprint = report.header.plan_fingerprint();
  const auto written = WriteCut((*shard)->Cut(), target);
  EG_CHECK_MSG(written.ok(), std::string(written.status().message()));
  const auto again = snapshot::VerifyShardFile(files, fs::JoinUri(target.folder, written->file));
  EG_CHECK_MSG(again.ok(), std::string(again.status().message()));
  EG_CHECK(again->value_digest == report.value_digest &&
           again->state_digest == report.state_digest);
  EG_CHECK(again->done == report.done && again->open_closures == report.open_closures);
}

void CheckFile(const std::string& bytes) {
  fs::MemoryFileSystem files;
  EG_CHECK(fs::WriteWhole(files, kUri, bytes).ok());
  const auto whole = snapshot::VerifyShardFile(files, kUri);
  const auto look = snapshot::DescribeShardFile(files, kUri);
  if (whole.ok()) {
    EG_CHECK_MSG(look.ok(), std::string(look.status().message()));
    EG_CHECK(whole->done == look->done && whole->refused == look->refused);
    EG_CHECK(whole->open == look->open && whole->bytes == look->bytes);
  }
  const snapshot::ShardFileReport report = whole.ok() ? *whole : snapshot::ShardFileReport();
  CheckRestore(files, DenseShard(), report);
  CheckRestore(files, SlotShard(), report);
}

}  // namespace
}  // namespace evergrad::ps_server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  const bool seal = input.Choice(2) == 1;
  std::string file(input.Rest());
  if (seal) evergrad::fuzz::SealShardFile(file);
  evergrad::ps_server::CheckFile(file);
  return 0;
}
