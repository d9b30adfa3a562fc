// Writes cuts of shards to files and reads them back (LEDGER lines 21, 27, 28). All functions
// block, so only I/O threads call them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/snapshot/shard_file.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

// The description of one durable file, which the coordinator writes into a manifest.
struct DurableCut {
  JobUid job;
  ShardId shard;
  ShardEpoch epoch;
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0;
  IntervalSet done, refused;
  std::string file;  // name of the file in its folder
  snapshot::FileDigest digest;
};

struct CutTarget {
  fs::FileSystem* files = nullptr;
  std::string folder;            // created if it does not exist
  std::string plan_fingerprint;  // of the job's plan
  // Has the failpoints snapshot.write (for each MiB), snapshot.before_commit and
  // snapshot.after_commit. May be null.
  fault::Failpoints* failpoints = nullptr;
  // A function that is called about once per MiB. If it returns true, the write ends with
  // Cancelled. May be null.
  std::function<bool()> cancelled;
};
// Writes the cut and commits the file. After OK the file survives a power failure. An existing file
// of this name is overwritten if it comes from an earlier commit of this job whose result was not
// known. The function needs memory for one block. The bytes are a function of the cut and the
// fingerprint.
absl::StatusOr<DurableCut> WriteCut(const ShardCut& cut, const CutTarget& target);
// Writes the same bytes to `out`, without a commit. Uses only fingerprint, failpoints
// (snapshot.write) and `cancelled` of `target`.
absl::StatusOr<snapshot::FileDigest> WriteCutTo(const ShardCut& cut, const CutTarget& target,
                                                fs::WritableFile* out);

struct CutSource {
  fs::FileSystem* files = nullptr;
  std::string uri;
  std::optional<snapshot::ShardFileReader::Expected> expected;  // from the manifest
  JobUid file_job;                                              // the job that wrote the file
  std::string plan_fingerprint;
  std::shared_ptr<storage::ChunkPool> pool;       // may be null
  std::shared_ptr<storage::MemoryBudget> budget;  // may be null
  fault::Failpoints* failpoints = nullptr;  // has snapshot.restore (for each MiB); may be null
  // A function that is called about once per MiB. If it returns true, the read ends with Cancelled.
  // May be null.
  std::function<bool()> cancelled = nullptr;
};
// Reads the file for a shard with `settings`, whose rows and variable must be those of the file.
// Learning rates may differ (the plan's fingerprint does not cover them). Returns DataLoss if the
// file is damaged (the message has path, offset, want and got), FailedPrecondition if the file is
// undamaged but belongs to another job, plan or shard, and Unimplemented if the file has a newer
// version.
absl::StatusOr<ShardCut> ReadCut(const ShardSettings& settings, const CutSource& source);

struct RestoreOptions {
  CutSource source;
  ShardSettings settings;
  ShardEpoch epoch;
  MapVersion start;
  IntervalSet refused;           // added to the refused closures of the file
  bool forget_attempts = false;  // LEDGER line 28, resume as a new job: open[*].attempt = (0,0)
  // For a resume under another plan (LEDGER line 28): the new ledger has this set as `done`, has
  // `refused`, and has no open closures. RestoreShard returns FailedPrecondition, with shard and
  // file, if a closure is open in the file, because the values contain a part of this closure that
  // the ledger of another plan cannot record.
  std::optional<IntervalSet> replace_ledger = std::nullopt;
};
// Makes an owned shard from a file. The caller gives the shard to its executor. Every error names
// the file.
absl::StatusOr<std::unique_ptr<Shard>> RestoreShard(const RestoreOptions& options);

}  // namespace evergrad::ps_server
