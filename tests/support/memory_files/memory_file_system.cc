#include "tests/support/memory_files/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/random/philox.h"

namespace evergrad::fs {
namespace {

absl::Status At(fault::Failpoints* failpoints, absl::string_view name) {
  return failpoints == nullptr ? absl::OkStatus() : failpoints->ErrorAt(name);
}

absl::Status Crashed(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("the machine lost power: path=", path));
}

}  // namespace

class MemoryWriter final : public WritableFile {
 public:
  MemoryWriter(MemoryFileSystem* files, std::string path, bool replaces, std::uint64_t generation)
      : files_(*files),
        path_(std::move(path)),
        replaces_(replaces),
        generation_(generation),
        inode_(std::make_shared<MemoryFileSystem::Inode>()) {}
  ~MemoryWriter() override {
    MutexLock lock(&files_.mu_);
    Forget();
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    if (failed_) return Used();
    failed_ = true;
    EG_RETURN_IF_ERROR(At(files_.options_.failpoints, "fs.write"));
    MutexLock lock(&files_.mu_);
    if (generation_ != files_.generation_) return Crashed(path_);
    if (files_.BytesLocked() + bytes.size() > files_.bytes_max_)
      return FileError(ENOSPC, "cannot write file", path_);
    inode_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    files_.unnamed_bytes_ += bytes.size();
    failed_ = false;
    return absl::OkStatus();
  }

  absl::Status Commit() override {
    if (failed_) return Used();
    failed_ = true;
    fault::Failpoints* failpoints = files_.options_.failpoints;
    EG_RETURN_IF_ERROR(At(failpoints, "fs.sync"));
    {
      MutexLock lock(&files_.mu_);
      if (generation_ != files_.generation_) return Crashed(path_);
      inode_->synced = files_.options_.syncs_files;
    }
    EG_RETURN_IF_ERROR(At(failpoints, "fs.link"));
    {
      MutexLock lock(&files_.mu_);
      if (generation_ != files_.generation_) return Crashed(path_);
      if ((files_.files_.contains(path_) && !replaces_) || files_.folders_.contains(path_))
        return FileError(EEXIST, "cannot name file", path_);
      Forget();
      if (const auto found = files_.files_.find(path_); found != files_.files_.end())
        replaced_ = found->second;
      files_.files_[path_] = inode_;
    }
    absl::Status sync_folder = At(failpoints, "fs.sync_folder");
    MutexLock lock(&files_.mu_);
    if (generation_ != files_.generation_) return Crashed(path_);
    if (!sync_folder.ok()) {
      if (replaced_ == nullptr)
        files_.files_.erase(path_);
      else
        files_.files_[path_] = replaced_;
      return sync_folder;
    }
    if (files_.options_.syncs_folders) files_.durable_[path_] = inode_;
    return absl::OkStatus();
  }

 private:
  absl::Status Used() const {
    return absl::FailedPreconditionError(
        absl::StrCat("file is committed, or an earlier call failed: path=", path_));
  }
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_.mu_) {
    if (counted_ && generation_ == files_.generation_)
      files_.unnamed_bytes_ -= inode_->bytes.size();
    counted_ = false;
  }

  MemoryFileSystem& files_;
  const std::string path_;
  const bool replaces_;
  const std::uint64_t generation_;
  std::shared_ptr<MemoryFileSystem::Inode> replaced_;  // null if Commit created the name
  const std::shared_ptr<MemoryFileSystem::Inode> inode_;
  bool failed_ = false, counted_ = true;
};

