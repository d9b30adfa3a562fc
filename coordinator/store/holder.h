// Locks a state folder for one living coordinator (principle P7 of ARCHITECTURE), and checks that
// its file system has reliable locks and syncs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evergrad::coordinator {

// Returns "nfs", "cifs", … for a statfs type with unreliable locks or syncs, and "" for others.
// Pure.
std::string NetworkFileSystemName(long type);
// Returns FailedPrecondition (a user's error) that names the type, or OK on a local file system.
absl::Status CheckLocalFileSystem(const std::string& folder);

// A lock (flock) on the file FOLDER/holder. The text of the file describes the process that holds
// the lock. The operating system releases the lock when the process ends for any reason. The
// destructor removes the file.
class Holder {
 public:
  // Returns FailedPrecondition (a user's error) with the text of the file if another process holds
  // the lock.
  static absl::StatusOr<std::unique_ptr<Holder>> Take(const std::string& folder,
                                                      const std::string& who);
  ~Holder();
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

 private:
  Holder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
};

}  // namespace evergrad::coordinator
