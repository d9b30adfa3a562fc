// Writes with PutMode::kIfAbsent while connections end, answers are lost, and other writers
// compete.
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/object_store/dialect.h"
#include "tests/unit/common/object_store/http_store_fixture.h"

namespace evergrad::object_store {
namespace {

using absl::StatusCode;
using test::Fault;
using test::kAllFaults;

constexpr char kKey[] = "runs/1/manifest";
constexpr char kOurs[] = "our bytes!";

// How an object is written: in one request, or in two parts.
enum class Way { kPut, kUpload };
constexpr Way kWays[] = {Way::kPut, Way::kUpload};

// Writes kOurs. `upload` becomes the name of the upload, if one was begun.
absl::Status Write(ObjectStore& store, Way way, std::string* upload) {
  if (way == Way::kPut) return store.Put(kKey, kOurs, PutMode::kIfAbsent);
  const absl::StatusOr<std::string> begun = store.BeginUpload(kKey);
  if (!begun.ok()) return begun.status();
  *upload = *begun;
  std::vector<UploadedPart> parts;
  for (const int number : {1, 2}) {
    const absl::string_view bytes = absl::string_view(kOurs).substr(number == 1 ? 0 : 5, 5);
    const absl::StatusOr<UploadedPart> part = store.PutPart(kKey, *begun, number, bytes);
    if (!part.ok()) return part.status();
    parts.push_back(*part);
  }
  return store.CompleteUpload(kKey, *begun, parts, PutMode::kIfAbsent);
}

std::string Describe(fs::StoreKind kind, Way way) {
  return absl::StrCat(NameOfKind(kind), way == Way::kPut ? ", put" : ", upload");
}

std::string TranscriptOf(const StoreStage& stage) {
  std::string text;
  for (const std::string& line : stage.server->Transcript()) absl::StrAppend(&text, line, "\n");
  return text;
}

TEST_CASE("one fault at any request does not prevent a write, and leaves one object") {
  for (const fs::StoreKind kind : kKinds) {
    for (const Way way : kWays) {
      for (const Fault fault : kAllFaults) {
        std::size_t number = 0;
        for (bool reached = true; reached; ++number) {
          StoreStage stage(kind);
          const auto store = stage.NewStore();
          stage.server->FailRequest(number, fault);
          std::string upload;
          const absl::Status written = Write(*store, way, &upload);
          reached = stage.server->sent().size() > number;
          INFO(Describe(kind, way)
               << ", fault " << static_cast<int>(fault) << " at " << number << "\n"
               << TranscriptOf(stage));
          CHECK(written == absl::OkStatus());
          CHECK(stage.BytesOf(kKey) == kOurs);
          CHECK(stage.server->objects().size() == 1);
          // The upload of a lost answer has no name, so nobody can abort it.
          CHECK(stage.server->uploads() <= 1);
        }
        CHECK(number > 4);
      }
    }
  }
}

TEST_CASE("two faults at any requests do not prevent a write, and leave one object") {
  const Fault faults[] = {Fault::kNotConnected, Fault::kAnswerLost, Fault::kErrorAfterSuccess,
                          Fault::kConflict};
  for (const fs::StoreKind kind : kKinds) {
    for (const Way way : kWays) {
      std::vector<std::string> failures;
      for (std::size_t first = 0; first < 10; ++first) {
        for (std::size_t second = first + 1; second < 14; ++second) {
          for (const Fault fault : faults) {
            for (const Fault other : faults) {
              StoreStage stage(kind);
              const auto store = stage.NewStore();
              stage.server->FailRequest(first, fault);
              stage.server->FailRequest(second, other);
              std::string upload;
              const absl::Status written = Write(*store, way, &upload);
              if (!written.ok() || stage.BytesOf(kKey) != kOurs ||
                  stage.server->objects().size() != 1)
                failures.push_back(absl::StrCat(written.ToString(), "\n", TranscriptOf(stage)));
            }
          }
        }
      }
      CAPTURE(Describe(kind, way));
      CHECK(failures == std::vector<std::string>());
    }
  }
}

TEST_CASE("a store that fails from any request on leaves a whole object or none") {
  for (const fs::StoreKind kind : kKinds) {
    for (const Way way : kWays) {
      for (const Fault fault : {Fault::kNotConnected, Fault::kAnswerLost, Fault::kInternalError,
                                Fault::kErrorAfterSuccess, Fault::kConflict}) {
        std::size_t number = 0;
        for (bool reached = true; reached; ++number) {
          StoreStage stage(kind);
          const auto store = stage.NewStore();
          for (std::size_t i = 0; i < 5'000; ++i) stage.server->FailRequest(number + i, fault);
          std::string upload;
          const absl::Status written = Write(*store, way, &upload);
          reached = stage.server->sent().size() > number;
          INFO(Describe(kind, way)
               << ", fault " << static_cast<int>(fault) << " from " << number << ": " << written);
          const std::string bytes = stage.BytesOf(kKey);
          CHECK((bytes == kOurs || bytes == "(missing)"));
          if (written.ok()) CHECK(bytes == kOurs);
          if (!written.ok()) CHECK(written.code() == StatusCode::kUnavailable);
          CHECK(stage.server->sent().size() < 1'000);
          // After the end of the failure, the writer can remove what is left of its upload.
          stage.server->ClearFaults();
          if (!upload.empty()) CHECK(store->AbortUpload(kKey, upload) == absl::OkStatus());
          for (const auto& [key, object] : stage.server->objects())
            CHECK((key == kKey || absl::StrContains(key, ".evergrad-probe-")));
          // Another writer sees the object if and only if it is there.
          CHECK(stage.NewStore(2)->Put(kKey, "theirs", PutMode::kIfAbsent).code() ==
                (bytes == kOurs ? StatusCode::kAlreadyExists : StatusCode::kOk));
        }
      }
    }
  }
}

TEST_CASE("a write succeeds if and only if the object is its own") {
  for (const fs::StoreKind kind : kKinds) {
    for (const Way way : kWays) {
      int won = 0, lost = 0;
      for (std::size_t competitor = 0; competitor < 14; ++competitor) {
        for (std::size_t fault_at = 0; fault_at < 14; ++fault_at) {
          for (const Fault fault :
               {Fault::kNotConnected, Fault::kAnswerLost, Fault::kErrorAfterSuccess}) {
            StoreStage stage(kind);
            const auto store = stage.NewStore();
            stage.server->FailRequest(fault_at, fault);
            // The other writer has the same condition.
            stage.server->SetHook([&](std::size_t number) {
              if (number == competitor && stage.server->objects().count(kKey) == 0)
                stage.server->PutObject(kKey, {"theirs", MarkOf(7, 7), "", {}});
            });
            std::string upload;
            const absl::Status written = Write(*store, way, &upload);
            INFO(Describe(kind, way)
                 << ", competitor at " << competitor << ", fault " << static_cast<int>(fault)
                 << " at " << fault_at << ": " << written << "\n"
                 << TranscriptOf(stage));
            (written.ok() ? won : lost) += 1;
            CHECK(stage.BytesOf(kKey) == (written.ok() ? kOurs : "theirs"));
            if (!written.ok()) CHECK(written.code() == StatusCode::kAlreadyExists);
          }
        }
      }
      CHECK(won > 0);
      CHECK(lost > 0);
    }
  }
}

TEST_CASE("a lost answer of another writer is not taken for an own one") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  REQUIRE(store->Put("first", "x", PutMode::kIfAbsent).ok());  // the probe
  stage.server->PutObject(kKey, {kOurs, MarkOf(7, 7), "", {}});
  stage.server->FailRequest(stage.server->sent().size(), Fault::kAnswerLost);
  // The bytes are equal, but the mark is not.
  CHECK(store->Put(kKey, kOurs, PutMode::kIfAbsent).code() == StatusCode::kAlreadyExists);
  CHECK_THAT(stage.server->Transcript().back(), Catch::StartsWith("HEAD /bucket/runs/1/manifest"));
}

TEST_CASE("an object that disappears during the check of its mark is not a success") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  REQUIRE(store->Put("first", "x", PutMode::kIfAbsent).ok());
  const std::size_t begin = stage.server->sent().size();
  stage.server->FailRequest(begin, Fault::kAnswerLost);
  stage.server->SetHook([&](std::size_t number) {
    if (number == begin + 2) stage.server->RemoveObject(kKey);  // before HEAD
  });
  const absl::Status written = store->Put(kKey, kOurs, PutMode::kIfAbsent);
  CHECK(written.code() == StatusCode::kUnavailable);
  CHECK_THAT(std::string(written.message()), Catch::Contains("deleted the object"));
}

TEST_CASE("of two writers that race for one key, exactly one wins") {
  for (const fs::StoreKind kind : kKinds) {
    for (const Way way : kWays) {
      for (int round = 0; round < 20; ++round) {
        StoreStage stage(kind);
        absl::Status results[2];
        std::vector<std::thread> threads;
        for (const std::size_t writer : {0, 1}) {
          threads.emplace_back([&, writer] {
            std::string upload;
            results[writer] = Write(*stage.NewStore(writer + 1), way, &upload);
          });
        }
        for (std::thread& thread : threads) thread.join();
        CAPTURE(Describe(kind, way), results[0], results[1]);
        CHECK(results[0].ok() + results[1].ok() == 1);
        CHECK(results[results[0].ok() ? 1 : 0].code() == StatusCode::kAlreadyExists);
        CHECK(stage.BytesOf(kKey) == kOurs);
        CHECK(stage.server->objects().size() == 1);
      }
    }
  }
}

TEST_CASE("threads that share a store probe it once") {
  StoreStage stage(fs::StoreKind::kS3);
  const auto store = stage.NewStore();
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(8, absl::UnknownError(""));
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back(
        [&, i] { results[i] = store->Put(absl::StrCat("key-", i), "bytes", PutMode::kIfAbsent); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) CHECK(result == absl::OkStatus());
  CHECK(stage.server->objects().size() == results.size());
  CHECK(stage.server->sent().size() == results.size() + 4);
}

TEST_CASE("a read repeats after any fault, and never returns other bytes") {
  for (const fs::StoreKind kind : kKinds) {
    for (const Fault fault : kAllFaults) {
      // No store reports an error with status 200 in the place of an object.
      if (fault == Fault::kErrorInBody || fault == Fault::kUnreadableBody) continue;
      if (fault == Fault::kConflict) continue;  // of writes
      CAPTURE(NameOfKind(kind), static_cast<int>(fault));
      StoreStage stage(kind);
      const auto store = stage.NewStore();
      const bool is_s3 = kind == fs::StoreKind::kS3;
      stage.server->PutObject("k", {"123456789",
                                    "",
                                    "",
                                    {{is_s3 ? "x-amz-checksum-crc32c" : "x-goog-hash",
                                      is_s3 ? "4waSgw==" : "crc32c=4waSgw=="}}});
      stage.server->FailRequest(0, fault);
      CHECK(store->Get("k", 0, 9, "").value() == "123456789");
      CHECK(stage.server->sent().size() == 2);
    }
  }
}

TEST_CASE("a list repeats after any fault") {
  for (const Fault fault : kAllFaults) {
    if (fault == Fault::kWrongRange || fault == Fault::kWrongLength) continue;  // of objects
    if (fault == Fault::kConflict) continue;                                    // of writes
    CAPTURE(static_cast<int>(fault));
    StoreStage stage(fs::StoreKind::kS3);
    const auto store = stage.NewStore();
    stage.server->PutObject("k", {"123456789", "", "", {}});
    stage.server->FailRequest(0, fault);
    const absl::StatusOr<ListPage> page = store->List("", false, "");
    REQUIRE(page.ok());
    CHECK(page->objects.size() == 1);
    CHECK(stage.server->sent().size() == 2);
  }
}

}  // namespace
}  // namespace evergrad::object_store
