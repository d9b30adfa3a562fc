// Copies the runs folder of a job to another folder, which usually lies in an object store.
//
// Blocking; one thread uses an object.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/fs/file_system.h"

namespace evergrad::coordinator {

class RunCopy {
 public:
  // `target` is the folder of all copies ("s3://bucket/runs"). `files` outlives the object.
  RunCopy(std::string target, fs::FileSystem* files) : target_(std::move(target)), files_(files) {}

  // Copies the files of `folder` that have changed since the last call into the folder of the same
  // name in `target`, result.json last: a reader that finds a result finds the other files, too.
  // The folder checkpoint/ and hidden names are not copied. With `ended`, a complete copy is
  // recorded in the folder, so that a restarted coordinator does not copy it again. Returns the
  // number of files that were copied. After an error, the next call continues.
  absl::StatusOr<std::size_t> Copy(const std::string& folder, bool ended);
  // Forgets the state of a folder that is not copied again.
  void Forget(const std::string& folder);
  // Returns the URI of the copy of `folder`.
  std::string UriOf(const std::string& folder) const;
  const std::string& target() const { return target_; }

 private:
  struct Version {
    std::uint64_t bytes = 0;
    std::int64_t changed_ns = 0;
    friend bool operator==(const Version&, const Version&) = default;
  };
  absl::Status CopyFile(const std::string& from, const std::string& to);

  const std::string target_;
  fs::FileSystem* const files_;
  // The versions that were copied, by folder and name within the folder.
  std::map<std::string, std::map<std::string, Version>> copied_;
};

}  // namespace evergrad::coordinator
