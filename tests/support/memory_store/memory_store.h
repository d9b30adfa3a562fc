// A bucket of an object store in memory, for tests. A test can let any call fail or wait, and can
// read the transcript of all calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/object_store/object_store.h"

namespace evergrad::object_store {

// One call of an ObjectStore.
struct StoreCall {
  std::string name;  // of the method: "Head", "PutPart"
  std::string key;   // for List, the prefix
  int part = 0;      // number of the part; for CompleteUpload, the number of parts
  std::uint64_t offset = 0, bytes = 0;
  // Returns "PutPart a 2 [8]", "Get a [4, 8)", "CompleteUpload a 2", "Head a".
  std::string ToString() const;
};

// Thread-safe, except for the hooks, which are set while no call is in progress.
class MemoryBucket {
 public:
  struct Options {
    std::string uri = "s3://bucket";
    std::size_t page_entries = 1000;  // entries of a page of a listing
  };
  MemoryBucket() : MemoryBucket(Options()) {}
  explicit MemoryBucket(Options options) : options_(std::move(options)) {}

  // Returns a store of this bucket, which outlives the store.
  std::unique_ptr<ObjectStore> Open();

  // Called at the beginning of each call, on its thread and without a lock. An error is the result
  // of the call, which then has no effect. The function may wait.
  std::function<absl::Status(const StoreCall&)> before;
  // Called after each successful call, like `before`. An error is the result of the call although
  // the call had its effect, like a lost response.
  std::function<absl::Status(const StoreCall&)> after;
  // Changes the result of Get, and of List.
  std::function<void(std::string* bytes)> change_bytes;
  std::function<void(ListPage* page)> change_page;

  // Writes and deletes objects as another writer does. The transcript does not contain these calls.
  void Write(const std::string& key, std::string bytes);
  void Erase(const std::string& key);
  std::optional<std::string> Contents(const std::string& key) const;
  std::vector<std::string> Keys() const;
  std::size_t uploads() const;      // number of uploads that are neither completed nor aborted
  int parts_in_flight_max() const;  // largest number of PutPart calls at the same time
  // Returns the calls since the last TakeCalls, in the order of their beginnings.
  std::vector<std::string> TakeCalls();

 private:
  friend class MemoryStore;
  struct Object {
    std::string bytes, etag;
  };
  struct Upload {
    std::string key;
    std::map<int, Object> parts;
  };
  void WriteLocked(const std::string& key, std::string bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string NewEtag() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  std::uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;  // number of the next etag or upload
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mu_);
  int parts_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  int parts_in_flight_max_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace evergrad::object_store
