// A job's checkpoints on a file system: where they lie, writing the next manifest, deleting what is
// no longer named, and what a new submission goes on from (LEDGER lines 27, 28, 30; the files
// themselves: common/snapshot).
//
// Blocking functions for the file thread, thread-safe as the FileSystem is; one job's folder has
// one writer, its job. All but PlanResumption, which is pure. A repeat after any error is safe:
// nothing is ever written over, and nothing that a kept manifest names is deleted.
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

// Folder URI of one job's checkpoint. `checkpoint.directory` D given: D/<name>-<uid>; else
// <runs_folder>/checkpoint. `runs_folder`: the job's own.
std::string CheckpointFolder(const config::CheckpointSpec& spec, absl::string_view runs_folder,
                             absl::string_view job_name, JobUid uid);

struct SaveRequest {
  std::string folder;     // made when it is not there
  v1::Manifest manifest;  // `number` and `complete` are ignored; `written_ms` is the caller's
  std::uint32_t keep = 3;
};
struct Saved {
  std::uint64_t number = 0;
  std::string uri;
  // File names that the kept manifests name: SweepRequest::needed. When one of those cannot be read
  // for a passing reason: all of the folder's.
  std::set<std::string> named;
  // Manifests passed over, an old one that cannot be deleted. At most kWarningsMax; the manifest is
  // durable all the same.
  std::vector<absl::Status> warnings;
};
inline constexpr std::size_t kWarningsMax = 16;
// The files that it names have been read back before (read_back.h): a manifest that names what
// nobody can read would hide an older whole one. Writes the manifest under the next number (1 + the
// highest of the folder, readable or not; AlreadyExists: the one after), then deletes readable
// manifests older than the newest `keep` readable ones; a damaged one older than those goes with
// them, a newer one stays to be looked at. InvalidArgument: not a manifest. Errors of the file
// system: the manifest is not durable (after a crash it may be there all the same); which of them a
// retry mends is SaveErrorIsFinal's to say.
absl::StatusOr<Saved> SaveManifest(fs::FileSystem& files, const SaveRequest& request);
// Permission, an unknown scheme, a part of the path that is a file, a name too long, two jobs in
// one folder: no retry mends it. Of manifests and of shards' files.
bool SaveErrorIsFinal(const absl::Status& status);

struct SweepRequest {
  std::string folder;
  std::set<std::string>
      needed;  // file names: of the kept manifests (Saved::named), and what the book still holds
  std::map<ShardId, std::pair<ShardEpoch, std::uint64_t>>
      newest;  // (epoch, lsn) of the newest file that is known of each shard
};
// Deletes the folder's shard files that are not in `needed` and not above the newest known of their
// shard: one above it is being reported. A shard that is not in `newest` keeps all of its files,
// and other files are left alone. Returns how many went; the first error that is not NotFound ends
// it. A folder that is not there: 0.
absl::StatusOr<std::size_t> SweepFolder(fs::FileSystem& files, const SweepRequest& request);

struct ResumePoint {
  v1::Manifest manifest;
  std::string folder, uri;  // of the manifest
  // Closures open in some shard's file: part of an epoch beyond `done` is in the values. nullopt:
  // the files cannot be seen from here.
  std::optional<std::uint64_t> open_closures;
  // Newer ones and why not: unreadable, or a file that they name is damaged; then files that cannot
  // be seen from here, if it is so.
  std::vector<absl::Status> passed_over;
  // Updates in each shard's file, applied and skipped, in order; nullopt: the files cannot be seen
  // from here.
  std::optional<std::vector<std::uint64_t>> updates = std::nullopt;
  bool whole = false;  // the files can be seen, hold the same closures, and none of them is open
  std::uint64_t open_end =
      0;  // one past the highest open closure of all files; 0: none is open, or they cannot be seen
};
// The newest manifest (by written_ms, then number) of an earlier job of this name that can be read
// and none of whose files is damaged (every byte is read here, so it takes as long as that; a
// server that loads one reads it again); one with files that cannot be seen from here only when
// there is no other. Never of `self`. Looks where this job would save: in `checkpoint.directory`,
// else beside `runs_folder` (the NEW job's). NotFound, marked as the user's, names the folders that
// were looked at: nothing was ever saved. DataLoss, likewise: something was, and none of it can be
// used; all that was passed over.
absl::StatusOr<ResumePoint> FindResumePoint(fs::FileSystem& files,
                                            const config::CheckpointSpec& spec,
                                            absl::string_view runs_folder,
                                            absl::string_view job_name, JobUid self);

struct Resumption {
  std::vector<Snapshot>
      snapshots;  // one for each shard of the plan, in order, for ClosureBook::ResumeFrom
  bool same_plan = true;
  std::uint64_t closures_done = 0;          // of the NEW plan, done in every shard
  std::uint64_t epochs_done = 0;            // whole ones
  std::vector<v1::FinishedMetric> metrics;  // as in the manifest: what was measured before
  std::string text;                         // one line for people
};
// [28] The same fingerprint: each shard goes on where its file ends, open closures included.
// Another plan: only with the same cut (variables by name, shape and rows, optimizer by type), from
// a complete manifest that ends with an epoch of its own plan and has no closure open; the shards
// begin with a new ledger in which so many epochs of the new plan are done. Otherwise
// FailedPrecondition, marked as the user's, that says what differs and what to do; also when some
// shard was not saved yet, and when the new plan has fewer epochs than are done or begun.
absl::StatusOr<Resumption> PlanResumption(const ResumePoint& point, const v1::Plan& plan,
                                          JobUid self);
// "eval" or "train" metric `name` at the end of epoch `epoch` (1, 2, …, as in the message);
// nullptr: there is none.
const v1::FinishedMetric* FindMetric(const std::vector<v1::FinishedMetric>& metrics,
                                     absl::string_view scope, std::uint64_t epoch,
                                     absl::string_view name);

}  // namespace evergrad::coordinator
