// Tests the restorer, which reads files on its own thread. The tests are about its orders, the ways
// in which orders end, and the limit of orders.
#include "ps_server/snapshot/restorer.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::ps_server {
namespace {

const char kFolder[] = "file:///job";

ShardSettings Settings(std::uint32_t shard, std::uint64_t rows = 4) {
  ShardSettings s;
  s.job = JobUid(0xabc);
  s.shard = ShardId(shard);
  s.variable = "count";
  s.variable_shape = tensor::Shape{rows, 1};
  s.row_end = rows;
  s.optimizer.type = "counting";
  return s;
}

struct Answer {
  runtime::WaitableEvent event;
  absl::StatusOr<std::unique_ptr<Shard>> result = absl::UnknownError("not answered");
  int answers = 0;
};

// A file system in which every Open waits until the test lets it continue.
class HeldFiles final : public fs::FileSystem {
 public:
  explicit HeldFiles(fs::FileSystem* files) : files_(*files) {}
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    return files_.Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    opened.Set();
    go.Wait();
    return files_.Open(uri);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    return files_.List(uri);
  }
  absl::Status Remove(absl::string_view uri) override { return files_.Remove(uri); }
  absl::StatusOr<bool> Exists(absl::string_view uri) override { return files_.Exists(uri); }
  absl::Status MakeFolders(absl::string_view uri) override { return files_.MakeFolders(uri); }
  runtime::WaitableEvent opened, go;

 private:
  fs::FileSystem& files_;
};

struct Stage {
  RealClock clock;
  metrics::Registry registry;
  fs::MemoryFileSystem files;
  HeldFiles held{&files};
  std::unique_ptr<Restorer> restorer;
  Stage() {
    Restorer::Options options;
    options.files = &held;
    options.registry = &registry;
    options.clock = &clock;
    options.orders_max = 2;
    restorer = std::make_unique<Restorer>(options);
  }
  std::string Write(const ShardSettings& settings) {
    const auto durable = WriteCut((*Shard::FromSeed(settings, {1, 5}, {1, 2}, {}))->Cut(),
                                  {&files, kFolder, "plan", nullptr, nullptr});
    REQUIRE(durable.ok());
    return fs::JoinUri(kFolder, durable->file);
  }
  Restorer::Order Order(const ShardSettings& settings, const std::string& uri, Answer* answer) {
    Restorer::Order order;
    order.what.source.uri = uri;
    order.what.source.file_job = settings.job;
    order.what.source.plan_fingerprint = "plan";
    order.what.settings = settings;
    order.what.epoch = {2, 1};
    order.done = [answer](absl::StatusOr<std::unique_ptr<Shard>> result) {
      answer->result = std::move(result);
      ++answer->answers;
      answer->event.Set();
    };
    return order;
  }
  std::uint64_t Count(const std::string& result) {
    return registry
        .GetCounter("evergrad_ps_server_restores_total", "Shards read from their files, by outcome",
                    {{"result", result}})
        .value();
  }
};

TEST_CASE("orders are bounded, replaced and cancelled by shard, and each is answered once") {
  Stage stage;
  const std::string one = stage.Write(Settings(1)), two = stage.Write(Settings(2)),
                    three = stage.Write(Settings(3));
  Answer first, second, third, older, newer, refused;
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(1), one, &first)).ok());
  stage.held.opened.Wait();
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(2), two, &older)).ok());
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(2), two, &newer)).ok());
  CHECK(older.result.status().code() == absl::StatusCode::kAborted);
  // Shard 1 is ordered once more, so the order for it that is in progress is cancelled.
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(1), one, &second)).ok());
  CHECK(stage.restorer->Submit(stage.Order(Settings(3), three, &refused)).code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK(refused.answers == 0);
  CHECK(stage.restorer->waiting() == 2);
  CHECK(stage.registry.PrometheusText().find(
            "evergrad_ps_server_restore_orders_refused_total 1\n") != std::string::npos);
  stage.restorer->Cancel(JobUid(0xabc), ShardId(2));
  CHECK(newer.result.status().code() == absl::StatusCode::kCancelled);
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(3), three, &third)).ok());
  stage.restorer->Cancel(JobUid(0xdef));  // this job has no order
  stage.held.go.Set();
  first.event.Wait();
  CHECK(first.result.status().code() == absl::StatusCode::kCancelled);
  second.event.Wait();
  third.event.Wait();
  REQUIRE(second.result.ok());
  CHECK((*second.result)->epoch() == ShardEpoch{2, 1});
  REQUIRE(third.result.ok());
  CHECK(first.answers + second.answers + third.answers + older.answers + newer.answers == 5);
  CHECK(stage.Count("restored") == 2);
  CHECK(stage.Count("cancelled") == 3);
  CHECK(stage.registry.PrometheusText().find("evergrad_ps_server_restored_bytes_total 64\n") !=
        std::string::npos);
  CHECK(stage.registry.PrometheusText().find("evergrad_ps_server_restore_seconds_count 2\n") !=
        std::string::npos);
}

TEST_CASE(
    "an order that is cancelled in mid-file stops reading, and its end answers the waiting "
    "orders") {
  Stage stage;
  // The shard has 16 MiB of values, and as much optimizer state.
  const ShardSettings large = Settings(1, 4u << 20);
  const std::string uri = stage.Write(large);
  // `asked` counts how often the reader asks whether it is cancelled. It asks after each MiB.
  int asked = 0;
  RestoreOptions what = stage.Order(large, uri, nullptr).what;
  what.source.files = &stage.files;
  what.source.cancelled = [&] { return ++asked == 3; };
  const absl::Status status = RestoreShard(what).status();
  CHECK(status.code() == absl::StatusCode::kCancelled);
  CHECK(asked == 3);

  Answer first, second, third;
  REQUIRE(stage.restorer->Submit(stage.Order(large, uri, &first)).ok());
  stage.held.opened.Wait();
  REQUIRE(stage.restorer->Submit(stage.Order(Settings(2), "file:///job/none", &second)).ok());
  stage.restorer->Cancel(large.job, large.shard);
  stage.held.go.Set();
  first.event.Wait();
  second.event.Wait();
  CHECK(first.result.status().code() == absl::StatusCode::kCancelled);
  CHECK(second.result.status().code() == absl::StatusCode::kNotFound);
  CHECK(stage.Count("failed") == 1);
  REQUIRE(stage.restorer->Submit(stage.Order(large, uri, &third)).ok());
  stage.restorer.reset();
  CHECK(third.answers == 1);
}

}  // namespace
}  // namespace evergrad::ps_server
