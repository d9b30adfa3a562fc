// Reads one object in ranges, as a ReadableFile.
//
// A read of at least `read_bytes` goes straight into the caller's memory. Smaller reads go through
// a cache, which consists of the last two fetches. A fetch is one block of `read_bytes`; while the
// caller reads on without a gap, each fetch has twice as many blocks as the one before, up to
// `requests` blocks. The blocks of one fetch, or of one large read, are requested in parallel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/fs/file_system.h"
#include "common/object_store/io_threads.h"
#include "common/object_store/object_store.h"

namespace evergrad::object_store {

struct ReaderParts {
  ObjectStore* store = nullptr;  // outlives the reader
  IoThreads* threads = nullptr;  // outlives the reader
  std::string path;              // the object's URI
  std::string key;
  ObjectInfo info;               // its etag is not empty
  std::uint64_t read_bytes = 0;  // above 0
  int requests = 1;              // requests in flight; above 0
};
std::unique_ptr<fs::ReadableFile> MakeObjectReader(ReaderParts parts);

}  // namespace evergrad::object_store
