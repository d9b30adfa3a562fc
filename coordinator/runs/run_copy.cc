#include "coordinator/runs/run_copy.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;
constexpr char kResult[] = "result.json", kMark[] = ".copied";
constexpr std::uint64_t kMarkBytesMax = 4096;
constexpr std::size_t kFilesMax = 10'000;

// Returns the names of the files to copy, relative to `folder`, result.json last.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  namespace stdfs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  stdfs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    const std::string name = entry->path().lexically_relative(folder).string();
    const bool hidden = absl::StartsWith(entry->path().filename().string(), ".");
    std::error_code ignored;
    if (hidden || name == "checkpoint")
      entry.disable_recursion_pending();
    else if (entry->is_regular_file(ignored) && !entry->is_symlink(ignored))
      names.push_back(name);
    if (names.size() > kFilesMax)
      return absl::ResourceExhaustedError(
          absl::StrCat("the runs folder has too many files: folder=", folder, " max=", kFilesMax));
    entry.increment(error);
  }
  if (error)
    return absl::UnavailableError(
        absl::StrCat("cannot list the runs folder: folder=", folder, " error=", error.message()));
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a == kResult, a) < std::pair(b == kResult, b);
  });
  return names;
}

}  // namespace

std::string RunCopy::UriOf(const std::string& folder) const {
  return fs::JoinUri(target_, fs::NameOf(folder));
}

absl::StatusOr<std::size_t> RunCopy::Copy(const std::string& folder, bool ended) {
  const std::string mark = absl::StrCat(folder, "/", kMark);
  const auto marked = fs::ReadFile(mark, kMarkBytesMax);
  if (ended && marked.ok() && *marked == UriOf(folder)) return std::size_t{0};

  EG_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  std::map<std::string, Version>& copied = copied_[folder];
  std::size_t count = 0;
  for (const std::string& name : names) {
    const std::string from = absl::StrCat(folder, "/", name);
    struct stat info {};
    if (::stat(from.c_str(), &info) != 0) continue;  // removed meanwhile
    const Version version{static_cast<std::uint64_t>(info.st_size),
                          info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec};
    if (const auto found = copied.find(name); found != copied.end() && found->second == version)
      continue;
    EG_RETURN_IF_ERROR(CopyFile(from, fs::JoinUri(UriOf(folder), name)));
    copied[name] = version;
    ++count;
  }
  if (ended) EG_RETURN_IF_ERROR(fs::WriteFileAtomic(mark, UriOf(folder)));
  return count;
}

void RunCopy::Forget(const std::string& folder) { copied_.erase(folder); }

absl::Status RunCopy::CopyFile(const std::string& from, const std::string& to) {
  const auto source = files_->Open(from);
  if (absl::IsNotFound(source.status())) return absl::OkStatus();
  EG_RETURN_IF_ERROR(source.status());
  EG_RETURN_IF_ERROR(files_->MakeFolders(fs::FolderOf(to)));
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<fs::WritableFile> target, files_->Replace(to));
  // The size at the time of opening counts: lines that are appended meanwhile are copied next time.
  const std::uint64_t bytes = (*source)->size();
  std::vector<std::byte> piece(
      std::min<std::uint64_t>(std::max<std::uint64_t>(bytes, 1), kPieceBytes));
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::size_t want =
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - offset));
    EG_ASSIGN_OR_RETURN(const std::size_t got,
                        (*source)->ReadAt(offset, std::span(piece).first(want)));
    if (got == 0) break;  // the file was cut meanwhile, and is copied again next time
    EG_RETURN_IF_ERROR(target->Append(std::span(piece).first(got)));
    offset += got;
  }
  return target->Commit();
}

}  // namespace evergrad::coordinator
