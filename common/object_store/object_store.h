// One bucket of an object store. Objects are written as a whole, never changed, and read in ranges.
//
// All calls block until the store has answered or the retries are used up (retry.h), so only I/O
// threads may make them. Implementations are thread-safe. Keys are plain text ("runs/a b/7"), not
// percent-encoded. Errors name the object's URI, the store's host, the HTTP status, the store's own
// error code and its request id; no error contains a credential. The kinds of errors are NotFound,
// AlreadyExists (an object under this key, with PutMode::kIfAbsent), PermissionDenied and
// Unauthenticated (credentials or certificate), FailedPrecondition (a bucket that does not exist or
// is in another region, an upload that does not exist, an object that has changed since it was
// opened, or a store that ignores conditions), Unavailable (the store cannot be reached, or keeps
// failing), ResourceExhausted (the store is out of space), Cancelled (the interruption), DataLoss
// (a response that is not valid, or has another length or checksum than announced), Unimplemented
// (a store that does not support the request) and InvalidArgument (a request that the store refuses
// for another reason). After Unavailable and Cancelled, a write may have succeeded; after any other
// error it has not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::object_store {

struct ObjectInfo {
  std::uint64_t bytes = 0;
  std::string etag;         // with its quotes, as the store sent it
  std::string writer_mark;  // the mark of the call that wrote the object; "" for other writers
};

enum class PutMode {
  kIfAbsent,  // AlreadyExists if there is an object under this key; nothing is overwritten
  kReplace,   // an existing object is replaced
};

struct UploadedPart {
  int number = 0;  // from 1
  std::string etag;
};

struct ListedObject {
  std::string key;
  std::uint64_t bytes = 0;
};
struct ListPage {
  std::vector<ListedObject> objects;  // in the order of keys
  std::vector<std::string> prefixes;  // common prefixes, each with its final '/'
  std::string next;                   // the token of the next page; "" after the last page
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  virtual absl::StatusOr<ObjectInfo> Head(const std::string& key) = 0;
  // Returns the bytes [offset, offset + bytes) of an object whose etag is `etag`. The result is
  // shorter only at the end of the object. Returns FailedPrecondition if the object has another
  // etag by now, and NotFound if it was deleted. An empty `etag` accepts any object. `bytes` is at
  // most kRangeBytesMax.
  virtual absl::StatusOr<std::string> Get(const std::string& key, std::uint64_t offset,
                                          std::uint64_t bytes, const std::string& etag) = 0;
  // Writes an object in one request. With kIfAbsent, a repeated request whose first response was
  // lost is recognized by a mark of the writer, so a writer does not lose against itself.
  virtual absl::Status Put(const std::string& key, absl::string_view bytes, PutMode mode) = 0;

  // Writes an object in parts. All parts but the last have at least kPartBytesMin bytes. Parts of
  // one upload may be put by several threads at once, in any order, and again. The object appears
  // with the completion, and not before. A completion may be repeated: it recognizes the object of
  // its own upload.
  virtual absl::StatusOr<std::string> BeginUpload(const std::string& key) = 0;
  virtual absl::StatusOr<UploadedPart> PutPart(const std::string& key, const std::string& upload,
                                               int number, absl::string_view bytes) = 0;
  virtual absl::Status CompleteUpload(const std::string& key, const std::string& upload,
                                      const std::vector<UploadedPart>& parts, PutMode mode) = 0;
  // Deletes the parts of an upload. An unknown upload is OK.
  virtual absl::Status AbortUpload(const std::string& key, const std::string& upload) = 0;

  // Lists the objects whose keys begin with `prefix`. With `by_folder`, keys that have a '/' after
  // the prefix are summed up in ListPage::prefixes. `token` is "" or the `next` of the page before.
  // Objects that exist only during a write are left out, so a page can be empty and not the last.
  virtual absl::StatusOr<ListPage> List(const std::string& prefix, bool by_folder,
                                        const std::string& token) = 0;
  // A missing object is OK.
  virtual absl::Status Delete(const std::string& key) = 0;

  // The URI of a key, for messages: "s3://bucket/key".
  virtual std::string UriOf(absl::string_view key) const = 0;
};

inline constexpr std::uint64_t kPartBytesMin = 5u << 20;  // S3's and GCS' own limit
inline constexpr int kPartsMax = 10'000;
inline constexpr std::uint64_t kRangeBytesMax = 1u << 30;

}  // namespace evergrad::object_store
