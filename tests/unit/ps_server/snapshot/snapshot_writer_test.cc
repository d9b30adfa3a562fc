// Tests the snapshot writer, which has its own thread: its orders, how they end, their limit, and
// its retries. As in a server, a shard runs on an executor.
#include "ps_server/snapshot/snapshot_writer.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/snapshot/manifest.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/temp_folder.h"

namespace evergrad::ps_server {
namespace {

const char kFolder[] = "file:///job";

ShardSettings Settings(std::uint64_t rows, std::uint32_t shard) {
  ShardSettings s;
  s.job = JobUid(0xabc);
  s.shard = ShardId(shard);
  s.variable = "count";
  s.variable_shape = tensor::Shape{rows, 1};
  s.row_end = rows;
  s.optimizer.type = "counting";
  return s;
}

// A shard on an executor of its own, as in a server. Push applies updates on this executor.
struct Owner {
  ShardSettings settings;
  std::unique_ptr<Shard> shard;
  runtime::ThreadExecutor executor;
  std::uint64_t next = 0;
  explicit Owner(std::uint64_t rows, std::uint32_t number = 3)
      : settings(Settings(rows, number)),
        shard(*Shard::FromSeed(settings, {1, 5}, {1, 2}, {})),
        executor({"shard"}) {}
  ~Owner() { executor.Shutdown(); }
  void Push(int n = 1) {
    runtime::WaitableEvent applied;
    executor.Post([&] {
      const std::vector<float> gradient(settings.row_end, 1);
      for (int i = 0; i < n; ++i, ++next) {
        ps_server::Push push;
        push.epoch = {1, 5};
        push.closure = ClosureId(next / 64);
        push.update = UpdateIndex(next % 64);
        push.attempt = {1, 1};
        push.rows = settings.row_end;
        push.payload = std::as_bytes(std::span(gradient));
        EG_CHECK(shard->Apply(push).code == PushCode::kApplied);
      }
      applied.Set();
    });
    applied.Wait();
  }
};

struct Answer {
  runtime::WaitableEvent event;
  absl::StatusOr<DurableCut> result = absl::UnknownError("not answered");
  int answers = 0;
};

struct Stage {
  RealClock clock;
  metrics::Registry registry;
  fault::Failpoints failpoints;
  fs::MemoryFileSystem files{{&failpoints}};
  std::unique_ptr<SnapshotWriter> writer;
  Stage() { Start({}); }
  void Start(SnapshotWriter::Options options) {
    options.files = &files;
    options.registry = &registry;
    options.clock = &clock;
    options.failpoints = &failpoints;
    options.retry_first = options.retry_max = std::chrono::milliseconds(1);
    writer = std::make_unique<SnapshotWriter>(options);
  }
  SnapshotWriter::Order Order(Owner* owner, Answer* answer) {
    SnapshotWriter::Order order;
    order.job = owner->settings.job;
    order.shard = owner->settings.shard;
    order.folder = kFolder;
    order.plan_fingerprint = "plan";
    order.take = [owner](std::function<void(absl::StatusOr<ShardCut>)> ready) {
      owner->executor.Post([owner, ready] { ready(owner->shard->Cut()); });
    };
    order.done = [answer](absl::StatusOr<DurableCut> result) {
      answer->result = std::move(result);
      ++answer->answers;
      answer->event.Set();
    };
    return order;
  }
  absl::StatusOr<DurableCut> Write(Owner* owner) {
    Answer answer;
    REQUIRE(writer->Submit(Order(owner, &answer)).ok());
    answer.event.Wait();
    return answer.result;
  }
  std::uint64_t Count(const std::string& result) {
    return registry
        .GetCounter("evergrad_ps_server_snapshots_total",
                    "Attempts to save a shard to a snapshot file, by outcome", {{"result", result}})
        .value();
  }
};

TEST_CASE("an order ends with a durable file that restores to the state of its moment") {
  Stage stage;
  Owner owner(10);
  owner.Push(4);
  const auto durable = stage.Write(&owner);
  REQUIRE(durable.ok());
  const std::uint64_t digest = owner.shard->Digest();
  owner.Push(3);
  stage.files.Crash(1);
  const auto restored = RestoreShard({{&stage.files, fs::JoinUri(kFolder, durable->file),
                                       std::nullopt, JobUid(0xabc), "plan", nullptr, nullptr},
                                      owner.settings,
                                      {2, 1},
                                      {2, 1},
                                      {},
                                      false});
  REQUIRE(restored.ok());
  CHECK((*restored)->Digest() == digest);
  CHECK((*restored)->lsn() == 4);
  CHECK(stage.Count("durable") == 1);
  CHECK(stage.registry.PrometheusText().find("evergrad_ps_server_snapshot_seconds_count 1") !=
        std::string::npos);
  CHECK(stage.writer->held_bytes() == 0);
}

TEST_CASE("spare blocks for the pushes after a cut are allocated before the cut") {
  Stage stage;
  Owner owner(10);
  owner.Push();
  SnapshotWriter::Options options;
  options.pool = std::make_shared<storage::ChunkPool>(4u << 20);
  stage.Start(options);
  Answer answer;
  SnapshotWriter::Order order = stage.Order(&owner, &answer);
  order.bytes = (2u << 20) + 1;
  std::uint64_t warm = 0;
  order.take = [&, take = order.take](std::function<void(absl::StatusOr<ShardCut>)> ready) {
    warm = options.pool->bytes();
    take(std::move(ready));
  };
  REQUIRE(stage.writer->Submit(std::move(order)).ok());
  answer.event.Wait();
  CHECK(answer.result.ok());
  CHECK(warm == (2u << 20) + storage::kChunkFloats * sizeof(float));
}

TEST_CASE(
    "an unchanged shard is not written again, unless its file is missing or the folder changes") {
  Stage stage;
  Owner owner(10);
  owner.Push();
  const auto first = stage.Write(&owner), second = stage.Write(&owner);
  REQUIRE(second.ok());
  CHECK(second->digest.sha256 == first->digest.sha256);
  CHECK(stage.Count("durable") == 1);
  CHECK(stage.Count("unchanged") == 1);
  REQUIRE(stage.files.Remove(fs::JoinUri(kFolder, first->file)).ok());
  REQUIRE(stage.Write(&owner).ok());
  CHECK(stage.Count("durable") == 2);
  owner.Push();
  REQUIRE(stage.Write(&owner).ok());
  CHECK(stage.Count("durable") == 3);
  CHECK(stage.files.List(kFolder)->size() == 2);
}

TEST_CASE("a cut that meets a full disk is dropped, counted, and repeated when there is space") {
  Stage stage;
  Owner owner(1000);
  owner.Push();
  stage.files.SetBytesMax(100);
  Answer answer;
  REQUIRE(stage.writer->Submit(stage.Order(&owner, &answer)).ok());
  while (stage.Count("dropped") < 3) owner.Push();  // pushes continue meanwhile
  CHECK_FALSE(answer.event.IsSet());
  stage.files.SetBytesMax(1 << 30);
  answer.event.Wait();
  REQUIRE(answer.result.ok());
  CHECK(answer.result->lsn >= 3);  // each retry takes a new cut
  CHECK(answer.answers == 1);
  CHECK(stage.files.List(kFolder)->size() == 1);
}

TEST_CASE(
    "values and optimizer state above the limit are refused, and a ledger above it is retried "
    "until it has shrunk") {
  Stage stage;
  SnapshotWriter::Options options;
  options.bytes_max = 3000;
  stage.Start(options);
  Owner large(1000, 1), small(10, 2), grown(10, 3);
  const auto refused = stage.Write(&large);
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(BlameOf(refused.status()) == Blame::kUser);
  CHECK(refused.status().message().find("--snapshot-bytes-max: variable=count shard=1 bytes=") !=
        std::string::npos);
  grown.Push(64 * 64);  // leaves 64 closures open
  Answer waits;
  std::atomic<int> told{0};
  SnapshotWriter::Order order = stage.Order(&grown, &waits);
  order.dropped = [&](const absl::Status& cause) {
    EG_CHECK(cause.message().find("--snapshot-bytes-max") != std::string::npos);
    ++told;
  };
  REQUIRE(stage.writer->Submit(std::move(order)).ok());
  REQUIRE(stage.Write(&small).ok());  // the order that is retried does not delay this one
  while (told < 2) small.Push();
  CHECK_FALSE(waits.event.IsSet());
  CHECK(stage.registry
            .GetCounter("evergrad_ps_server_snapshot_bytes_refused_total",
                        "Bytes of the current cut (refused at the limit)")
            .value() >= 2);
  runtime::WaitableEvent closed;
  grown.executor.Post([&] {
    EG_CHECK(grown.shard->Close({1, 5}, {1, 2}, IntervalSet::Range(0, 64), {}));
    closed.Set();
  });
  closed.Wait();
  waits.event.Wait();
  CHECK(waits.result.ok());
  CHECK(waits.answers == 1);
}

TEST_CASE("an order whose cut never happens ends with Cancel, or with the writer") {
  Stage stage;
  Owner owner(10);
  for (const bool by_cancel : {true, false}) {
    std::function<void(absl::StatusOr<ShardCut>)> held;
    runtime::WaitableEvent begun;
    Answer answer;
    SnapshotWriter::Order order = stage.Order(&owner, &answer);
    order.take = [&](std::function<void(absl::StatusOr<ShardCut>)> ready) {
      // The executor ended during an update. The function `ready` is then neither called nor
      // destroyed.
      held = std::move(ready);
      begun.Set();
    };
    REQUIRE(stage.writer->Submit(std::move(order)).ok());
    begun.Wait();
    if (by_cancel)
      stage.writer->Cancel(owner.settings.job);
    else
      stage.writer.reset();
    answer.event.Wait();
    CHECK(answer.result.status().code() == absl::StatusCode::kCancelled);
    CHECK(answer.answers == 1);
    held(owner.shard->Cut());  // this cut comes too late
  }
}

TEST_CASE("errors at each step are retried with a new cut until the file is durable") {
  for (const char* failpoint :
       {"snapshot.before_cut", "snapshot.write", "fs.write", "snapshot.before_commit", "fs.sync",
        "fs.link", "fs.sync_folder", "snapshot.after_commit", "snapshot.report"}) {
    INFO(failpoint);
    Stage stage;
    Owner owner(10);
    owner.Push();
    REQUIRE(stage.failpoints.Arm(absl::StrCat(failpoint, "=1*error"), 1).ok());
    const auto durable = stage.Write(&owner);
    REQUIRE(durable.ok());
    CHECK(stage.Count("dropped") == 1);
    CHECK(snapshot::VerifyShardFile(
              stage.files, fs::JoinUri(kFolder, durable->file),
              snapshot::ShardFileReader::Expected{durable->digest.bytes, durable->digest.sha256})
              .ok());
    CHECK(stage.files.List(kFolder)->size() == 1);
  }
}

TEST_CASE("Aborted and DeadlineExceeded of a file system are retried") {
  Stage stage;
  Owner owner(10);
  for (const auto code : {absl::StatusCode::kAborted, absl::StatusCode::kDeadlineExceeded}) {
    owner.Push();
    Answer answer;
    SnapshotWriter::Order order = stage.Order(&owner, &answer);
    order.take = [code, failed = std::make_shared<bool>(false),
                  take = order.take](std::function<void(absl::StatusOr<ShardCut>)> ready) {
      if (!std::exchange(*failed, true)) return ready(absl::Status(code, "stale file handle"));
      take(std::move(ready));
    };
    REQUIRE(stage.writer->Submit(std::move(order)).ok());
    answer.event.Wait();
    CHECK(answer.result.ok());
    CHECK(answer.answers == 1);
  }
}

TEST_CASE("an error that a retry cannot repair is answered") {
  Stage stage;
  Owner owner(10);
  Answer answer;
  SnapshotWriter::Order order = stage.Order(&owner, &answer);
  order.folder = "s3://bucket/job";
  REQUIRE(stage.writer->Submit(std::move(order)).ok());
  answer.event.Wait();
  CHECK(answer.result.status().code() == absl::StatusCode::kUnimplemented);
  CHECK(stage.Count("failed") == 1);
  // The shard of this order is no longer held.
  Answer gone;
  order = stage.Order(&owner, &gone);
  order.take = [](std::function<void(absl::StatusOr<ShardCut>)> ready) {
    ready(absl::NotFoundError("not held"));
  };
  REQUIRE(stage.writer->Submit(std::move(order)).ok());
  gone.event.Wait();
  CHECK(gone.result.status().code() == absl::StatusCode::kNotFound);
  // The executor of this shard has ended, so the function `ready` is destroyed without being
  // called.
  Answer dead;
  owner.executor.Shutdown();
  REQUIRE(stage.writer->Submit(stage.Order(&owner, &dead)).ok());
  dead.event.Wait();
  CHECK(dead.result.status().code() == absl::StatusCode::kCancelled);
}

TEST_CASE(
    "a newer order replaces a waiting one, the limit refuses, and the end answers all orders") {
  Stage stage;
  SnapshotWriter::Options options;
  options.orders_max = 2;
  stage.Start(options);
  Owner owner(10, 1), other(10, 2), third(10, 3), fourth(10, 4);
  // The writer's thread waits for the cut of the first order, so later orders wait in the queue.
  std::function<void(absl::StatusOr<ShardCut>)> held;
  runtime::WaitableEvent begun;
  Answer first, second, replaced, newer, refused;
  SnapshotWriter::Order order = stage.Order(&owner, &first);
  order.take = [&](std::function<void(absl::StatusOr<ShardCut>)> ready) {
    held = std::move(ready);
    begun.Set();
  };
  REQUIRE(stage.writer->Submit(std::move(order)).ok());
  begun.Wait();
  REQUIRE(stage.writer->Submit(stage.Order(&other, &second)).ok());
  REQUIRE(stage.writer->Submit(stage.Order(&third, &replaced)).ok());
  REQUIRE(stage.writer->Submit(stage.Order(&third, &newer)).ok());
  CHECK(replaced.result.status().code() == absl::StatusCode::kAborted);
  CHECK(stage.writer->Submit(stage.Order(&fourth, &refused)).code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK(refused.answers == 0);
  CHECK(stage.writer->waiting() == 2);
  // The order in progress is cancelled. Its cut arrives afterwards, and must not be written.
  stage.writer->Cancel(owner.settings.job, owner.settings.shard);
  owner.Push();
  held(owner.shard->Cut());
  held = nullptr;
  first.event.Wait();
  CHECK(first.result.status().code() == absl::StatusCode::kCancelled);
  second.event.Wait();
  newer.event.Wait();
  CHECK(second.result.ok());
  CHECK(newer.result.ok());
  CHECK(stage.files.List(kFolder)->size() == 2);

  // The writer ends while the disk is full. It must answer every order.
  stage.files.SetBytesMax(0);
  Answer never;
  other.Push();
  REQUIRE(stage.writer->Submit(stage.Order(&other, &never)).ok());
  while (stage.Count("dropped") < 1) third.Push();
  stage.writer.reset();
  CHECK(never.result.status().code() == absl::StatusCode::kCancelled);
  CHECK(never.answers == 1);
}

TEST_CASE("under constant pushes every file restores to exactly the updates of its ledger") {
  Stage stage;
  Owner owner(200'000);
  std::atomic<bool> stop{false};
  runtime::WaitableEvent ended;
  std::function<void()> pushes = [&] {
    if (stop.load()) return ended.Set();
    const std::vector<float> gradient(owner.settings.row_end, 1);
    Push push;
    push.epoch = {1, 5};
    push.closure = ClosureId(owner.next++);
    push.attempt = {1, 1};
    push.rows = owner.settings.row_end;
    push.payload = std::as_bytes(std::span(gradient));
    owner.shard->Apply(push);
    owner.executor.Post(pushes);
  };
  owner.executor.Post(pushes);
  std::vector<DurableCut> all;
  for (int i = 0; i < 10; ++i) {
    auto durable = stage.Write(&owner);
    REQUIRE(durable.ok());
    all.push_back(*std::move(durable));
  }
  stop = true;
  ended.Wait();
  for (const DurableCut& one : all) {
    const auto restored = RestoreShard({{&stage.files, fs::JoinUri(kFolder, one.file), std::nullopt,
                                         JobUid(0xabc), "plan", nullptr, nullptr},
                                        owner.settings,
                                        {2, 1},
                                        {2, 1},
                                        {},
                                        false});
    REQUIRE(restored.ok());
    const std::vector<float> values = (*restored)->Values();
    const float count = static_cast<float>((*restored)->ledger().open().size());
    CHECK(std::all_of(values.begin(), values.end(), [&](float v) { return v == count; }));
    CHECK((*restored)->updates_applied() == (*restored)->ledger().open().size());
    CHECK((*restored)->lsn() == one.lsn);
  }
}

// This is a measurement, not a test. Run it by name on a quiet machine. It pushes to one shard of
// 64 MiB under Adam, on a real disk, with and without a cut being written. It prints the CPU time
// of the pushing thread beside the elapsed time. The difference between the two shows how long the
// thread did not run.
TEST_CASE("measured: pushes beside a cut that is being written", "[.measure]") {
  for (const bool warm : {false, true}) {
    test::TempFolder folder;
    const auto files = fs::MakeLocalFileSystem();
    ShardSettings settings = Settings(16u << 20, 1);
    settings.optimizer.type = "adam";
    const auto pool = std::make_shared<storage::ChunkPool>(256u << 20);
    const auto shard = *Shard::FromSeed(settings, {1, 5}, {1, 2}, {}, pool);
    const std::vector<float> gradient(settings.row_end, 1);
    RealClock clock;
    std::uint64_t next = 0;
    struct Times {
      std::vector<double> wall, processor;
    };
    const auto processor_ms = [] {
      struct timespec t {};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
    };
    const auto push = [&](Times* times) {
      Push update;
      update.epoch = {1, 5};
      update.closure = ClosureId(next / 64);
      update.update = UpdateIndex(next++ % 64);
      update.attempt = {1, 1};
      update.rows = settings.row_end;
      update.payload = std::as_bytes(std::span(gradient));
      const MonoTime begin = clock.Now();
      const double processor = processor_ms();
      EG_CHECK(shard->Apply(update).code == PushCode::kApplied);
      times->wall.push_back(std::chrono::duration<double, std::milli>(clock.Now() - begin).count());
      times->processor.push_back(processor_ms() - processor);
    };
    const auto show = [](const char* name, Times times) {
      for (std::vector<double>* ms : {&times.wall, &times.processor}) {
        std::sort(ms->begin(), ms->end());
        std::printf("%-20s %-10s n=%zu p50=%.1f ms p99=%.1f ms max=%.1f ms\n", name,
                    ms == &times.wall ? "passed" : "processor", ms->size(), (*ms)[ms->size() / 2],
                    (*ms)[ms->size() * 99 / 100], ms->back());
      }
    };
    Times alone, beside;
    for (int i = 0; i < 100; ++i) push(&alone);
    double seconds = 0, first = 0;
    std::uint64_t bytes = 0;
    for (int i = 0; i < 5; ++i) {
      if (warm) pool->Warm(shard->value_bytes() + shard->state_bytes());
      std::optional<ShardCut> cut = shard->Cut();
      std::atomic<bool> written{false};
      absl::StatusOr<DurableCut> durable = absl::UnknownError("");
      runtime::Thread writer("writer", [&] {
        const MonoTime from = clock.Now();
        durable = WriteCut(*cut, {files.get(), folder / "job", "plan", nullptr, nullptr});
        seconds += std::chrono::duration<double>(clock.Now() - from).count();
        cut.reset();
        written = true;
      });
      do {
        push(&beside);
        if (i == 0 && beside.wall.size() == 1) first = beside.processor[0];
      } while (!written.load());
      writer.Join();
      REQUIRE(durable.ok());
      bytes += durable->digest.bytes;
    }
    std::printf("%s\n", warm ? "pool warmed before each cut" : "pool not warmed");
    show("push, no cut", alone);
    show("push beside a cut", beside);
    std::printf(
        "first push after the first cut: %.1f ms of processor time\nwritten %.0f MiB/s (with "
        "SHA-256, CRC-32C, fsync)\n",
        first, static_cast<double>(bytes) / seconds / (1 << 20));
  }
}

}  // namespace
}  // namespace evergrad::ps_server
