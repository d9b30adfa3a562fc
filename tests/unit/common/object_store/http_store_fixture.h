// A store over HTTP beside the server that it talks to, with a clock that only waits advance.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/http/interruption.h"
#include "common/object_store/http_object_store.h"
#include "tests/support/fake_store/fake_store.h"
#include "tests/support/manual_executor.h"

namespace evergrad::object_store {

inline Credentials TestCredentials(fs::StoreKind kind) {
  Credentials credentials;
  credentials.access_key_id = "AKIDTEST";
  credentials.secret_access_key = "the-secret-key";
  if (kind == fs::StoreKind::kS3) credentials.session_token = "the-session-token";
  credentials.origin = "environment";
  return credentials;
}

// Returns the credentials of a queue; the last one stays. Thread-safe.
class ScriptedCredentials final : public CredentialSource {
 public:
  explicit ScriptedCredentials(Credentials first) { Add(std::move(first)); }
  // Adds credentials that Get returns after the next call of Refused.
  void Add(absl::StatusOr<Credentials> next) {
    const MutexLock lock(&mu_);
    queue_.push_back(std::move(next));
  }
  absl::StatusOr<Credentials> Get() override {
    const MutexLock lock(&mu_);
    ++gets_;
    return queue_.front();
  }
  void Refused(const Credentials& used) override {
    const MutexLock lock(&mu_);
    refused_.push_back(used.access_key_id);
    if (queue_.size() > 1) queue_.pop_front();
  }
  std::vector<std::string> refused() const {
    const MutexLock lock(&mu_);
    return refused_;
  }
  int gets() const {
    const MutexLock lock(&mu_);
    return gets_;
  }

 private:
  mutable Mutex mu_;
  std::deque<absl::StatusOr<Credentials>> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> refused_ ABSL_GUARDED_BY(mu_);
  int gets_ ABSL_GUARDED_BY(mu_) = 0;
};

// Records the waits, and advances the clock by them. Not thread-safe.
class RecordedWaits final : public http::Interruption {
 public:
  explicit RecordedWaits(ManualClock* clock) : clock_(*clock) {}
  bool Wait(std::chrono::milliseconds time) override {
    waits.push_back(time);
    clock_.Advance(time);
    return !interrupted();
  }
  std::vector<std::chrono::milliseconds> waits;

 private:
  ManualClock& clock_;  // outlives the waits
};

// The parts of a test. The members that a store uses outlive it.
struct StoreStage {
  explicit StoreStage(test::FakeStore::Options options) : options_(std::move(options)) {
    if (options_.credentials.access_key_id.empty() && options_.credentials.bearer_token.empty())
      options_.credentials = TestCredentials(options_.kind);
    server = std::make_unique<test::FakeStore>(options_);
    credentials = std::make_unique<ScriptedCredentials>(options_.credentials);
  }
  explicit StoreStage(fs::StoreKind kind) : StoreStage(OptionsOf(kind)) {}

  static test::FakeStore::Options OptionsOf(fs::StoreKind kind) {
    test::FakeStore::Options options;
    options.kind = kind;
    return options;
  }
  StoreParts Parts(std::uint64_t seed) {
    StoreParts parts;
    parts.kind = options_.kind;
    parts.endpoint = options_.endpoint;
    parts.seed = seed;
    parts.client = server.get();
    parts.credentials = credentials.get();
    parts.interruption = &waits;
    parts.clock = &clock;
    parts.registry = &registry;
    return parts;
  }
  // Returns a writer. Writers with different seeds are different processes.
  std::unique_ptr<ObjectStore> NewStore(std::uint64_t seed = 1) {
    return MakeHttpObjectStore(options_.bucket, Parts(seed));
  }
  std::string BytesOf(const std::string& key) const {
    const auto objects = server->objects();
    const auto found = objects.find(key);
    return found == objects.end() ? "(missing)" : found->second.bytes;
  }

  ManualClock clock;
  RecordedWaits waits{&clock};
  metrics::Registry registry;
  std::unique_ptr<test::FakeStore> server;
  std::unique_ptr<ScriptedCredentials> credentials;

 private:
  test::FakeStore::Options options_;
};

inline constexpr fs::StoreKind kKinds[] = {fs::StoreKind::kS3, fs::StoreKind::kGcs};
inline const char* NameOfKind(fs::StoreKind kind) {
  return kind == fs::StoreKind::kS3 ? "S3" : "GCS";
}

}  // namespace evergrad::object_store
