// Reads back the shard files of a manifest before the manifest is written.
//
// The servers write shard files; the coordinator writes the manifest. Without a shared folder each
// file is durable on some disk, and no process can read them all. Therefore the coordinator first
// opens every file itself. For a periodic manifest it reads header, footer and ledger of each file
// that the previous manifest did not name, and checks the size of the other files. For the final
// manifest of a job it reads every byte of every file.
//
// Not thread-safe; blocking. The class runs on the file thread, one Step at a time. The thread can
// write other files between two steps.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/fs/file_system.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::coordinator {

struct UnreadFile {
  std::uint32_t shard = 0;
  std::string host;  // host of the server that wrote the file; "" if not known
  // The error: NotFound if this host does not see the file, DataLoss if the file is damaged or is
  // not the file that the manifest names, otherwise the error of the file system.
  absl::Status status;
};

class ReadBack {
 public:
  struct Options {
    bool whole = false;  // reads every byte of every file
    // Files that the previous manifest names. These files are opened again only if `whole`.
    std::set<std::string> read_before;
    std::uint64_t step_bytes = 64u << 20;  // bytes that one Step reads before it returns
  };
  ReadBack(std::string folder, v1::Manifest manifest, Options options);

  // Reads the next files. Returns true after the last file.
  bool Step(fs::FileSystem& files);
  int done() const { return next_; }
  int total() const { return manifest_.shards_size(); }
  const std::vector<UnreadFile>& unread() const { return unread_; }
  const v1::Manifest& manifest() const { return manifest_; }

 private:
  absl::Status Look(fs::FileSystem& files, int index, std::uint64_t* read);

  const std::string folder_;
  const v1::Manifest manifest_;
  const Options options_;
  bool listed_ = false;
  std::set<std::pair<std::string, std::uint64_t>> sizes_;  // name, bytes
  int next_ = 0;
  std::vector<UnreadFile> unread_;
};

// Returns OK if all files were read. Otherwise one error states the number of the unread files,
// their hosts and the remedy. The error is InvalidArgument if this host does not see the files (the
// folder is not shared, and no retry helps), DataLoss if a file is damaged, and else the first
// error of the file system.
absl::Status UnreadError(const std::vector<UnreadFile>& unread, int total, absl::string_view folder,
                         absl::string_view this_host);

}  // namespace evergrad::coordinator