class MemoryReader final : public ReadableFile {
 public:
  MemoryReader(MemoryFileSystem* files, std::string path, std::uint64_t generation,
               std::shared_ptr<MemoryFileSystem::Inode> inode)
      : files_(*files),
        path_(std::move(path)),
        generation_(generation),
        inode_(std::move(inode)),
        size_(inode_->bytes.size()) {}
  std::uint64_t size() const override { return size_; }
  absl::StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> out) override {
    MutexLock lock(&files_.mu_);
    if (generation_ != files_.generation_) return Crashed(path_);
    if (offset >= inode_->bytes.size()) return 0;
    const std::size_t n = std::min<std::uint64_t>(out.size(), inode_->bytes.size() - offset);
    std::memcpy(out.data(), inode_->bytes.data() + offset, n);
    return n;
  }

 private:
  MemoryFileSystem& files_;
  const std::string path_;
  const std::uint64_t generation_;
  const std::shared_ptr<MemoryFileSystem::Inode> inode_;
  const std::uint64_t size_;
};

MemoryFileSystem::MemoryFileSystem(Options options)
    : options_(options), bytes_max_(options.bytes_max) {
  folders_.insert("/");
}
MemoryFileSystem::~MemoryFileSystem() = default;

absl::StatusOr<std::string> MemoryFileSystem::PathOf(absl::string_view uri) const {
  const absl::StatusOr<std::string> local = LocalPath(uri);
  if (!local.ok()) return local.status();
  std::string path = absl::StrCat(absl::StartsWith(*local, "/") ? "" : "/", *local);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::uint64_t MemoryFileSystem::BytesLocked() const {
  std::uint64_t sum = unnamed_bytes_;
  for (const auto& [path, inode] : files_) sum += inode->bytes.size();
  return sum;
}

std::uint64_t MemoryFileSystem::bytes() const {
  MutexLock lock(&mu_);
  return BytesLocked() - unnamed_bytes_;
}

void MemoryFileSystem::SetBytesMax(std::uint64_t bytes) {
  MutexLock lock(&mu_);
  bytes_max_ = bytes;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Create(absl::string_view uri) {
  return Begin(uri, false);
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Replace(absl::string_view uri) {
  return Begin(uri, true);
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Begin(absl::string_view uri,
                                                                      bool replaces) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  if (uri.empty() || uri.back() == '/')
    return absl::InvalidArgumentError(
        absl::StrCat("the path does not end in a file name: path=", path));
  MutexLock lock(&mu_);
  if (files_.contains(FolderOf(path)))
    return FileError(ENOTDIR, "cannot open the folder of a new file", path);
  if (!folders_.contains(FolderOf(path)))
    return FileError(ENOENT, "cannot open the folder of a new file", path);
  if ((files_.contains(path) && !replaces) || folders_.contains(path))
    return FileError(replaces ? EISDIR : EEXIST, "cannot create file", path);
  return std::unique_ptr<WritableFile>(
      std::make_unique<MemoryWriter>(this, path, replaces, generation_));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryFileSystem::Open(absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  if (folders_.contains(path)) return FileError(EISDIR, "cannot open file", path);
  const auto found = files_.find(path);
  if (found == files_.end()) return FileError(ENOENT, "cannot open file", path);
  return std::unique_ptr<ReadableFile>(
      std::make_unique<MemoryReader>(this, path, generation_, found->second));
}

absl::StatusOr<std::vector<ListedFile>> MemoryFileSystem::List(absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  if (files_.contains(path)) return FileError(ENOTDIR, "cannot list folder", path);
  if (!folders_.contains(path)) return FileError(ENOENT, "cannot list folder", path);
  std::vector<ListedFile> list;
  for (const auto& [file, inode] : files_)
    if (FolderOf(file) == path) list.push_back({NameOf(file), inode->bytes.size(), false});
  for (const std::string& folder : folders_)
    if (folder != "/" && FolderOf(folder) == path) list.push_back({NameOf(folder), 0, true});
  std::sort(list.begin(), list.end(),
            [](const ListedFile& a, const ListedFile& b) { return a.name < b.name; });
  return list;
}

absl::Status MemoryFileSystem::Remove(absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  EG_RETURN_IF_ERROR(At(options_.failpoints, "fs.remove"));
  {
    MutexLock lock(&mu_);
    if (folders_.contains(path)) {
      const bool empty =
          std::none_of(files_.begin(), files_.end(),
                       [&](const auto& file) { return FolderOf(file.first) == path; }) &&
          std::none_of(folders_.begin(), folders_.end(),
                       [&](const std::string& f) { return f != path && FolderOf(f) == path; });
      if (!empty || path == "/") return FileError(ENOTEMPTY, "cannot remove", path);
      folders_.erase(path);
      return absl::OkStatus();
    }
    if (files_.erase(path) == 0) return FileError(ENOENT, "cannot remove", path);
  }
  EG_RETURN_IF_ERROR(At(options_.failpoints, "fs.sync_folder"));
  MutexLock lock(&mu_);
  if (options_.syncs_folders) durable_.erase(path);
  return absl::OkStatus();
}

absl::StatusOr<bool> MemoryFileSystem::Exists(absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  return files_.contains(path) || folders_.contains(path);
}

absl::Status MemoryFileSystem::MakeFolders(absl::string_view uri) {
  EG_ASSIGN_OR_RETURN(std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  for (std::string at = path;; at = FolderOf(at)) {
    if (files_.contains(at)) return FileError(ENOTDIR, "cannot make folder", path);
    if (at == "/") break;
  }
  for (; path != "/"; path = FolderOf(path)) folders_.insert(path);
  return absl::OkStatus();
}

void MemoryFileSystem::Crash(std::uint64_t seed) {
  MutexLock lock(&mu_);
  ++generation_;
  unnamed_bytes_ = 0;
  std::uint64_t drawn = 0;
  const std::uint64_t key = random::KeyOf(seed, "crash");
  const auto draw = [&](std::uint64_t below) { return random::Bits64(key, drawn++) % below; };
  // Each name in a folder that was not synced gets either its old or its new state.
  std::map<std::string, std::shared_ptr<Inode>> left;
  for (const auto& [path, inode] : durable_) {
    const auto now = files_.find(path);
    const bool removed = now == files_.end() || now->second != inode;
    if (!removed || seed == 0 || draw(2) == 0) left[path] = inode;
  }
  for (const auto& [path, inode] : files_) {
    if (durable_.contains(path) || seed == 0) continue;
    if (draw(2) == 0) left[path] = inode;
  }
  for (auto& [path, inode] : left) {
    auto after = std::make_shared<Inode>(*inode);
    if (!inode->synced) {
      const std::uint64_t kept = seed == 0 ? 0 : draw(inode->bytes.size() + 1);
      if (seed != 0 && draw(2) == 0) {
        std::fill(after->bytes.begin() + static_cast<std::ptrdiff_t>(kept), after->bytes.end(),
                  '\0');
      } else {
        after->bytes.resize(kept);
      }
    }
    after->synced = true;
    inode = std::move(after);
  }
  files_ = left;
  durable_ = std::move(left);
}

absl::Status MemoryFileSystem::Damage(absl::string_view uri, std::uint64_t offset, std::byte flip) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  const auto found = files_.find(path);
  if (found == files_.end() || offset >= found->second->bytes.size())
    return absl::InvalidArgumentError(
        absl::StrCat("no such byte: path=", path, " offset=", offset));
  char& byte = found->second->bytes[offset];
  byte = static_cast<char>(static_cast<unsigned char>(byte) ^ std::to_integer<unsigned char>(flip));
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Truncate(absl::string_view uri, std::uint64_t bytes) {
  EG_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  MutexLock lock(&mu_);
  const auto found = files_.find(path);
  if (found == files_.end() || bytes > found->second->bytes.size())
    return absl::InvalidArgumentError(absl::StrCat("no such byte: path=", path, " bytes=", bytes));
  found->second->bytes.resize(bytes);
  return absl::OkStatus();
}

}  // namespace evergrad::fs
