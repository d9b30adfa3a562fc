// Finds out that the files of the journal, or their folder, were removed or replaced while SQLite
// has them open. Private to this room. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace evergrad::coordinator {

class JournalPlace {
 public:
  // `path` is that of the database.
  explicit JournalPlace(std::string path) : path_(std::move(path)) {}

  // SQLite has opened the files that are there now.
  void Remember();
  // Returns OK if a start with this folder would find the journal of this process. SQLite creates
  // the -wal file with its first commit, if there was none, and keeps it. The error has the remedy.
  absl::Status Look();

 private:
  // Identity of the file at a path; empty: none.
  using FileId = std::optional<std::pair<dev_t, ino_t>>;
  static FileId IdOf(const std::string& path);

  const std::string path_;
  FileId database_id_, wal_id_;  // of the files that SQLite has open
};

}  // namespace evergrad::coordinator
