// A job's checkpoints on a file system: paths, writing the next manifest, deleting files that no
// manifest names, and the checkpoint that a new submission resumes from (LEDGER lines 27, 28, 30;
// the files themselves: common/snapshot).
//
// Blocking functions for the file thread, thread-safe like the FileSystem; PlanResumption is pure.
// The folder of a job has one writer, the job. A repeat after any error is safe: no file is
// overwritten, and no file that a kept manifest names is deleted.
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
#include "coordinator/closures/closure_book.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::coordinator {

// Returns the URI of the checkpoint folder of a job: D/<name>-<uid> if `checkpoint.directory` D is
// given, else <runs_folder>/checkpoint. `runs_folder` is the job's own.
std::string CheckpointFolder(const config::CheckpointSpec& spec, absl::string_view runs_folder,
                             absl::string_view job_name, JobUid uid);

struct SaveRequest {
  std::string folder;     // created if it does not exist
  v1::Manifest manifest;  // `number` and `complete` are ignored; `written_ms` is the caller's
  std::uint32_t keep = 3;
};
struct Saved {
  std::uint64_t number = 0;
  std::string uri;
  // File names in the kept manifests: SweepRequest::needed. If one of these manifests is
  // temporarily unreadable: all names of the folder.
  std::set<std::string> named;
  // Skipped manifests, and an old one that cannot be deleted. At most kWarningsMax; the manifest is
  // durable in any case.
  std::vector<absl::Status> warnings;
};
inline constexpr std::size_t kWarningsMax = 16;
// Writes a manifest whose files have been read back before (read_back.h): a manifest with
// unreadable files would hide an older complete one. Its number is 1 + the highest of the folder,
// readable or not; after AlreadyExists, the next one. Then deletes readable manifests older than
// the newest `keep` readable ones, and damaged manifests older than those; newer damaged ones stay
// for inspection. Errors: InvalidArgument for a malformed manifest; errors of the file system mean
// that the manifest is not durable (after a crash it may exist nevertheless). SaveErrorIsFinal
// tells which errors a retry cannot fix.
absl::StatusOr<Saved> SaveManifest(fs::FileSystem& files, const SaveRequest& request);
// Returns whether no retry can fix an error of a manifest or shard file: permission, unknown
// scheme, a file in the place of a folder, a name that is too long, two jobs in one folder.
bool SaveErrorIsFinal(const absl::Status& status);

struct SweepRequest {
  std::string folder;
  std::set<std::string>
      needed;  // file names in the kept manifests (Saved::named) and in the closure book
  std::map<ShardId, std::pair<ShardEpoch, std::uint64_t>>
      newest;  // (epoch, lsn) of the newest known file of each shard
};
// Deletes the shard files of the folder that are not in `needed` and not above the newest known
// file of their shard, because a file above it is being reported. A shard that is not in `newest`
// keeps all its files, and other files are not touched. Returns the number of deleted files; the
// first error that is not NotFound stops it. A missing folder counts as 0.
absl::StatusOr<std::size_t> SweepFolder(fs::FileSystem& files, const SweepRequest& request);

struct ResumePoint {
  v1::Manifest manifest;
  std::string folder, uri;  // of the manifest
  // Closures that are open in a shard's file: the values contain part of an epoch beyond `done`.
  // nullopt: this host does not see the files.
  std::optional<std::uint64_t> open_closures;
  // Newer manifests with the reason for skipping them: unreadable, a damaged file, or files that
  // this host does not see.
  std::vector<absl::Status> passed_over;
  // Updates in each shard's file, applied and skipped, in order; nullopt: this host does not see
  // the files.
  std::optional<std::vector<std::uint64_t>> updates = std::nullopt;
  bool whole = false;  // this host sees the files, they hold the same closures, and none is open
  // One past the highest open closure of all files; 0: none is open, or this host does not see the
  // files.
  std::uint64_t open_end = 0;
};
// Finds the newest readable manifest (by written_ms, then number) of an earlier job of this name
// without damaged files; all bytes are read here, and again by the server that loads them. A
// manifest whose files this host does not see is used only if there is no other. The job's own
// manifests (`self`) are excluded. The search covers the folder where this job would save:
// `checkpoint.directory`, else the siblings of `runs_folder` (of the NEW job). Errors of the user:
// NotFound, with the searched folders, if nothing was ever saved; DataLoss, with all skipped
// manifests, if no checkpoint is usable.
absl::StatusOr<ResumePoint> FindResumePoint(fs::FileSystem& files,
                                            const config::CheckpointSpec& spec,
                                            absl::string_view runs_folder,
                                            absl::string_view job_name, JobUid self);

struct Resumption {
  std::vector<Snapshot>
      snapshots;  // one per shard of the plan, in order, for ClosureBook::ResumeFrom
  bool same_plan = true;
  std::uint64_t closures_done = 0;          // of the NEW plan, done in every shard
  std::uint64_t epochs_done = 0;            // complete epochs
  std::vector<v1::FinishedMetric> metrics;  // the metrics in the manifest
  std::string text;                         // one line for people
};
// [28] With the same fingerprint each shard continues where its file ends, open closures included.
// Another plan must have the same shards (variables by name, shape and rows, optimizer by type),
// and the manifest must be complete, end with an epoch of its own plan, and have no open closure;
// the shards then start with a new ledger, in which the same number of epochs of the new plan is
// done. All other cases are FailedPrecondition, a user's error that states the difference and the
// remedy; so is a shard that was not saved yet, and a new plan with fewer epochs than are done or
// begun.
absl::StatusOr<Resumption> PlanResumption(const ResumePoint& point, const v1::Plan& plan,
                                          JobUid self);
// Returns the "eval" or "train" metric `name` at the end of epoch `epoch` (1, 2, …, as in the
// message), or nullptr.
const v1::FinishedMetric* FindMetric(const std::vector<v1::FinishedMetric>& metrics,
                                     absl::string_view scope, std::uint64_t epoch,
                                     absl::string_view name);

}  // namespace evergrad::coordinator
