// The folders in which paths given by another party must lie: the paths of a job's data files
// (--data-root) and of its checkpoints (--checkpoint-root).
//
// The target of a path counts, not its spelling: `..` and links are followed. The check examines
// the file that was opened, so no link can be exchanged between check and use. A path that is
// spelled outside of the folders is refused without access to the disk, so the refusal does not
// reveal whether the file exists. Hard links are not detected: a user who can write to an allowed
// folder can create a hard link in it to a file outside.
//
// A root may also be the URI of a bucket or of a folder in it (s3://bucket/prefix). It contains the
// objects of the same store and bucket whose key is the root's key or lies below it: s3://b/runs
// contains s3://b/runs/7, and not s3://b/runs2. Objects have no links, so the spelling decides. A
// local path never lies in such a root, and an object never lies in a local folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/fs/descriptor.h"

namespace evergrad::fs {

// An immutable value, and therefore thread-safe.
class Roots {
 public:
  Roots() = default;  // every path is allowed
  // Allows only paths inside of `folders`. Local folders are absolute and may be links, which are
  // followed at each use; the others are URIs of objects. An empty list allows no path. `advice`
  // ends each refusal and states how to allow the path: "start the worker with --data-root FOLDER
  // for another folder".
  static Roots Only(const std::vector<std::string>& folders, std::string advice);

  bool everything() const { return everything_; }
  const std::vector<std::string>& folders() const { return folders_; }
  // Returns whether the spelling of `path`, a local path or the URI of an object, lies in a root.
  // Ignores links on the disk. The URI of an object is checked completely; a wrong one is in no
  // root.
  bool Names(absl::string_view path) const;

  // Like open(2) with O_CLOEXEC. On failure get() is -1 and errno holds the reason; EXDEV means
  // that the path is outside of the roots. If not everything is allowed, EXDEV is also the reason
  // for the URI of an object.
  Descriptor Open(const std::string& path, int flags) const;
  // Returns the error for EXDEV: PermissionDenied, as a user error. `what` is "the data file" or
  // "the checkpoint folder".
  absl::Status Refusal(absl::string_view what, const std::string& path) const;

 private:
  bool Holds(const Descriptor& pinned) const;

  bool everything_ = true;
  std::vector<std::string> folders_;
  std::string advice_;
};

// Makes the folders of a flag absolute, and normalizes URIs of objects without a request to their
// store. Returns InvalidArgument (a user error), which names the flag, if a local folder does not
// exist or is not a folder, or if the URI of an object is wrong.
absl::Status MakeRootsAbsolute(absl::string_view flag, std::vector<std::string>* folders);

}  // namespace evergrad::fs
