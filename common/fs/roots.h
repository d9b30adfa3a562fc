// The folders in which paths that somebody else names have to lie: a job's data files
// (--data-root), its checkpoints (--checkpoint-root).
//
// What counts is where a path leads, not how it is spelled: `..` and links are followed, and it is
// the file that was opened whose place is looked at, so nobody can exchange a link between the look
// and the use. A path that is spelled as one outside is refused unseen: the refusal is the same
// whether there is such a file or not. (A hard link lies where it lies: whoever may write in a
// folder may put one there.)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/fs/descriptor.h"

namespace evergrad::fs {

// A value. Thread-safe: const after it is made.
class Roots {
 public:
  Roots() = default;  // every path may be used
  // Only what lies in one of `folders`: absolute paths, which may be links and are followed at each
  // use. None: no path may be used. `advice` ends each refusal and says what would allow the path:
  // "start the worker with --data-root FOLDER for another folder".
  static Roots Only(std::vector<std::string> folders, std::string advice);

  bool everything() const { return everything_; }
  const std::vector<std::string>& folders() const { return folders_; }
  // Whether `path` is spelled as one in a root: what can be said without looking at the disk's
  // links.
  bool Names(absl::string_view path) const;

  // As open(2), with O_CLOEXEC. On failure get() is -1 and errno says why; EXDEV: it lies outside.
  Descriptor Open(const std::string& path, int flags) const;
  // What to answer for EXDEV: PermissionDenied, as a user's error. `what`: "the data file", "the
  // checkpoint folder".
  absl::Status Refusal(absl::string_view what, const std::string& path) const;

 private:
  bool Holds(const Descriptor& pinned) const;

  bool everything_ = true;
  std::vector<std::string> folders_;
  std::string advice_;
};

// Folders of a flag as absolute paths. InvalidArgument (a user's), naming the flag: one that is not
// there, or no folder.
absl::Status MakeRootsAbsolute(absl::string_view flag, std::vector<std::string>* folders);

}  // namespace evergrad::fs
