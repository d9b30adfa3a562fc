// Files of a job's runs folder on their way between hosts: received from an exporting worker, read
// back, and read for a user.
//
// Blocking functions and classes for the file thread; local paths. Only names of
// common/client/run_file_names.h are ever used: no path comes from the wire. Errors name the path;
// a full disk is ResourceExhausted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/snapshot/checksum.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// Takes the chunks of one export attempt and makes files of them: each under a hidden name until
// its last chunk has come and the digest of the whole agrees; then it is synced and renamed.
// Memory: none of its own. Not thread-safe.
class RunFileReceiver {
 public:
  explicit RunFileReceiver(std::string folder) : folder_(std::move(folder)) {}
  ~RunFileReceiver();  // a file that has begun and not ended leaves nothing
  RunFileReceiver(const RunFileReceiver&) = delete;
  RunFileReceiver& operator=(const RunFileReceiver&) = delete;

  // Returns the bytes of this file that have been taken: `chunk.bytes()` when it is durable under
  // its name. Offset 0 begins the file anew. InvalidArgument: a name that is not of the list, a
  // chunk that does not follow the last one. DataLoss: a checksum differs. After an error the file
  // has to begin anew.
  absl::StatusOr<std::uint64_t> Take(const v1::RunFileChunk& chunk);

 private:
  absl::Status Begin(const v1::RunFileChunk& chunk);
  absl::Status End(const v1::RunFileChunk& chunk);
  void GiveUp();

  const std::string folder_;
  std::string name_, beside_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0, taken_ = 0;
  std::optional<snapshot::Sha256> hash_;  // of what has been seen of this file
};

// Removes what a coordinator that died while it received has left under hidden names.
void RemoveHalfReceived(const std::string& folder);

// Reads files and compares size and digest with what their writer said, a bounded part at a time.
class RunFileCheck {
 public:
  RunFileCheck(std::string folder, std::vector<v1::RunFileInfo> files,
               std::uint64_t step_bytes = 64u << 20)
      : folder_(std::move(folder)), files_(std::move(files)), step_bytes_(step_bytes) {}
  ~RunFileCheck();
  RunFileCheck(const RunFileCheck&) = delete;
  RunFileCheck& operator=(const RunFileCheck&) = delete;

  // True: all were read, or status() is an error: NotFound, DataLoss (another size or digest), or
  // the file system's.
  bool Step();
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Read(std::uint64_t* left);

  const std::string folder_;
  const std::vector<v1::RunFileInfo> files_;
  const std::uint64_t step_bytes_;
  std::size_t next_ = 0;
  int fd_ = -1;
  std::uint64_t offset_ = 0;
  std::optional<snapshot::Sha256> hash_;  // of what has been seen of this file
  absl::Status status_;
};

// The files of kRunFileNames that are in `folder`, with size and digest. Of those in `known` with
// the same size the digest is taken from there; the others are read here, a bounded part at a time.
class RunFileListing {
 public:
  RunFileListing(std::string folder, std::vector<v1::RunFileInfo> known,
                 std::uint64_t step_bytes = 64u << 20);
  ~RunFileListing();
  RunFileListing(const RunFileListing&) = delete;
  RunFileListing& operator=(const RunFileListing&) = delete;

  bool Step();  // true: files() is whole
  const std::vector<v1::RunFileInfo>& files() const { return files_; }

 private:
  const std::string folder_;
  const std::vector<v1::RunFileInfo> known_;
  const std::uint64_t step_bytes_;
  std::size_t next_ = 0;
  int fd_ = -1;
  std::uint64_t offset_ = 0, bytes_ = 0;
  std::optional<snapshot::Sha256> hash_;  // of what has been seen of this file
  std::vector<v1::RunFileInfo> files_;
};

// NotFound: no such file, or a name that is not of the list.
absl::StatusOr<std::string> ReadRunFilePart(const std::string& folder, absl::string_view name,
                                            std::uint64_t offset, std::size_t bytes_max);

}  // namespace evergrad::coordinator
