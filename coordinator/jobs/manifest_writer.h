// Writes the manifests of a job on the file thread, and deletes the shard files that none of them
// needs any more.
//
// Before a manifest is written, the files that it will name are read back
// (coordinator/checkpoints/read_back.h), step by step, so that lines of metrics.jsonl and files of
// other jobs are written in between. Not thread-safe: the control executor's, which also calls
// `done`. The object may be destroyed while a manifest is being written.
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
  bool busy() const { return busy_; }       // One manifest at a time.
  int files_left() const { return left_; }  // Files of the manifest that are not read yet.
  // nullopt: a shard has nothing durable that a manifest could name.
  std::optional<v1::Manifest> Make() const;
  // Whether the newest manifest names the same states: a file written anew under its name has
  // another hash.
  bool IsNewest(const v1::Manifest& manifest) const;

  // `unread`: the files could not be read back, and the manifest was not written.
  using Done = std::function<void(const v1::Manifest& manifest, const absl::StatusOr<Saved>& saved,
                                  bool unread)>;
  // `whole`: every byte of every file is read back, else the ends of new files.
  void Write(v1::Manifest manifest, bool whole, Done done);
  void Stop() { stopped_ = true; }  // At the next step; `done` is not called.
  // Forgets what no kept manifest names (Saved::named) and is not the newest of its shard; then,
  // once that is durable, deletes its files.
  void ForgetOlder(const std::set<std::string>& named);

 private:
  void Step(std::shared_ptr<ReadBack> reading, Done done);

  const EpochAccount* const epochs_;
  const std::string folder_;
  bool busy_ = false, stopped_ = false;
  int left_ = 0;
  std::vector<std::string> files_;  // By shard, of the newest manifest: name and hash.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
