// What the verbs of `psctl checkpoint` share. Files alone: no coordinator, no cluster.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "coordinator/psctl/context.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::psctl {

// `path` as the file system wants it: a URI as it is, a path absolute.
std::string UriOf(const Context& context, const std::string& path);

struct FoundManifest {
  std::string uri;
  v1::Manifest manifest;
  std::vector<absl::Status> passed_over;  // newer ones that cannot be read
};
// `uri`: a manifest; or a folder of manifests, of which the newest that can be read counts; or a
// job's runs folder with such a folder in it. DataLoss: there are some, none can be read. NotFound:
// none. InvalidArgument, the user's: something else.
absl::StatusOr<FoundManifest> FindManifest(fs::FileSystem& files, const std::string& uri);

// Says `status` with its exit code; a file of another version is the user's to replace.
int ReportCheckpoint(Context& context, const absl::Status& status);

int ListCheckpoints(Context& context, const std::vector<std::string>& args);
// `list` of these files, which may change meanwhile.
int ListCheckpointsOf(Context& context, fs::FileSystem& files, const std::string& uri,
                      bool as_json);
int ExportCheckpoint(Context& context, const std::vector<std::string>& args);

}  // namespace evergrad::psctl
