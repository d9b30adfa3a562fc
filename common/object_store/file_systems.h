// The file system of a daemon or of psctl: local files, s3:// and gs:// behind one FileSystem, and
// the flags that configure it. This is the only header of the room that other rooms need.
#pragma once

#include <memory>
#include <string>

#include "common/daemon/option_table.h"
#include "common/fs/file_system.h"
#include "common/http/interruption.h"
#include "common/metrics/metrics.h"
#include "common/object_store/credentials.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

struct StoreOptions {
  std::string s3_endpoint, s3_region, s3_addressing = "auto";
  std::string gcs_endpoint;
  std::string ca_file;
  bool from_metadata = false;
};
// Adds --s3-endpoint, --s3-region, --s3-addressing, --gcs-endpoint, --store-ca and
// --store-metadata-credentials. The options outlive the table.
void AddStoreOptions(daemon::OptionTable* table, StoreOptions* options);
// Returns a user's error for an endpoint that is not https:// (http:// is accepted on loopback
// addresses only), a wrong region, an unknown addressing, or a CA file that cannot be read. The
// environment variables are checked at the first use of a bucket.
absl::Status CheckStoreOptions(const StoreOptions& options);

struct FileSystemParts {
  fs::LocalOptions local;  // failpoints and roots of all schemes
  StoreOptions store;
  Variables variables;
  const Clock* clock = nullptr;  // outlives the file system
  // Ends the waits of all calls; outlives the file system. If null, no call can be interrupted
  // before the destruction of the file system.
  http::Interruption* interruption = nullptr;
  metrics::Registry* registry = nullptr;  // may be null; outlives the file system
};
// Returns a file system that takes local paths, file:///…, s3://… and gs://…, and refuses other
// schemes by name (Unimplemented). Stores are opened at the first use of a bucket, so a process
// without object URIs contacts nobody and needs no credentials.
std::unique_ptr<fs::FileSystem> MakeFileSystem(FileSystemParts parts);

}  // namespace evergrad::object_store
