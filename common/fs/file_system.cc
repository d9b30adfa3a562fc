// The common parts of all file systems: names, errors, and whole small files.
#include "common/fs/file_system.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace evergrad::fs {

absl::Status FileError(int error, absl::string_view what, absl::string_view path) {
  const auto text = [&](absl::string_view why, absl::string_view advice) {
    return absl::StrCat(what, ": ", why, ": path=", path, advice.empty() ? "" : " (", advice,
                        advice.empty() ? "" : ")");
  };
  switch (error) {
    case ENOENT: return absl::NotFoundError(text("no such file or folder", ""));
    case EEXIST:
      return absl::AlreadyExistsError(
          text("the name exists already", "files are never overwritten"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          text(std::strerror(error), "give this user the permission, or choose another folder"));
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(
          text("the disk is full", "free some space, or choose another folder"));
    case EFBIG:
      return absl::ResourceExhaustedError(
          text("the file would be too large", "this file system or `ulimit -f` limits it"));
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text("too many open files", "raise `ulimit -n`"));
    case EISDIR: return absl::FailedPreconditionError(text("it is a folder", "name a file"));
    case ENOTDIR:
      return absl::FailedPreconditionError(text("a part of the path is a file", "name a folder"));
    case ENOTEMPTY: return absl::FailedPreconditionError(text("the folder is not empty", ""));
    case ENAMETOOLONG:
    case ELOOP: return absl::InvalidArgumentError(text(std::strerror(error), ""));
    // These errors mean that a network disk is unreachable now, and are no errors of the path or
    // the file.
    case ESTALE:
    case ETIMEDOUT:
    case EBUSY:
    case ENOTCONN:
    case EHOSTDOWN:
      return absl::UnavailableError(text(
          std::strerror(error), "this file system behaves unexpectedly, choose another folder"));
    case EIO:
      return absl::DataLossError(
          text("the device reports an error", "see the kernel's log, and use another disk"));
    default: return absl::ErrnoToStatus(error, absl::StrCat(what, ": path=", path));
  }
}

absl::StatusOr<std::unique_ptr<WritableFile>> FileSystem::Replace(absl::string_view uri) {
  return absl::UnimplementedError(
      absl::StrCat("this file system does not replace files: path=", uri));
}

std::string JoinUri(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(absl::StripSuffix(folder, "/"), "/", name);
}

std::string FolderOf(absl::string_view uri) {
  const std::size_t slash = uri.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  // "/a" and "file:///a" are in the root folder.
  const absl::string_view folder = uri.substr(0, slash);
  return folder.empty() || folder == "file://" ? absl::StrCat(folder, "/") : std::string(folder);
}

std::string NameOf(absl::string_view uri) {
  const std::size_t slash = uri.rfind('/');
  return std::string(slash == absl::string_view::npos ? uri : uri.substr(slash + 1));
}

absl::StatusOr<std::string> ReadWhole(FileSystem& files, absl::string_view uri,
                                      std::uint64_t bytes_max) {
  auto file = files.Open(uri);
  if (!file.ok()) return file.status();
  const std::uint64_t size = (*file)->size();
  if (size > bytes_max)
    return absl::ResourceExhaustedError(
        absl::StrCat("file is too large: path=", uri, " bytes=", size, " limit_bytes=", bytes_max));
  std::string bytes(size, '\0');
  const auto read =
      (*file)->ReadAt(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
  if (!read.ok()) return read.status();
  bytes.resize(*read);
  return bytes;
}

absl::Status WriteWhole(FileSystem& files, absl::string_view uri, absl::string_view bytes) {
  auto file = files.Create(uri);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(std::as_bytes(std::span(bytes.data(), bytes.size())));
      !status.ok())
    return status;
  return (*file)->Commit();
}

}  // namespace evergrad::fs
