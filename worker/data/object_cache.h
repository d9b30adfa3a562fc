// Local copies of data files that lie in an object store.
//
// A copy is a file of the cache folder, whose name is a digest of the object's URI and version. The
// workers of a host may share the folder: one process downloads at a time, the others wait for it.
// A process that dies leaves no part of a file. The folder has at most `bytes_max` bytes; copies
// that were not used for the longest time are removed first. A copy that is in use may be removed,
// because its reader has opened the file. Thread-safe; calls block.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/fs/descriptor.h"
#include "common/fs/file_system.h"
#include "common/http/interruption.h"

namespace evergrad::worker {

class ObjectCache {
 public:
  struct Options {
    std::string folder;  // created at the first use, with mode 0700
    std::uint64_t bytes_max = 50ull << 30;
    fs::FileSystem* files = nullptr;             // local files and objects
    http::Interruption* interruption = nullptr;  // ends the wait for another process
  };
  explicit ObjectCache(Options options) : options_(std::move(options)) {}

  struct Copy {
    fs::Descriptor file;  // open for reading
    std::string version;  // of the object
  };
  // Opens the copy of an object, and downloads it if there is none of the object's present version.
  // All errors are user errors that name the URI. NotFound, PermissionDenied and Unavailable mean
  // that another host, or a later attempt, may succeed.
  absl::StatusOr<Copy> Open(const std::string& uri);

 private:
  absl::Status MakeFolder(const std::string& uri) const;
  absl::Status Download(fs::ReadableFile& object, const std::string& uri, const std::string& path);
  // Removes copies until `bytes` more bytes fit.
  absl::Status MakeSpace(std::uint64_t bytes, const std::string& uri);

  const Options options_;
};

}  // namespace evergrad::worker
