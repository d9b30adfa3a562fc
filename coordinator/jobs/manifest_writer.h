// Writes the manifests of a job on the file thread, and deletes the shard files that no manifest
// needs any more.
//
// Before a manifest is written, the files that it will name are read back
// (coordinator/checkpoints/read_back.h). The files are read in steps, and lines of metrics.jsonl
// and files of other jobs can be written between two steps. Not thread-safe: only the control
// executor calls it, and `done` runs there. The object may be destroyed while a manifest is being
// written.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/checkpoints/checkpoints.h"
#include "coordinator/checkpoints/read_back.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job_host.h"

namespace evergrad::coordinator {

class ManifestWriter : private JobPart {
 public:
  ManifestWriter(const JobPart& part, const EpochAccount* epochs);

  const std::string& folder() const { return folder_; }
  bool busy() const { return busy_; }  // A manifest is being written.
  // Number of the manifest's files that are not read back yet.
  int files_left() const { return left_; }
  // Returns the next manifest, or nullopt if a shard has no durable file that it could name.
  std::optional<v1::Manifest> Make() const;
  // Returns whether the newest manifest names the same files with the same hashes. A file that was
  // written again under the same name has another hash.
  bool IsNewest(const v1::Manifest& manifest) const;

  // `unread` is true if the manifest was not written, because its files could not be read back.
  using Done = std::function<void(const v1::Manifest& manifest, const absl::StatusOr<Saved>& saved,
                                  bool unread)>;
  // Writes a manifest. If `whole` is true, every byte of every file is read back first. Otherwise
  // only header, ledger and footer of the new files are read back.
  void Write(v1::Manifest manifest, bool whole, const Done& done);
  void Stop() { stopped_ = true; }  // Stops at the next step, without calling `done`.
  // Forgets the snapshots that no kept manifest names (`named`, see Saved::named) and that are not
  // the newest of their shard. Deletes the files of these snapshots once the removal is durable.
  void ForgetOlder(const std::set<std::string>& named);

 private:
  void Step(const std::shared_ptr<ReadBack>& reading, const Done& done);

  const EpochAccount* const epochs_;
  const std::string folder_;
  bool busy_ = false, stopped_ = false;
  int left_ = 0;
  std::vector<std::string> files_;  // Name and hash of each shard's file in the newest manifest.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
