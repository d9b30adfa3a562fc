// Who holds a state folder: one living coordinator at most (P7), and the file system under it must
// keep its word.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evergrad::coordinator {

// "nfs", "cifs", … for a statfs type whose locks and syncs cannot be relied on; "" for the others.
// Pure.
std::string NetworkFileSystemName(long type);
// FailedPrecondition (a user's) naming the type; OK on a local file system.
absl::Status CheckLocalFileSystem(const std::string& folder);

// An flock on FOLDER/holder, whose text says who holds it. The system frees it when the process
// ends, however it ends; the destructor removes the file.
class Holder {
 public:
  // FailedPrecondition (a user's): somebody else holds the folder; the message is what they wrote.
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
