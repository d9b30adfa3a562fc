#include "coordinator/store/journal_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

JournalPlace::FileId JournalPlace::IdOf(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::pair(info.st_dev, info.st_ino);
}

void JournalPlace::Remember() {
  database_id_ = IdOf(path_);
  wal_id_ = IdOf(path_ + "-wal");
}

absl::Status JournalPlace::Look() {
  const FileId now = IdOf(path_), wal = IdOf(path_ + "-wal");
  const bool here = now && now == database_id_;
  if (here && !wal_id_) wal_id_ = wal;
  if (here && wal == wal_id_) return absl::OkStatus();
  const std::string which = here ? absl::StrCat(path_, "-wal") : path_;
  const std::string pid = absl::StrCat(::getpid());
  return absl::FailedPreconditionError(absl::StrCat(
      "the state folder, or the journal in it, was removed or replaced while this "
      "coordinator runs: file=",
      which, (here ? wal : now) ? " is another file" : " is missing",
      "; the coordinator's jobs continue, and are lost when the coordinator ends. Move the folder "
      "back if it was moved. Otherwise save the open files: pause the coordinator (kill -STOP ",
      pid, "), copy what `ls -l /proc/", pid,
      "/fd` shows as journal.sqlite and journal.sqlite-wal (cp /proc/", pid,
      "/fd/N) to a new folder under these names, end the coordinator (kill -KILL ", pid,
      ") and start it again with --state-dir on that folder"));
}

}  // namespace evergrad::coordinator
