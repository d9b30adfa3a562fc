#include "common/object_store/renewing_source.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "tests/unit/common/object_store/credentials_fixture.h"

namespace evergrad::object_store {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

// A place whose reads a test decides. Thread-safe.
class ScriptedPlace {
 public:
  explicit ScriptedPlace(TestClock* clock) : clock_(*clock) {}

  // Each read returns keys with the number of the read, which expire after `lifetime`.
  void Give(std::chrono::milliseconds lifetime) {
    const MutexLock lock(&mu_);
    lifetime_ = lifetime;
    error_ = absl::OkStatus();
  }
  void Fail(absl::Status error) {
    const MutexLock lock(&mu_);
    error_ = std::move(error);
  }
  // Reads wait until Open.
  void Close() {
    const MutexLock lock(&mu_);
    closed_ = true;
  }
  void Open() {
    const MutexLock lock(&mu_);
    closed_ = false;
    changed_.NotifyAll();
  }
  void AwaitReads(int count) {
    const MutexLock lock(&mu_);
    while (reads_ < count) changed_.Wait(&mu_);
  }
  int reads() {
    const MutexLock lock(&mu_);
    return reads_;
  }

  FoundCredentials Read() {
    const MutexLock lock(&mu_);
    ++reads_;
    changed_.NotifyAll();
    Credentials credentials;
    credentials.access_key_id = absl::StrCat("key-", reads_);
    while (closed_) changed_.Wait(&mu_);
    if (!error_.ok()) return error_;
    if (lifetime_.count() > 0) credentials.expires_ms = clock_.WallMillis() + lifetime_.count();
    return credentials;
  }
  Place AsPlace(bool read_each_time = false) {
    return {"scripted", [this] { return Read(); }, read_each_time};
  }

 private:
  TestClock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::chrono::milliseconds lifetime_ ABSL_GUARDED_BY(mu_){0};
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int reads_ ABSL_GUARDED_BY(mu_) = 0;
};

struct RenewalSetting {
  explicit RenewalSetting(bool read_each_time = false)
      : source("s3", {place.AsPlace(read_each_time)}, "", &clock) {}

  // Returns the key, or the message of the error.
  std::string Key() {
    const auto credentials = source.Get();
    return credentials.ok() ? credentials->access_key_id
                            : std::string(credentials.status().message());
  }

  TestClock clock;
  ScriptedPlace place{&clock};
  RenewingSource source;
};

TEST_CASE("credentials are renewed five minutes before they expire, and not earlier") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(minutes(55) - std::chrono::milliseconds(1));
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(std::chrono::milliseconds(1));
  CHECK(setting.Key() == "key-2");
  CHECK(setting.Key() == "key-2");
  CHECK(setting.place.reads() == 2);
}

TEST_CASE("permanent credentials are read once") {
  RenewalSetting setting;
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(std::chrono::hours(10'000));
  CHECK(setting.Key() == "key-1");
}

TEST_CASE("a failed renewal leaves valid credentials in use, and is repeated after ten seconds") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(minutes(56));
  setting.place.Fail(absl::UnavailableError("unreachable"));
  CHECK(setting.Key() == "key-1");
  CHECK(setting.Key() == "key-1");
  CHECK(setting.place.reads() == 2);
  setting.clock.Advance(seconds(10));
  CHECK(setting.Key() == "key-1");
  CHECK(setting.place.reads() == 3);
  // Expired credentials are never returned.
  setting.clock.Advance(minutes(4));
  CHECK(setting.Key() == "unreachable");
  CHECK(setting.Key() == "unreachable");
  CHECK(setting.place.reads() == 5);
  setting.place.Give(minutes(60));
  CHECK(setting.Key() == "key-6");
}

TEST_CASE("credentials with a short life are not renewed at each use") {
  RenewalSetting setting;
  setting.place.Give(minutes(2));
  CHECK(setting.Key() == "key-1");
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(seconds(10));
  CHECK(setting.Key() == "key-2");
  CHECK(setting.Key() == "key-2");
}

TEST_CASE("refused credentials are read again, once for all requests that used them") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  const Credentials first = *setting.source.Get();
  setting.source.Refused(first);
  CHECK(setting.Key() == "key-2");
  setting.source.Refused(first);
  CHECK(setting.Key() == "key-2");
  CHECK(setting.place.reads() == 2);
}

