#include "common/preemption/notice_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/fs/file_system.h"

namespace evergrad::preemption {

NoticeFile::NoticeFile(std::string path, runtime::Executor* executor, std::function<void()> noticed,
                       std::function<void(const std::string&)> warn)
    : path_(std::move(path)),
      executor_(executor),
      noticed_(std::move(noticed)),
      warn_(std::move(warn)),
      before_(Look()) {
  executor_->PostAfter(kNoticeEvery, [this] { Watch(); });
}

std::optional<NoticeFile::Seen> NoticeFile::Look() {
  struct stat found {};
  if (::stat(path_.c_str(), &found) == 0) {
    return Seen(static_cast<std::uint64_t>(found.st_ino),
                static_cast<std::int64_t>(found.st_mtim.tv_sec),
                static_cast<std::int64_t>(found.st_mtim.tv_nsec));
  }
  if (errno != ENOENT && errno != ENOTDIR && !std::exchange(warned_, true))
    warn_(std::string(
        fs::FileError(errno, "cannot look for the preemption notice file", path_).message()));
  return std::nullopt;
}

void NoticeFile::Watch() {
  const std::optional<Seen> now = Look();
  if (now && now != before_) return noticed_();
  before_ = now;  // if the file is gone now, its next appearance is a notice
  executor_->PostAfter(kNoticeEvery, [this] { Watch(); });
}

}  // namespace evergrad::preemption
