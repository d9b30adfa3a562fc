#include "worker/data/object_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/snapshot/checksum.h"

namespace evergrad::worker {
namespace {

constexpr std::size_t kPieceBytes = 4u << 20;
constexpr char kLockName[] = ".lock";
constexpr std::chrono::milliseconds kLockPoll{50};

absl::Status Failed(absl::string_view verb, const std::string& uri, const absl::Status& why) {
  const std::string text =
      absl::StrCat("cannot ", verb, " data file: file=", uri, " error=", why.message());
  switch (why.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnavailable: return UserError(absl::Status(why.code(), text));
    case absl::StatusCode::kUnauthenticated: return UserError(absl::PermissionDeniedError(text));
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted: return UserError(absl::UnavailableError(text));
    default: return UserError(absl::InvalidArgumentError(text));
  }
}

absl::Status Failed(absl::string_view verb, const std::string& uri, int error) {
  return Failed(verb, uri, absl::UnavailableError(std::strerror(error)));
}

// An open copy, or a descriptor below 0. A copy of another size is damaged and does not count.
fs::Descriptor OpenCopy(const std::string& path, std::uint64_t bytes) {
  fs::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return fs::Descriptor();
  if (static_cast<std::uint64_t>(info.st_size) != bytes) {
    ::unlink(path.c_str());
    return fs::Descriptor();
  }
  ::futimens(file.get(), nullptr);  // the copies that were used last are removed last
  return file;
}

}  // namespace

absl::StatusOr<ObjectCache::Copy> ObjectCache::Open(const std::string& uri) {
  const auto object = options_.files->Open(uri);
  if (!object.ok()) return Failed("open", uri, object.status());
  Copy copy;
  copy.version = (*object)->version();
  const std::uint64_t bytes = (*object)->size();
  snapshot::Sha256 digest;
  digest.Update(snapshot::BytesOf(absl::StrCat(uri, "\n", copy.version)));
  const std::string path = absl::StrCat(options_.folder, "/", snapshot::Hex(digest.Value()));

  EG_RETURN_IF_ERROR(MakeFolder(uri));
  copy.file = OpenCopy(path, bytes);
  if (copy.file.get() >= 0) return copy;

  // One process downloads at a time. The lock ends with its owner, however the owner ends.
  const fs::Descriptor lock(::open(absl::StrCat(options_.folder, "/", kLockName).c_str(),
                                   O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return Failed("lock the cache folder of the", uri, errno);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return Failed("lock the cache folder of the", uri, errno);
    if (!options_.interruption->Wait(kLockPoll))
      return Failed("download", uri, absl::CancelledError("this process stops"));
  }
  copy.file = OpenCopy(path, bytes);
  if (copy.file.get() < 0) {
    EG_RETURN_IF_ERROR(MakeSpace(bytes, uri));
    EG_RETURN_IF_ERROR(Download(**object, uri, path));
    copy.file = OpenCopy(path, bytes);
  }
  if (copy.file.get() < 0) return Failed("open the copy of the", uri, errno);
  return copy;
}

absl::Status ObjectCache::MakeFolder(const std::string& uri) const {
  if (::mkdir(options_.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Failed("create the cache folder of the", uri, errno);
  // The default folder is in /tmp, where another user could have made it first.
  struct stat info {};
  if (::lstat(options_.folder.c_str(), &info) != 0)
    return Failed("open the cache folder of the", uri, errno);
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 022) == 0)
    return absl::OkStatus();
  return UserError(absl::PermissionDeniedError(absl::StrCat(
      "the cache of data files is not a folder that only this user can write to: folder=",
      options_.folder, " file=", uri, " (start the worker with --data-cache FOLDER)")));
}

absl::Status ObjectCache::Download(fs::ReadableFile& object, const std::string& uri,
                                   const std::string& path) {
  const auto file = options_.files->Create(path);
  if (!file.ok()) return Failed("create the copy of the", uri, file.status());
  std::vector<std::byte> piece(
      static_cast<std::size_t>(std::clamp<std::uint64_t>(object.size(), 1, kPieceBytes)));
  for (std::uint64_t offset = 0; offset < object.size();) {
    const auto got = object.ReadAt(offset, piece);
    // The object was replaced during the download. A later attempt downloads the new version, and
    // other workers may have a whole copy of the old one.
    if (absl::IsFailedPrecondition(got.status()))
      return Failed("download", uri, absl::UnavailableError(got.status().message()));
    if (!got.ok()) return Failed("download", uri, got.status());
    if (*got == 0)
      return Failed("download", uri,
                    absl::DataLossError(absl::StrCat("the object ends at ", offset, " of ",
                                                     object.size(), " bytes")));
    const absl::Status written = (*file)->Append(std::span(piece).first(*got));
    if (!written.ok()) return Failed("write the copy of the", uri, written);
    offset += *got;
  }
  const absl::Status committed = (*file)->Commit();
  return committed.ok() ? committed : Failed("write the copy of the", uri, committed);
}

absl::Status ObjectCache::MakeSpace(std::uint64_t bytes, const std::string& uri) {
  if (bytes > options_.bytes_max)
    return UserError(absl::ResourceExhaustedError(absl::StrCat(
        "data file is larger than the cache of this worker: file=", uri, " bytes=", bytes,
        " max=", options_.bytes_max, " (start the worker with a larger --data-cache-bytes-max)")));
  const auto entries = options_.files->List(options_.folder);
  if (!entries.ok()) return Failed("list the cache folder of the", uri, entries.status());
  struct Held {
    struct timespec used;
    std::string path;
    std::uint64_t bytes;
  };
  std::vector<Held> held;
  std::uint64_t sum = bytes;
  for (const fs::ListedFile& entry : *entries) {
    const std::string path = absl::StrCat(options_.folder, "/", entry.name);
    struct stat info {};
    if (entry.name == kLockName || ::stat(path.c_str(), &info) != 0) continue;
    held.push_back({info.st_mtim, path, entry.bytes});
    sum += entry.bytes;
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (auto oldest = held.begin(); sum > options_.bytes_max && oldest != held.end(); ++oldest) {
    if (::unlink(oldest->path.c_str()) != 0 && errno != ENOENT)
      return Failed("remove an older copy for the", uri, errno);
    sum -= oldest->bytes;
  }
  return absl::OkStatus();
}

}  // namespace evergrad::worker
