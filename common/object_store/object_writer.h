// Writes one object, as a WritableFile. object_files.h describes the writes and the failpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/object_store/io_threads.h"
#include "common/object_store/object_store.h"

namespace evergrad::object_store {

struct WriterParts {
  ObjectStore* store = nullptr;             // outlives the writer
  IoThreads* threads = nullptr;             // outlives the writer
  fault::Failpoints* failpoints = nullptr;  // may be null; outlives the writer
  std::string path;                         // the object's URI
  std::string key;
  PutMode mode = PutMode::kIfAbsent;  // whether Commit replaces an existing object
  std::uint64_t part_bytes = 0;       // above 0
  int uploads = 1;                    // parts in flight; above 0
};
std::unique_ptr<fs::WritableFile> MakeObjectWriter(WriterParts parts);

}  // namespace evergrad::object_store
