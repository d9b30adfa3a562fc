// A cut of a shard as a file, and back (LEDGER lines 21, 27, 28). Blocking: I/O threads only.
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

// One durable file: what the coordinator writes into a manifest.
struct DurableCut {
  JobUid job;
  ShardId shard;
  ShardEpoch epoch;
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0;
  IntervalSet done, refused;
  std::string file;  // name in its folder
  snapshot::FileDigest digest;
};

struct CutTarget {
  fs::FileSystem* files = nullptr;
  std::string folder;                       // made when it is not there
  std::string plan_fingerprint;             // of the job's plan
  fault::Failpoints* failpoints = nullptr;  // may be null: snapshot.write (each MiB),
                                            // snapshot.before_commit, snapshot.after_commit
  // Asked about once a MiB; true ends the writing with Cancelled. May be null.
  std::function<bool()> cancelled;
};
// Writes and commits it: when this returns OK the file outlives a loss of power. A file of that
// name from a commit of this job that was not known to have succeeded is written anew. Memory: one
// block. The bytes are a function of the cut and the fingerprint.
absl::StatusOr<DurableCut> WriteCut(const ShardCut& cut, const CutTarget& target);
// The same bytes to `out`, which is not committed; of `target` only fingerprint, failpoints
// (snapshot.write) and `cancelled` count.
absl::StatusOr<snapshot::FileDigest> WriteCutTo(const ShardCut& cut, const CutTarget& target,
                                                fs::WritableFile* out);

struct CutSource {
  fs::FileSystem* files = nullptr;
  std::string uri;
  std::optional<snapshot::ShardFileReader::Expected> expected;  // from the manifest
  JobUid file_job;                                              // that wrote it
  std::string plan_fingerprint;
  std::shared_ptr<storage::ChunkPool> pool;       // may be null
  std::shared_ptr<storage::MemoryBudget> budget;  // may be null
  fault::Failpoints* failpoints = nullptr;        // may be null: snapshot.restore (each MiB)
  // Asked about once a MiB; true ends the reading with Cancelled. May be null.
  std::function<bool()> cancelled = nullptr;
};
// DataLoss: damaged (path, offset, want, got). FailedPrecondition: whole, but of another job, plan
// or shard. Unimplemented: a newer version. `settings`: of the shard that it is read for; rows and
// variable must be equal, rates may differ (the plan's fingerprint does not hold them).
absl::StatusOr<ShardCut> ReadCut(const ShardSettings& settings, const CutSource& source);

struct RestoreOptions {
  CutSource source;
  ShardSettings settings;
  ShardEpoch epoch;
  MapVersion start;
  IntervalSet refused;           // added to the file's
  bool forget_attempts = false;  // line 28, resume as a new job: open[*].attempt = (0,0)
  // Line 28, another plan: the ledger becomes exactly this set as `done`, nothing refused (but
  // `refused`), nothing open. FailedPrecondition, which names shard and file, while a closure is
  // open in the file: half of it is in the values, and no ledger of another plan can say so.
  std::optional<IntervalSet> replace_ledger = std::nullopt;
};
// The whole way from a file to an owned shard. It is nobody's until this returns: hand it to its
// executor then. Every error names the file.
absl::StatusOr<std::unique_ptr<Shard>> RestoreShard(const RestoreOptions& options);

}  // namespace evergrad::ps_server
