// A data file as its user stored it: plain, or gzip, which is unpacked while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fs/descriptor.h"
#include "common/fs/roots.h"

namespace evergrad::worker {

// Errors are the user's and name the file. Not thread-safe.
class DataFile {
 public:
  // `want` says what the file should be: "an idx file". Refused: a file outside of `roots`
  // (PermissionDenied), whatever is no regular file, and by their names compressions that are not
  // read (xz, bzip2, zip, …).
  static absl::StatusOr<std::unique_ptr<DataFile>> Open(const std::string& path,
                                                        const fs::Roots& roots,
                                                        absl::string_view want);
  ~DataFile();

  // The next bytes, unpacked: fewer than `bytes` at the end only. A gzip file may have several
  // members one after another, and zeros behind the last, as gzip has it; other bytes there, a
  // checksum that does not match and an end in the middle are errors.
  absl::StatusOr<std::size_t> Read(void* to, std::size_t bytes);
  // For readers of text: drops the first `used` bytes of `buffer` and appends the next 256 KiB of
  // the file. The result is true when the buffer holds the rest of the file.
  absl::StatusOr<bool> Refill(std::size_t used, std::string* buffer);

  const std::string& path() const { return path_; }
  bool packed() const { return stream_ != nullptr; }
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  std::uint64_t offset() const { return offset_; }  // of the next unpacked byte
  // fingerprint.h's, of the file that is open, whatever its path leads to by now.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  struct Stream;
  DataFile(std::string path, fs::Descriptor file, std::uint64_t stored_bytes);
  absl::StatusOr<std::size_t> ReadStored(char* to, std::size_t bytes);
  absl::StatusOr<std::size_t> Unpack(char* to, std::size_t bytes);
  // Between two members: whether another one follows.
  absl::StatusOr<bool> NextMember();
  absl::Status Damaged(absl::string_view why) const;

  const std::string path_;
  const fs::Descriptor file_;
  const std::uint64_t stored_bytes_;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Stream> stream_;  // null: plain
};

}  // namespace evergrad::worker
