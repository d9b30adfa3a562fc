// Detects that the files of the journal, or their folder, were removed or replaced while SQLite has
// the files open. Private to this room. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace evergrad::coordinator {

class JournalPlace {
 public:
  // `path` is the path of the database.
  explicit JournalPlace(std::string path) : path_(std::move(path)) {}

  // Records the identities of the present files. Call it once SQLite has opened the files.
  void Remember();
  // Returns OK if a start with this folder would find the journal of this process. Otherwise the
  // error contains the remedy. If Remember found no -wal file, the first -wal file that Look finds
  // counts as the file of this process, because SQLite creates the file with the first commit.
  absl::Status Look();

 private:
  // Identity of the file at a path; empty if there is no file.
  using FileId = std::optional<std::pair<dev_t, ino_t>>;
  static FileId IdOf(const std::string& path);

  const std::string path_;
  FileId database_id_, wal_id_;  // identities of the files that SQLite has open
};

}  // namespace evergrad::coordinator
