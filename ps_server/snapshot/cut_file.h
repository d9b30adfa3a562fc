// Writes a cut of a shard as a file, and reads it back (LEDGER lines 21, 27, 28). Blocking: I/O
// threads only.
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

// One durable file, with the facts that the coordinator writes into a manifest.
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
  std::string folder;                       // created if it does not exist
  std::string plan_fingerprint;             // fingerprint of the job's plan
  fault::Failpoints* failpoints = nullptr;  // may be null; the points are snapshot.write (each
                                            // MiB), snapshot.before_commit, snapshot.after_commit
  // Asked about once per MiB; true ends the writing with Cancelled. May be null.
  std::function<bool()> cancelled;
};
// Writes the file and commits it. After OK the file survives a loss of power. If a file of that
// name exists from a commit of this job that was not known to have succeeded, it is written anew.
// Memory: one block. The bytes are a function of the cut and the fingerprint.
absl::StatusOr<DurableCut> WriteCut(const ShardCut& cut, const CutTarget& target);
// Writes the same bytes to `out` and does not commit it. Of `target`, only fingerprint, failpoints
// (snapshot.write) and `cancelled` are used.
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
  fault::Failpoints* failpoints = nullptr;  // may be null; the point is snapshot.restore (each MiB)
  // Asked about once per MiB; true ends the reading with Cancelled. May be null.
  std::function<bool()> cancelled = nullptr;
};
// Reads a cut for the shard with `settings`. Rows and variable must be equal; rates may differ,
// because the plan's fingerprint does not contain them. DataLoss for damage (path, offset, want,
// got). FailedPrecondition for an undamaged file of another job, plan or shard. Unimplemented for a
// newer version.
absl::StatusOr<ShardCut> ReadCut(const ShardSettings& settings, const CutSource& source);

struct RestoreOptions {
  CutSource source;
  ShardSettings settings;
  ShardEpoch epoch;
  MapVersion start;
  IntervalSet refused;           // added to the refused set of the file
  bool forget_attempts = false;  // line 28, resume as a new job: open[*].attempt = (0,0)
  // Line 28, another plan: `done` of the ledger becomes exactly this set, nothing is open, and only
  // `refused` is refused. FailedPrecondition, which names shard and file, if a closure is open in
  // the file: half of it is in the values, and no ledger of another plan can express this.
  std::optional<IntervalSet> replace_ledger = std::nullopt;
};
// Makes a shard from a file. Until this returns, nobody owns the shard; the caller then hands it to
// its executor. Every error names the file.
absl::StatusOr<std::unique_ptr<Shard>> RestoreShard(const RestoreOptions& options);

}  // namespace evergrad::ps_server
