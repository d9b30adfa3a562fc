#include "worker/data/fingerprint.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/data/file_error.h"

namespace evergrad::worker {
namespace {

constexpr std::uint64_t kEndBytes = 1u << 20, kWholeBytesMax = 256u << 20;

// Hashes `bytes` bytes from `offset` on.
absl::Status HashRange(int fd, const std::string& path, std::uint64_t offset, std::uint64_t bytes,
                       EVP_MD_CTX* hash) {
  std::vector<unsigned char> buffer(64 * 1024);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, buffer.data(), std::min<std::uint64_t>(buffer.size(), bytes),
                                static_cast<off_t>(offset));
    if (got < 0) return FileError("read", path, errno);
    if (got == 0)
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("data file shrank while it was read: file=", path, " offset=", offset)));
    EG_CHECK(EVP_DigestUpdate(hash, buffer.data(), static_cast<std::size_t>(got)) == 1);
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FileFingerprint(int fd, const std::string& path,
                                            const std::string& version) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return FileError("read", path, errno);
  const std::uint64_t size = static_cast<std::uint64_t>(st.st_size);

  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     &EVP_MD_CTX_free);
  EG_CHECK(hash != nullptr && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1);
  if (size <= kWholeBytesMax) {
    EG_RETURN_IF_ERROR(HashRange(fd, path, 0, size, hash.get()));
  } else {
    EG_RETURN_IF_ERROR(HashRange(fd, path, 0, kEndBytes, hash.get()));
    EG_RETURN_IF_ERROR(HashRange(fd, path, size - kEndBytes, kEndBytes, hash.get()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_bytes = 0;
  EG_CHECK(EVP_DigestFinal_ex(hash.get(), digest, &digest_bytes) == 1);
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), digest_bytes));
  if (size <= kWholeBytesMax) return absl::StrFormat("size=%d sha256=%s", size, hex);
  if (!version.empty()) return absl::StrFormat("size=%d version=%s sha256=%s", size, version, hex);
  return absl::StrFormat("size=%d mtime=%d.%09d sha256=%s", size, st.st_mtim.tv_sec,
                         st.st_mtim.tv_nsec, hex);
}

}  // namespace evergrad::worker
