// Shared parts of the `psctl checkpoint` verbs. The verbs read files only and need no coordinator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/object_store/file_systems.h"
#include "coordinator/psctl/context.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::psctl {

// Returns `path` unchanged if it is a URI, and otherwise as an absolute path.
std::string UriOf(const Context& context, const std::string& path);

// Returns the files of this host and of object stores, with the credentials of the environment. A
// wrong option is a user's error. `context` outlives the result.
absl::StatusOr<std::unique_ptr<fs::FileSystem>> OpenFiles(const Context& context,
                                                          const object_store::StoreOptions& stores);

struct FoundManifest {
  std::string uri;
  v1::Manifest manifest;
  std::vector<absl::Status> passed_over;  // newer manifests that cannot be read
};
// Finds the manifest of `uri`. The URI may be a manifest, a folder of manifests (the newest
// readable one is used), or a job's runs folder that contains such a folder. Returns DataLoss if
// manifests exist and none is readable, NotFound if there is no manifest, and InvalidArgument (a
// user's error) for any other path.
absl::StatusOr<FoundManifest> FindManifest(fs::FileSystem& files, const std::string& uri);

// Prints `status` and returns its exit code. A file of another format version counts as a user's
// error.
int ReportCheckpoint(Context& context, const absl::Status& status);

int ListCheckpoints(Context& context, const std::vector<std::string>& args);
// Runs `psctl checkpoint list` on `files`. A running job may change the files at the same time.
int ListCheckpointsOf(Context& context, fs::FileSystem& files, const std::string& uri,
                      bool as_json);
int ExportCheckpoint(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
