// The objects and uploads of one bucket in memory, and the answers to requests for them.
//
// The requests have passed the checks of FakeStore. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "tests/support/fake_http/fake_http_client.h"

namespace evergrad::test {

struct FakeObject {
  std::string bytes, mark, etag;
  std::vector<http::Header> headers;  // further headers of responses to GET
};

// A request whose URL was read.
struct StoreCall {
  const SentRequest* request = nullptr;
  std::string host, path, key;
  std::vector<std::pair<std::string, std::string>> query;
  std::string Query(absl::string_view name) const;
  bool Has(absl::string_view name) const;
};

// Returns an error of a store; `more` is further XML.
http::Response StoreError(int status, absl::string_view code, absl::string_view more = "");
// Returns nullopt for a wrong percent-encoding.
std::optional<std::string> DecodeUrl(absl::string_view text);

class FakeBucket {
 public:
  struct Rules {
    std::string bucket;
    fs::StoreKind kind = fs::StoreKind::kS3;
    std::size_t part_bytes_min = 0, page_entries_max = 0;
    bool honours_conditions = true, honours_ranges = true;
  };
  explicit FakeBucket(Rules rules)
      : rules_(std::move(rules)), is_gcs_(rules_.kind == fs::StoreKind::kGcs) {}

  http::Response Answer(const StoreCall& call);
  void PutObject(const std::string& key, FakeObject object);
  void RemoveObject(const std::string& key) { objects_.erase(key); }
  const std::map<std::string, FakeObject>& objects() const { return objects_; }
  std::size_t uploads() const { return uploads_.size(); }
  std::string MarkHeader() const;

 private:
  struct Upload {
    std::string key, mark;
    std::map<int, FakeObject> parts;
  };
  http::Response Get(const StoreCall& call) const;
  http::Response Put(const StoreCall& call);
  http::Response Copy(const StoreCall& call);
  http::Response Begin(const StoreCall& call);
  http::Response PutPart(const StoreCall& call);
  http::Response Complete(const StoreCall& call);
  http::Response Delete(const StoreCall& call);
  http::Response List(const StoreCall& call) const;
  // Returns whether the condition of a write fails.
  bool IsRefused(const StoreCall& call) const;
  std::string NewEtag();

  const Rules rules_;
  const bool is_gcs_;
  std::map<std::string, FakeObject> objects_;
  std::map<std::string, Upload> uploads_;
  int names_ = 0;  // etags and uploads so far
};

}  // namespace evergrad::test
