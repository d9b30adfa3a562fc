// A job's checkpoints on a file system (LEDGER lines 27, 28, 30). The functions make paths, write
// the next manifest, delete files that no manifest names, and find the checkpoint from which a new
// submission resumes. common/snapshot reads and writes the files themselves.
//
// The functions block, so they are called on the file thread. The functions are as thread-safe as
// the FileSystem. PlanResumption is pure. Only the job itself writes in its folder. A function may
// be called again after any error: no file is overwritten, and no file that a kept manifest names
// is deleted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/fs/file_system.h"
#include "coordinator/closures/durable_state.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::coordinator {

// Returns the URI of the checkpoint folder of a job: D/<name>-<uid> if `checkpoint.directory` D is
// given, otherwise <runs_folder>/checkpoint. `runs_folder` is the runs folder of the job itself.
std::string CheckpointFolder(const config::CheckpointSpec& spec, absl::string_view runs_folder,
                             absl::string_view job_name, JobUid uid);

struct SaveRequest {
  std::string folder;     // created if it does not exist
  v1::Manifest manifest;  // `number` and `complete` are ignored; `written_ms` is set by the caller
  std::uint32_t keep = 3;
};
struct Saved {
  std::uint64_t number = 0;
  std::string uri;
  // File names in the kept manifests, for SweepRequest::needed. If one of the kept manifests is
  // temporarily unreadable, `named` has the names of all shard files in the folder.
  std::set<std::string> named;
  // Warnings about skipped manifests, and about an old manifest that cannot be deleted; at most
  // kWarningsMax. The manifest is durable in any case.
  std::vector<absl::Status> warnings;
};
inline constexpr std::size_t kWarningsMax = 16;
// Writes a manifest whose files have been read back before (read_back.h), because a manifest with
// unreadable files would hide an older complete manifest. The number of the manifest is 1 + the
// highest number of all manifests in the folder, including unreadable ones. If the write returns
// AlreadyExists, the next free number is used. After the write, deletes readable manifests that are
// older than the newest `keep` readable manifests. Damaged manifests that are older than these
// `keep` manifests are also deleted. Newer damaged manifests stay for inspection.
//
// Returns InvalidArgument for a malformed manifest. After an error of the file system the manifest
// is not durable (after a crash it may exist nevertheless). SaveErrorIsFinal tells which errors a
// retry cannot fix.
absl::StatusOr<Saved> SaveManifest(fs::FileSystem& files, const SaveRequest& request);
// Returns true if no retry can fix this error of a manifest or shard file. Examples are a missing
// permission, an unknown scheme, a file in the place of a folder, a name that is too long, and two
// jobs in one folder.
bool SaveErrorIsFinal(const absl::Status& status);

struct SweepRequest {
  std::string folder;
  // File names in the kept manifests (Saved::named) and in the closure book.
  std::set<std::string> needed;
  // The pair (epoch, lsn) of the newest known file of each shard.
  std::map<ShardId, std::pair<ShardEpoch, std::uint64_t>> newest;
};
// Deletes the shard files of the folder, except the files in `needed`. Files that are newer than
// the newest known file of their shard are also kept, because the report of a newer file may still
// arrive. A shard that is not in `newest` keeps all its files. Files that are not shard files are
// unchanged. Returns the number of deleted files. Stops at the first error that is not NotFound.
// Returns 0 for a missing folder.
absl::StatusOr<std::size_t> SweepFolder(fs::FileSystem& files, const SweepRequest& request);

struct ResumePoint {
  v1::Manifest manifest;
  std::string folder, uri;  // folder and URI of the manifest
  // The number of open closures, summed over the shard files. The values of a file with an open
  // closure contain updates of a closure that is not in the file's `done` set. nullopt if this host
  // does not see the files.
  std::optional<std::uint64_t> open_closures;
  // Newer manifests, with the reason for skipping them: unreadable, a damaged file, or files that
  // this host does not see.
  std::vector<absl::Status> passed_over;
  // The number of updates in each shard's file, applied and skipped, in the order of the shards;
  // nullopt if this host does not see the files.
  std::optional<std::vector<std::uint64_t>> updates = std::nullopt;
  // True if this host sees the files, the files hold the same closures, and no closure is open.
  bool whole = false;
  // One past the highest open closure of all files. 0 if none is open, or if this host does not see
  // the files.
  std::uint64_t open_end = 0;
};
// Among the manifests of earlier jobs of this name, finds the newest readable manifest (by
// written_ms, then number) with undamaged files. All bytes are read here, and again by the server
// that loads them. A manifest whose files this host does not see is used only if there is no other
// manifest. The job's own manifests (`self`) are excluded. With an `owner`, so are the manifests of
// jobs of other owners, because a user must not choose the values with which another user's job
// begins; an admin may resume from every job. The search covers the folder where this
// job would save: `checkpoint.directory`, or else the folders beside `runs_folder`, the runs folder
// of the NEW job. Returns a user's error: NotFound with the searched folders if nothing was ever
// saved, or DataLoss with all skipped manifests if no checkpoint is usable.
absl::StatusOr<ResumePoint> FindResumePoint(fs::FileSystem& files,
                                            const config::CheckpointSpec& spec,
                                            absl::string_view runs_folder,
                                            absl::string_view job_name, JobUid self,
                                            const std::string& owner = "");

struct Resumption {
  // One snapshot per shard of the plan, in order, for ClosureBook::ResumeFrom.
  std::vector<Snapshot> snapshots;
  bool same_plan = true;
  std::uint64_t closures_done = 0;  // closures of the NEW plan that are done in every shard
  std::uint64_t epochs_done = 0;    // number of complete epochs that are done
  std::string text;                 // one line for people
};
// Plans the resumption (LEDGER line 28). If the plan has the fingerprint of the checkpoint's plan,
// each shard continues where its file ends, open closures included. A plan with another fingerprint
// must have the same shards (variables by name, shape and rows, optimizer by type). The manifest
// must then be complete, end with an epoch of its own plan, and have no open closure. The shards
// start with a new ledger, in which the same number of epochs of the new plan is done.
//
// In all other cases, returns FailedPrecondition, a user's error that states the difference and the
// remedy. The same error is returned for a shard that was not saved yet, and for a new plan with
// fewer epochs than are done or begun.
absl::StatusOr<Resumption> PlanResumption(const ResumePoint& point, const v1::Plan& plan,
                                          JobUid self);
}  // namespace evergrad::coordinator
