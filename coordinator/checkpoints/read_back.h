// Reads back the shard files that a manifest is to name, before anybody calls it a checkpoint.
//
// The servers write shard files, the coordinator writes the manifest. Where they do not share a
// folder, each file is durable on some disk and no process can read all of them. So the coordinator
// opens every file itself first: of a periodic manifest both ends and the ledger of each file that
// the last manifest did not name, and the size of the others; of a job's last manifest every byte
// of every file.
//
// Not thread-safe, blocking: for the file thread, one Step at a time, so that other files are
// written in between.
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
  std::string host;     // of the server that wrote it; "": not known
  absl::Status status;  // NotFound: it cannot be seen from here; DataLoss: it is damaged, or
                        // another one; else the file system's error
};

class ReadBack {
 public:
  struct Options {
    bool whole = false;                 // every byte of every file
    std::set<std::string> read_before;  // names whose contents the last manifest had; they are not
                                        // opened again unless `whole`
    std::uint64_t step_bytes =
        64u << 20;  // one Step goes on to the next file until it has read so much
  };
  ReadBack(std::string folder, v1::Manifest manifest, Options options);

  // Reads the next files. True: that was the last one.
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

// OK when all were read. Else one error that says how many, which hosts have them, and what to do:
// InvalidArgument when none is worse than not being visible from here (the folder is not shared, no
// retry mends that), DataLoss when one is damaged, else the first error of the file system.
absl::Status UnreadError(const std::vector<UnreadFile>& unread, int total, absl::string_view folder,
                         absl::string_view this_host);

}  // namespace evergrad::coordinator
