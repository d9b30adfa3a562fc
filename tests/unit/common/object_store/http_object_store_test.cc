#include "common/object_store/http_object_store.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/object_store/store_answers.h"
#include "tests/unit/common/object_store/http_store_fixture.h"

namespace evergrad::object_store {
namespace {

using absl::StatusCode;
using test::FakeStore;
using Lines = std::vector<std::string>;

// A server for each kind of store, with the bucket in the path and in the host's name.
std::vector<FakeStore::Options> AllOptions() {
  std::vector<FakeStore::Options> all;
  for (const fs::StoreKind kind : kKinds) {
    for (const bool in_path : {true, false}) {
      FakeStore::Options options = StoreStage::OptionsOf(kind);
      options.endpoint.bucket_in_path = in_path;
      all.push_back(options);
    }
  }
  FakeStore::Options with_token = StoreStage::OptionsOf(fs::StoreKind::kGcs);
  with_token.credentials.bearer_token = "a-bearer-token";
  all.push_back(with_token);
  return all;
}

std::string Describe(const FakeStore::Options& options) {
  return absl::StrCat(NameOfKind(options.kind),
                      options.endpoint.bucket_in_path ? ", path" : ", host",
                      options.credentials.bearer_token.empty() ? "" : ", token");
}

// Keys that need an encoding in a URL, in a signature or in XML.
const char* const kKeys[] = {"a",       "runs/a b/7",    "x=1&y?z#f",     "é/€/日本",
                             "a+b%2F",  "q'(!*)~_-.",    "<k>&\"q\"",     "a//b",
                             "a;b:c@d", "back\\slash|^", "tab.%.{x}[0]$,"};

TEST_CASE("an object is written, described, read and deleted") {
  for (const FakeStore::Options& options : AllOptions()) {
    for (const std::string key : kKeys) {
      CAPTURE(Describe(options), key);
      StoreStage stage(options);
      const auto store = stage.NewStore();
      CHECK(store->Head(key).status().code() == StatusCode::kNotFound);
      CHECK(store->Get(key, 0, 10, "").status().code() == StatusCode::kNotFound);
      REQUIRE(store->Put(key, "0123456789", PutMode::kIfAbsent) == absl::OkStatus());
      CHECK(stage.BytesOf(key) == "0123456789");
      const absl::StatusOr<ObjectInfo> info = store->Head(key);
      REQUIRE(info.ok());
      CHECK(info->bytes == 10);
      CHECK(info->writer_mark == stage.server->objects().at(key).mark);
      CHECK(info->writer_mark.size() == 32);
      CHECK(store->Get(key, 2, 3, info->etag).value() == "234");
      const absl::StatusOr<ListPage> page = store->List(key.substr(0, 1), false, "");
      REQUIRE(page.ok());
      REQUIRE(page->objects.size() == 1);
      CHECK(page->objects[0].key == key);
      CHECK(store->Delete(key) == absl::OkStatus());
      CHECK(store->Delete(key) == absl::OkStatus());
      CHECK(stage.server->objects().empty());
    }
  }
}

TEST_CASE("a read returns the bytes of its range, and fewer only at the end") {
  struct Case {
    std::uint64_t offset, bytes;
    std::string result;
  };
  const std::vector<Case> cases = {
      {0, 10, "0123456789"},
      {0, 100, "0123456789"},
      {0, 1, "0"},
      {3, 4, "3456"},
      {9, 1, "9"},
      {9, 100, "9"},
      {10, 1, ""},
      {1'000'000, 5, ""},
      {0, 0, ""},
      {~0ull, 5, ""},
      {5, 0, ""},
  };
  for (const fs::StoreKind kind : kKinds) {
    for (const bool honours_ranges : {true, false}) {
      FakeStore::Options options = StoreStage::OptionsOf(kind);
      options.honours_ranges = honours_ranges;
      StoreStage stage(options);
      const auto store = stage.NewStore();
      stage.server->PutObject("k", {"0123456789", "", "", {}});
      stage.server->PutObject("empty", {});
      for (const Case& one : cases) {
        CAPTURE(NameOfKind(kind), honours_ranges, one.offset, one.bytes);
        CHECK(store->Get("k", one.offset, one.bytes, "").value() == one.result);
      }
      CHECK(store->Get("empty", 0, 100, "").value().empty());
      CHECK(store->Get("k", 0, kRangeBytesMax + 1, "").status().code() ==
            StatusCode::kInvalidArgument);
    }
  }
}

TEST_CASE("a reader notices that the object has been replaced or deleted") {
  for (const fs::StoreKind kind : kKinds) {
    CAPTURE(NameOfKind(kind));
    StoreStage stage(kind);
    const auto store = stage.NewStore();
    REQUIRE(store->Put("k", "old", PutMode::kReplace).ok());
    const std::string etag = store->Head("k")->etag;
    REQUIRE(store->Put("k", "new", PutMode::kReplace).ok());
    CHECK(store->Get("k", 0, 3, etag).status().code() == StatusCode::kFailedPrecondition);
    CHECK(store->Get("k", 0, 3, store->Head("k")->etag).value() == "new");
    REQUIRE(store->Delete("k").ok());
    CHECK(store->Get("k", 0, 3, etag).status().code() == StatusCode::kNotFound);
  }
}

TEST_CASE("a conditional write does not replace an object, and an unconditional write does") {
  for (const FakeStore::Options& options : AllOptions()) {
    CAPTURE(Describe(options));
    StoreStage stage(options);
    const auto store = stage.NewStore();
    REQUIRE(store->Put("k", "first", PutMode::kIfAbsent).ok());
    const absl::Status second = store->Put("k", "second", PutMode::kIfAbsent);
    CHECK(second.code() == StatusCode::kAlreadyExists);
    CHECK_THAT(std::string(second.message()), Catch::Contains(store->UriOf("k")));
    CHECK(stage.BytesOf("k") == "first");
    CHECK(store->Put("k", "third", PutMode::kReplace).ok());
    CHECK(stage.BytesOf("k") == "third");
  }
}

TEST_CASE("an upload in parts appears with its completion, in the order of the numbers") {
  for (const FakeStore::Options& options : AllOptions()) {
    for (const PutMode mode : {PutMode::kIfAbsent, PutMode::kReplace}) {
      CAPTURE(Describe(options), mode == PutMode::kReplace);
      StoreStage stage(options);
      const auto store = stage.NewStore();
      const std::string upload = store->BeginUpload("runs/a b").value();
      std::map<int, UploadedPart> by_number;
      for (const int number : {3, 1, 2, 1}) {  // part 1 is put again, and its newest tag counts
        const auto part = store->PutPart("runs/a b", upload, number, absl::StrCat("part", number));
        REQUIRE(part.ok());
        by_number[number] = *part;
      }
      CHECK(stage.BytesOf("runs/a b") == "(missing)");
      // The order in which a caller names the parts does not matter.
      const std::vector<UploadedPart> parts{by_number[2], by_number[3], by_number[1]};
      REQUIRE(store->CompleteUpload("runs/a b", upload, parts, mode) == absl::OkStatus());
      CHECK(stage.BytesOf("runs/a b") == "part1part2part3");
      CHECK(stage.server->uploads() == 0);
      CHECK(stage.server->objects().size() == 1);
      // A completion recognizes its own object.
      CHECK(store->CompleteUpload("runs/a b", upload, parts, mode) == absl::OkStatus());
    }
  }
}

TEST_CASE("a conditional upload in parts does not replace an object") {
  for (const FakeStore::Options& options : AllOptions()) {
    CAPTURE(Describe(options));
    StoreStage stage(options);
    const auto store = stage.NewStore();
    const std::string upload = store->BeginUpload("k").value();
    const UploadedPart part = store->PutPart("k", upload, 1, "mine").value();
    stage.server->PutObject("k", {"theirs", "", "", {}});
    CHECK(store->CompleteUpload("k", upload, {part}, PutMode::kIfAbsent).code() ==
          StatusCode::kAlreadyExists);
    CHECK(stage.BytesOf("k") == "theirs");
    CHECK(store->AbortUpload("k", upload) == absl::OkStatus());
    CHECK(stage.server->uploads() == 0);
    CHECK(stage.server->objects().size() == 1);
  }
}

TEST_CASE("an aborted upload leaves nothing, and an unknown upload is aborted already") {
  for (const fs::StoreKind kind : kKinds) {
    CAPTURE(NameOfKind(kind));
    StoreStage stage(kind);
    const auto store = stage.NewStore();
    const std::string upload = store->BeginUpload("k").value();
    const UploadedPart part = store->PutPart("k", upload, 1, "part").value();
    CHECK(store->AbortUpload("k", upload) == absl::OkStatus());
    CHECK(stage.server->uploads() == 0);
    CHECK(store->AbortUpload("k", upload) == absl::OkStatus());
    CHECK(store->PutPart("k", upload, 2, "part").status().code() ==
          StatusCode::kFailedPrecondition);
    CHECK(store->CompleteUpload("k", upload, {part}, PutMode::kReplace).code() ==
          StatusCode::kFailedPrecondition);
    CHECK(stage.server->objects().empty());
  }
}

TEST_CASE("wrong arguments of an upload are refused without a request") {
  StoreStage stage(fs::StoreKind::kGcs);
  const auto store = stage.NewStore();
  const std::string upload = store->BeginUpload("k").value();
  const std::size_t requests = stage.server->sent().size();
  const auto completed = [&](const std::vector<UploadedPart>& parts) {
    return store->CompleteUpload("k", upload, parts, PutMode::kReplace).code();
  };
  CHECK(completed({}) == StatusCode::kInvalidArgument);
  CHECK(completed({{0, "e"}}) == StatusCode::kInvalidArgument);
  CHECK(completed({{1, "e"}, {1, "e"}}) == StatusCode::kInvalidArgument);
  CHECK(completed({{kPartsMax + 1, "e"}}) == StatusCode::kInvalidArgument);
  CHECK(store->PutPart("k", upload, 0, "x").status().code() == StatusCode::kInvalidArgument);
  CHECK(store->PutPart("k", upload, kPartsMax + 1, "x").status().code() ==
        StatusCode::kInvalidArgument);
  for (const std::string& name : {std::string(), std::string("x"), std::string("mark id"),
                                  upload.substr(0, 33), upload.substr(1)}) {
    CAPTURE(name);
    CHECK(store->PutPart("k", name, 1, "x").status().code() == StatusCode::kInvalidArgument);
    CHECK(store->AbortUpload("k", name).code() == StatusCode::kInvalidArgument);
  }
  // A temporary key would be longer than a key may be.
  CHECK(store->BeginUpload(std::string(kKeyBytesMax - 46, 'k')).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(stage.server->sent().size() == requests);
  CHECK(store->BeginUpload(std::string(kKeyBytesMax - 47, 'k')).ok());
}

TEST_CASE("a list has all objects of its pages, and none that exists only during a call") {
  for (const FakeStore::Options& base : AllOptions()) {
    for (const std::size_t page_entries : {1, 2, 3, 1'000}) {
      FakeStore::Options options = base;
      options.page_entries_max = page_entries;
      CAPTURE(Describe(options), page_entries);
      StoreStage stage(options);
      const std::string mark(32, 'a');
      for (const char* key : {"other", "runs", "runs/1/a", "runs/1/b", "runs/10", "runs/2/a+b c",
                              "runs/3", "runs/é/x", "runs/", "runt"})
        stage.server->PutObject(key, {key, "", "", {}});
      stage.server->PutObject("runs/3.evergrad-part-" + mark, {});
      stage.server->PutObject("runs/.evergrad-probe-" + mark, {});
      const auto store = stage.NewStore();
      const auto list = [&](const std::string& prefix, bool by_folder) {
        Lines all;
        std::string token;
        do {
          const absl::StatusOr<ListPage> page = store->List(prefix, by_folder, token);
          REQUIRE(page.ok());
          for (const ListedObject& object : page->objects) {
            CHECK(object.bytes == object.key.size());
            all.push_back(object.key);
          }
          all.insert(all.end(), page->prefixes.begin(), page->prefixes.end());
          CHECK(page->objects.size() + page->prefixes.size() <= page_entries);
          token = page->next;
        } while (!token.empty());
        std::sort(all.begin(), all.end());
        return all;
      };
      CHECK(list("runs/", true) ==
            Lines{"runs/", "runs/1/", "runs/10", "runs/2/", "runs/3", "runs/é/"});
      CHECK(list("runs/", false) == Lines{"runs/", "runs/1/a", "runs/1/b", "runs/10",
                                          "runs/2/a+b c", "runs/3", "runs/é/x"});
      CHECK(list("", true) == Lines{"other", "runs", "runs/", "runt"});
      CHECK(list("runs/1", true) == Lines{"runs/1/", "runs/10"});
      CHECK(list("nothing", false).empty());
    }
  }
}

TEST_CASE("the requests to S3 are these") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  REQUIRE(store->Put("runs/a b", "12345", PutMode::kIfAbsent).ok());
  REQUIRE(store->Put("runs/c", "123456", PutMode::kIfAbsent).ok());
  REQUIRE(store->Put("runs/c", "1234567", PutMode::kReplace).ok());
  const std::string etag = store->Head("runs/c")->etag;
  REQUIRE(store->Get("runs/c", 0, 4, etag).ok());
  REQUIRE(store->Get("runs/c", 5, 4, "").ok());
  const std::string upload = store->BeginUpload("d").value();
  const UploadedPart part = store->PutPart("d", upload, 1, "abc").value();
  REQUIRE(store->CompleteUpload("d", upload, {part}, PutMode::kIfAbsent).ok());
  const std::string aborted = store->BeginUpload("e").value();
  REQUIRE(store->AbortUpload("e", aborted).ok());
  REQUIRE(store->List("runs/", true, "").ok());
  REQUIRE(store->List("", false, "after:runs/a b").ok());
  REQUIRE(store->Delete("d").ok());
  CHECK(stage.server->Transcript() ==
        Lines{"PUT /bucket/runs/.evergrad-probe-M1 x-amz-meta-evergrad-writer=M1 if-none-match=* "
              "body=57 -> 200",
              "PUT /bucket/runs/.evergrad-probe-M1 x-amz-meta-evergrad-writer=M2 if-none-match=* "
              "body=57 -> 412",
              "HEAD /bucket/runs/.evergrad-probe-M1 -> 200",
              "DELETE /bucket/runs/.evergrad-probe-M1 -> 204",
              "PUT /bucket/runs/a%20b x-amz-meta-evergrad-writer=M3 if-none-match=* body=5 -> 200",
              "PUT /bucket/runs/c x-amz-meta-evergrad-writer=M4 if-none-match=* body=6 -> 200",
              "PUT /bucket/runs/c x-amz-meta-evergrad-writer=M5 body=7 -> 200",
              "HEAD /bucket/runs/c -> 200",
              "GET /bucket/runs/c range=bytes=0-3 if-match=\"etag-4\" x-amz-checksum-mode=ENABLED "
              "-> 206",
              "GET /bucket/runs/c range=bytes=5-8 -> 206",
              "POST /bucket/d?uploads= x-amz-meta-evergrad-writer=M6 -> 200",
              "PUT /bucket/d?partNumber=1&uploadId=upload%2B5%2F%3D body=3 -> 200",
              "POST /bucket/d?uploadId=upload%2B5%2F%3D if-none-match=* body=111 -> 200",
              "POST /bucket/e?uploads= x-amz-meta-evergrad-writer=M7 -> 200",
              "DELETE /bucket/e?uploadId=upload%2B8%2F%3D -> 204",
              "GET /bucket?delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&"
              "prefix=runs%2F -> 200",
              "GET /bucket?continuation-token=after%3Aruns%2Fa%20b&encoding-type=url&list-type=2&"
              "max-keys=1000 -> 200",
              "DELETE /bucket/d -> 204"});
}

TEST_CASE("the requests to GCS are these") {
  FakeStore::Options options = StoreStage::OptionsOf(fs::StoreKind::kGcs);
  options.endpoint.bucket_in_path = false;
  StoreStage stage(options);
  const auto store = stage.NewStore();
  REQUIRE(store->Put("a b", "123456789", PutMode::kIfAbsent).ok());
  REQUIRE(store->Put("a b", "123456789", PutMode::kReplace).ok());
  const std::string etag = store->Head("a b")->etag;
  REQUIRE(store->Get("a b", 0, 4, etag).ok());
  const std::string upload = store->BeginUpload("d e").value();
  const UploadedPart part = store->PutPart("d e", upload, 1, "123456789").value();
  REQUIRE(store->CompleteUpload("d e", upload, {part}, PutMode::kIfAbsent).ok());
  const std::string aborted = store->BeginUpload("f").value();
  REQUIRE(store->AbortUpload("f", aborted).ok());
  REQUIRE(store->List("runs/", true, "").ok());
  REQUIRE(store->Delete("missing").ok());
  CHECK(stage.server->Transcript() ==
        Lines{"PUT /.evergrad-probe-M1 x-goog-meta-evergrad-writer=M1 x-goog-hash=crc32c=oNBAnQ== "
              "x-goog-if-generation-match=0 body=57 -> 200",
              "PUT /.evergrad-probe-M1 x-goog-meta-evergrad-writer=M2 x-goog-hash=crc32c=oNBAnQ== "
              "x-goog-if-generation-match=0 body=57 -> 412",
              "HEAD /.evergrad-probe-M1 accept-encoding=gzip -> 200",
              "DELETE /.evergrad-probe-M1 -> 204",
              "PUT /a%20b x-goog-meta-evergrad-writer=M3 x-goog-hash=crc32c=4waSgw== "
              "x-goog-if-generation-match=0 body=9 -> 200",
              "PUT /a%20b x-goog-meta-evergrad-writer=M4 x-goog-hash=crc32c=4waSgw== body=9 -> 200",
              "HEAD /a%20b accept-encoding=gzip -> 200",
              "GET /a%20b range=bytes=0-3 if-match=\"etag-3\" accept-encoding=gzip -> 206",
              "POST /d%20e.evergrad-part-M5?uploads= x-goog-meta-evergrad-writer=M5 -> 200",
              "PUT /d%20e.evergrad-part-M5?partNumber=1&uploadId=upload%2B4%2F%3D "
              "x-goog-hash=crc32c=4waSgw== body=9 -> 200",
              "POST /d%20e.evergrad-part-M5?uploadId=upload%2B4%2F%3D body=111 -> 200",
              "PUT /d%20e x-goog-copy-source=bucket/d%20e.evergrad-part-M5 "
              "x-goog-if-generation-match=0 -> 200",
              "DELETE /d%20e.evergrad-part-M5 -> 204",
              "POST /f.evergrad-part-M6?uploads= x-goog-meta-evergrad-writer=M6 -> 200",
              "DELETE /f.evergrad-part-M6?uploadId=upload%2B8%2F%3D -> 204",
              "DELETE /f.evergrad-part-M6 -> 404",
              "GET /?delimiter=%2F&list-type=2&max-keys=1000&prefix=runs%2F -> 200",
              "DELETE /missing -> 404"});
}

TEST_CASE("a store that ignores the condition of a write gets no conditional writes") {
  for (const fs::StoreKind kind : kKinds) {
    CAPTURE(NameOfKind(kind));
    FakeStore::Options options = StoreStage::OptionsOf(kind);
    options.honours_conditions = false;
    StoreStage stage(options);
    const auto store = stage.NewStore();
    const absl::Status refused = store->Put("runs/a", "bytes", PutMode::kIfAbsent);
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(refused.message()),
               Catch::StartsWith(absl::StrCat(
                   "the store ignores the condition ",
                   kind == fs::StoreKind::kS3 ? "If-None-Match" : "x-goog-if-generation-match",
                   ", so two writers could overwrite each other's manifest: store=store.example")));
    CHECK(stage.server->objects().empty());
    const std::string upload = store->BeginUpload("runs/b").value();
    const UploadedPart part = store->PutPart("runs/b", upload, 1, "part").value();
    const std::size_t requests = stage.server->sent().size();
    CHECK(store->CompleteUpload("runs/b", upload, {part}, PutMode::kIfAbsent) == refused);
    CHECK(store->Put("runs/c", "bytes", PutMode::kIfAbsent) == refused);
    CHECK(stage.server->sent().size() == requests);
    CHECK(store->Put("runs/c", "bytes", PutMode::kReplace).ok());
  }
}

TEST_CASE("a probe that fails for another reason is made again") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  bool is_connected = false;
  stage.server->FailIf([&](const auto&) { return !is_connected; }, test::Fault::kNotConnected);
  CHECK(store->Put("a", "bytes", PutMode::kIfAbsent).code() == StatusCode::kUnavailable);
  is_connected = true;
  CHECK(store->Put("a", "bytes", PutMode::kIfAbsent) == absl::OkStatus());
  CHECK_THAT(stage.server->Transcript().back(), Catch::StartsWith("PUT /bucket/a "));
}

TEST_CASE("a store that does not know the condition gets no conditional writes") {
  StoreStage stage(fs::StoreKind::kS3);
  test::FakeHttpClient client;
  client.SetHandler([](const http::Request&) {
    return test::ResponseOf(501, "<Error><Code>NotImplemented</Code></Error>");
  });
  StoreParts parts = stage.Parts(1);
  parts.client = &client;
  const auto store = MakeHttpObjectStore("bucket", parts);
  const absl::Status refused = store->Put("a", "bytes", PutMode::kIfAbsent);
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::StartsWith("the store refuses the condition"));
  CHECK(store->Put("a", "bytes", PutMode::kReplace).code() == StatusCode::kUnimplemented);
}