TEST_CASE("refused credentials are not used although a renewal fails") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  setting.source.Refused(*setting.source.Get());
  setting.place.Fail(absl::UnavailableError("unreachable"));
  CHECK(setting.Key() == "unreachable");
  setting.place.Give(minutes(60));
  CHECK(setting.Key() == "key-3");
}

TEST_CASE("a refusal before the first use has no effect") {
  RenewalSetting setting;
  setting.source.Refused(Credentials());
  CHECK(setting.Key() == "key-1");
}

TEST_CASE("a place that costs little is read at each use") {
  RenewalSetting setting(true);
  CHECK(setting.Key() == "key-1");
  CHECK(setting.Key() == "key-2");
}

TEST_CASE("the first configured place is used, and a broken place ends the search") {
  TestClock clock;
  std::vector<std::string> reads;
  absl::Status error;
  const auto place = [&](std::string name, std::function<FoundCredentials()> read) {
    return Place{name, [&reads, name, read = std::move(read)] {
                   reads.push_back(name);
                   return read();
                 }};
  };
  RenewingSource source(
      "gs",
      {place("a", [] { return FoundCredentials(std::nullopt); }),
       place("b",
             [&]() -> FoundCredentials {
               if (!error.ok()) return error;
               return std::nullopt;
             }),
       place("c", [] { return FoundCredentials(Credentials{.access_key_id = "c"}); })},
      "; a hint", &clock);
  error = absl::PermissionDeniedError("broken");
  CHECK(source.Get().status() == error);
  CHECK(reads == std::vector<std::string>{"a", "b"});
  error = absl::OkStatus();
  CHECK(source.Get()->access_key_id == "c");

  RenewingSource none("gs",
                      {place("a", [] { return FoundCredentials(std::nullopt); }),
                       place("b", [] { return FoundCredentials(std::nullopt); })},
                      "; a hint", &clock);
  CHECK(none.Get().status() ==
        absl::UnauthenticatedError(
            "no credentials for gs://; these places were searched: a, b; a hint"));
}

TEST_CASE("one thread renews, and the others use the credentials that are still valid") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  CHECK(setting.Key() == "key-1");
  setting.clock.Advance(minutes(56));
  setting.place.Close();
  std::string renewed;
  std::thread renewer([&] { renewed = setting.Key(); });
  setting.place.AwaitReads(2);
  CHECK(setting.Key() == "key-1");
  setting.place.Open();
  renewer.join();
  CHECK(renewed == "key-2");
  CHECK(setting.Key() == "key-2");
  CHECK(setting.place.reads() == 2);
}

TEST_CASE("threads that have no credentials wait for one read") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  setting.place.Close();
  std::vector<std::string> keys(8);
  std::vector<std::thread> threads;
  std::latch started(8);
  for (std::string& key : keys)
    threads.emplace_back([&] {
      started.count_down();
      key = setting.Key();
    });
  started.wait();
  setting.place.AwaitReads(1);
  setting.place.Open();
  for (std::thread& thread : threads) thread.join();
  CHECK(keys == std::vector<std::string>(8, "key-1"));
  CHECK(setting.place.reads() == 1);
}

TEST_CASE("many threads with refusals and failures always get an answer") {
  RenewalSetting setting;
  setting.place.Give(minutes(60));
  std::vector<std::thread> threads;
  std::atomic<int> answers = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) {
        if (i == 0) setting.place.Fail(absl::UnavailableError("unreachable"));
        const auto credentials = setting.source.Get();
        if (credentials.ok()) setting.source.Refused(*credentials);
        if (i == 1) setting.place.Give(minutes(60));
        ++answers;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(answers == 800);
  setting.place.Give(minutes(60));
  CHECK(setting.source.Get().ok());
}

}  // namespace
}  // namespace evergrad::object_store
