// A FileSystem whose files are objects: s3:// and gs://.
//
// A file is an object. A folder is a common prefix of keys, or an empty object whose key ends in
// '/' (a marker), which MakeFolders writes so that an empty folder can be listed. A write collects
// parts of `part_bytes` and uploads up to `uploads` of them at once, so an open file has at most
// `uploads` + 1 parts in memory. A file of at most one part is written in one request by Commit.
// Commit is atomic. It refuses an existing name (PutMode::kIfAbsent), except for files of Replace.
// A reader reads ahead in blocks of `read_bytes`, and always reads the object that Open found: if
// the object was replaced, ReadAt returns FailedPrecondition; if it was removed, NotFound. Blocks
// that the reader has already read may still be returned.
//
// The failpoints are those of the local file system, so that one scenario tests both: fs.write at
// each Append, fs.sync before the last part is sent, fs.link before the object appears,
// fs.sync_folder after it (a new object is deleted again) and after a removal, and fs.remove.
//
// Differences to local files:
// - Create does not check that the folder exists.
// - A key may be both a file and a prefix of other files. Create and Replace refuse the name of a
//   folder, for which they request one listing. They and MakeFolders accept a name below a file.
// - An error of a part in flight is returned by a later Append, or by Commit.
// - After Unavailable or Cancelled, Commit may have written the object, because the store's answer
//   may have been lost. All other errors leave the name free.
// - If the process dies, the parts that were uploaded stay invisible in the bucket, until a
//   lifecycle rule of the bucket removes them.
// - Names that contain ".evergrad-probe-" or ".evergrad-part-" are not listed, and cannot be
//   created. Objects that no URI can name (ParseObjectUri) are not listed either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/fs/object_uri.h"
#include "common/fs/roots.h"
#include "common/object_store/object_store.h"

namespace evergrad::object_store {

struct ObjectFileOptions {
  std::uint64_t part_bytes = 8u << 20;  // doubled after each 1,000 parts, so that 5 TB fit
  // Parts in flight of one file. All files together have as many threads for parts and blocks.
  int uploads = 4;
  std::uint64_t read_bytes = 4u << 20;
  fault::Failpoints* failpoints = nullptr;  // may be null; outlives the file system
  const fs::Roots* roots = nullptr;         // null for any object; outlives the file system
};

// Returns the store of a bucket, which the file system owns. Called at the first use of a bucket,
// and again after an error. The calls of one file system do not overlap. Sends no request.
using OpenBucket =
    std::function<absl::StatusOr<std::unique_ptr<ObjectStore>>(fs::StoreKind, const std::string&)>;

std::unique_ptr<fs::FileSystem> MakeObjectFileSystem(OpenBucket open, ObjectFileOptions options);

}  // namespace evergrad::object_store
