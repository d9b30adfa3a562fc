// Receives the files of a job's runs folder from an exporting worker, reads them back, and reads
// them for a user on another host.
//
// Blocking functions and classes for the file thread; paths are local. Only the names in
// common/client/run_file_names.h are used, so no path comes from the wire. Errors name the path; a
// full disk is ResourceExhausted.
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

// Writes the chunks of one export attempt to files. Each file has a hidden name until its last
// chunk has arrived and the digest of the whole file matches; then the file is synced and renamed.
// The class holds no file data in memory. Not thread-safe.
class RunFileReceiver {
 public:
  explicit RunFileReceiver(std::string folder) : folder_(std::move(folder)) {}
  ~RunFileReceiver();  // removes an incomplete file
  RunFileReceiver(const RunFileReceiver&) = delete;
  RunFileReceiver& operator=(const RunFileReceiver&) = delete;

  // Returns the number of stored bytes of this file, or `chunk.bytes()` once the file is durable
  // under its name. Offset 0 starts the file again. Returns InvalidArgument for a name that is not
  // in the list, or for a chunk that does not follow the previous chunk, and DataLoss for a wrong
  // checksum. After an error the file must start again.
  absl::StatusOr<std::uint64_t> Take(const v1::RunFileChunk& chunk);

 private:
  absl::Status Begin(const v1::RunFileChunk& chunk);
  absl::Status End(const v1::RunFileChunk& chunk);
  void GiveUp();

  const std::string folder_;
  std::string name_, beside_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0, taken_ = 0;
  std::optional<snapshot::Sha256> hash_;  // hash of the part of this file that has been received
};

// Removes hidden files of a coordinator that died while it received them.
void RemoveHalfReceived(const std::string& folder);

// Reads files in chunks of limited size, and compares their sizes and digests with the values that
// their writer reported.
class RunFileCheck {
 public:
  RunFileCheck(std::string folder, std::vector<v1::RunFileInfo> files,
               std::uint64_t step_bytes = 64u << 20)
      : folder_(std::move(folder)), files_(std::move(files)), step_bytes_(step_bytes) {}
  ~RunFileCheck();
  RunFileCheck(const RunFileCheck&) = delete;
  RunFileCheck& operator=(const RunFileCheck&) = delete;

  // Reads the next chunk. Returns true when all files were read, or when status() is an error:
  // NotFound, DataLoss (wrong size or digest), or an error of the file system.
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
  std::optional<snapshot::Sha256> hash_;  // hash of the part of this file that has been read
  absl::Status status_;
};

// Lists the files of kRunFileNames in `folder`, with size and digest. For a file in `known` with
// the same size the known digest is used. The other files are read in chunks of limited size.
class RunFileListing {
 public:
  RunFileListing(std::string folder, std::vector<v1::RunFileInfo> known,
                 std::uint64_t step_bytes = 64u << 20);
  ~RunFileListing();
  RunFileListing(const RunFileListing&) = delete;
  RunFileListing& operator=(const RunFileListing&) = delete;

  bool Step();  // returns true when files() is complete
  const std::vector<v1::RunFileInfo>& files() const { return files_; }

 private:
  const std::string folder_;
  const std::vector<v1::RunFileInfo> known_;
  const std::uint64_t step_bytes_;
  std::size_t next_ = 0;
  int fd_ = -1;
  std::uint64_t offset_ = 0, bytes_ = 0;
  std::optional<snapshot::Sha256> hash_;  // hash of the part of this file that has been read
  std::vector<v1::RunFileInfo> files_;
};

// Returns a part of a file. Returns NotFound if there is no such file, or if the name is not in the
// list.
absl::StatusOr<std::string> ReadRunFilePart(const std::string& folder, absl::string_view name,
                                            std::uint64_t offset, std::size_t bytes_max);

}  // namespace evergrad::coordinator