TEST_CASE("a store that refuses the header for checksums is read without it") {
  FakeStore::Options options = StoreStage::OptionsOf(fs::StoreKind::kS3);
  options.knows_checksum_mode = false;
  StoreStage stage(options);
  const auto store = stage.NewStore();
  stage.server->PutObject("k", {"0123456789", "", "", {}});
  CHECK(store->Get("k", 0, 10, "").value() == "0123456789");
  CHECK(store->Get("k", 0, 10, "").value() == "0123456789");
  CHECK(stage.server->Transcript() ==
        Lines{"GET /bucket/k range=bytes=0-9 x-amz-checksum-mode=ENABLED -> 501",
              "GET /bucket/k range=bytes=0-9 -> 206", "GET /bucket/k range=bytes=0-9 -> 206"});
}

TEST_CASE("a damaged object is DataLoss after some attempts") {
  for (const fs::StoreKind kind : kKinds) {
    CAPTURE(NameOfKind(kind));
    StoreStage stage(kind);
    const auto store = stage.NewStore();
    const bool is_s3 = kind == fs::StoreKind::kS3;
    stage.server->PutObject("k", {"123456780",  // its last byte is wrong
                                  "",
                                  "",
                                  {{is_s3 ? "x-amz-checksum-crc32c" : "x-goog-hash",
                                    is_s3 ? "4waSgw==" : "crc32c=4waSgw==,md5=AAAA"}}});
    const absl::Status damaged = store->Get("k", 0, 100, "").status();
    CHECK(damaged.code() == StatusCode::kDataLoss);
    CHECK_THAT(std::string(damaged.message()), Catch::Contains("want=4waSgw=="));
    CHECK(stage.server->sent().size() == 1 + kInvalidResponsesMax);
    CHECK(store->Get("k", 0, 8, "").value() == "12345678");
  }
}

TEST_CASE("a bucket that does not exist is not a missing object") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = MakeHttpObjectStore("another", stage.Parts(1));
  CHECK(store->Get("k", 0, 1, "").status().code() == StatusCode::kFailedPrecondition);
  CHECK(store->List("", false, "").status().code() == StatusCode::kFailedPrecondition);
  CHECK(store->Put("k", "x", PutMode::kReplace).code() == StatusCode::kFailedPrecondition);
  CHECK(store->Put("k", "x", PutMode::kIfAbsent).code() == StatusCode::kFailedPrecondition);
  CHECK(store->Delete("k").code() == StatusCode::kFailedPrecondition);
  CHECK(store->BeginUpload("k").status().code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace evergrad::object_store
