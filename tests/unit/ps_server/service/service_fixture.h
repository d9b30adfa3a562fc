// A ShardHost on manual executors. The fixture builds requests and reads answers as a worker does.
#pragma once

#include <catch2/catch.hpp>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/client/protocol.h"
#include "common/wire/data_frame.h"
#include "ps_server/service/hosted_shards.h"
#include "ps_server/service/shard_directory.h"
#include "ps_server/service/shard_host.h"
#include "tests/support/manual_executor.h"

namespace evergrad::ps_server {

inline constexpr std::uint64_t kJob = 77;
inline constexpr ShardEpoch kEpoch{1, 5};
inline constexpr MapVersion kStart{1, 2};

inline tensor::AlignedBuffer Gathered(const std::vector<tensor::SharedBytes>& pieces) {
  std::size_t size = 0;
  for (const auto& piece : pieces) size += piece.bytes.size();
  tensor::AlignedBuffer buffer(size);
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    if (!piece.bytes.empty())
      std::memcpy(buffer.data() + at, piece.bytes.data(), piece.bytes.size());
    at += piece.bytes.size();
  }
  return buffer;
}

// The answer to one request.
struct Reply {
  bool answered = false;
  int order = -1;  // number of replies of the fixture before this one
  std::optional<absl::Status> failed;
  // The pieces of the answer as the transport got them. They refer to the memory of the shards.
  std::vector<tensor::SharedBytes> pieces;
  tensor::AlignedBuffer frame;
  wire::Response response;

  v1::PushAnswer push(int i = 0) const { return response.header->pushes(i).answer(); }
  v1::PullAnswer pull(int i = 0) const { return response.header->pulls(i).answer(); }
  std::vector<float> values(std::size_t i = 0) const {
    const auto bytes = response.payloads.at(i);
    std::vector<float> floats(bytes.size() / sizeof(float));
    if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
};

class RecordingResponder final : public transport::DataResponder {
 public:
  RecordingResponder(std::shared_ptr<Reply> reply, int* answers)
      : reply_(std::move(reply)), answers_(answers) {}
  void Answer(transport::Frame frame) override {
    reply_->frame = Gathered(frame.pieces);
    reply_->pieces = std::move(frame.pieces);
    auto parsed = wire::ParseResponse({reply_->frame.data(), reply_->frame.size()});
    if (parsed.ok())
      reply_->response = *std::move(parsed);
    else
      reply_->failed = parsed.status();
    reply_->answered = true;
    reply_->order = (*answers_)++;
  }
  void Fail(absl::Status status) override { reply_->failed = status; }

 private:
  std::shared_ptr<Reply> reply_;
  int* answers_;
};

// A reservation that increments a counter when it is released.
class CountedReservation final : public transport::Reservation {
 public:
  explicit CountedReservation(int* released) : released_(released) {}
  ~CountedReservation() override { ++*released_; }

 private:
  int* released_;
};

struct RequestBuilder {
  v1::RequestHeader header;
  std::vector<tensor::SharedBytes> payloads;
  std::vector<tensor::SharedBytes> push_ids, pull_ids;

  RequestBuilder() {
    header.set_job_uid(kJob);
    header.set_response_bytes_max(64 << 20);
  }
  v1::PushSection& Push(std::uint32_t shard, std::uint64_t closure, std::uint32_t update,
                        std::vector<float> gradient) {
    v1::PushSection* push = header.add_pushes();
    push->set_shard(shard);
    *push->mutable_epoch() = client::ToProto(kEpoch);
    push->set_closure(closure);
    push->set_update(update);
    *push->mutable_attempt() = client::ToProto(Attempt{1, 1});
    push->set_kind(v1::GRADIENT);
    push->set_dtype(v1::DTYPE_FLOAT32);
    push->set_rows(gradient.size());
    auto owned = std::make_shared<std::vector<float>>(std::move(gradient));
    payloads.push_back({owned, std::as_bytes(std::span<const float>(*owned))});
    push_ids.emplace_back();
    return *push;
  }
  // Adds a push of these rows to table 0 of a slot.
  v1::PushSection& PushRows(std::uint32_t shard, std::uint64_t closure, std::uint32_t update,
                            std::vector<std::int64_t> ids, std::vector<float> gradient) {
    v1::PushSection& push = Push(shard, closure, update, std::move(gradient));
    push.set_rows(ids.size());
    push.add_tables(0);
    push.add_table_rows(static_cast<std::uint32_t>(ids.size()));
    push_ids.back() = Ids(std::move(ids));
    return push;
  }
  v1::PullSection& PullRows(std::uint32_t shard, std::vector<std::int64_t> ids) {
    v1::PullSection& pull = Pull(shard);
    pull.add_tables(0);
    pull.add_table_rows(static_cast<std::uint32_t>(ids.size()));
    pull_ids.back() = Ids(std::move(ids));
    return pull;
  }
  static tensor::SharedBytes Ids(std::vector<std::int64_t> ids) {
    auto owned = std::make_shared<std::vector<std::int64_t>>(std::move(ids));
    return {owned, std::as_bytes(std::span<const std::int64_t>(*owned))};
  }
  v1::PullSection& Pull(std::uint32_t shard) {
    v1::PullSection* pull = header.add_pulls();
    pull->set_shard(shard);
    *pull->mutable_epoch() = client::ToProto(kEpoch);
    pull_ids.emplace_back();
    return *pull;
  }
  tensor::AlignedBuffer Frame() const {
    std::vector<tensor::SharedBytes> ids = push_ids;
    ids.insert(ids.end(), pull_ids.begin(), pull_ids.end());
    return Gathered(wire::BuildRequest(header, payloads, ids));
  }
};

// Returns the settings of a shard whose rows have one element. The optimizer `counting` adds the
// gradients.
inline ShardSettings CountingShard(std::uint32_t shard, std::uint64_t rows = 4,
                                   std::uint64_t job = kJob) {
  ShardSettings s;
  s.job = JobUid(job);
  s.shard = ShardId(shard);
  s.variable = "count";
  s.variable_shape = tensor::Shape{rows, 1};
  s.row_end = rows;
  s.optimizer.type = "counting";
  return s;
}

// Returns the settings of a slot with one table, whose rows have two elements. The optimizer
// `counting` adds the gradients.
inline ShardSettings CountingSlot(std::uint32_t shard) {
  ShardSettings s;
  s.job = JobUid(kJob);
  s.shard = ShardId(shard);
  s.variable = "slot 0 of 1";
  storage::TableSettings table;
  table.name = "user";
  table.dimension = 2;
  table.optimizer.type = "counting";
  s.slot = SlotSettings{0, 1, {table}};
  return s;
}

// One executor and its shards, for tests of the parts that work on shards.
struct ShardsFixture {
  ManualClock clock;
  HostedShards shards;
  // The executor comes after `shards`, so that its tasks are destroyed first.
  runtime::ManualExecutor executor{&clock};
  int answers = 0;

  HostedShard* Add(const ShardSettings& settings) {
    auto shard = Shard::FromSeed(settings, kEpoch, kStart, {});
    REQUIRE(shard.ok());
    shards.Add(*std::move(shard), nullptr);
    return shards.Find({settings.job, settings.shard});
  }
  struct Call {
    std::shared_ptr<DataCall> call;
    std::shared_ptr<Reply> reply = std::make_shared<Reply>();
    RequestSection Push(std::uint32_t i = 0) const { return {call, i, true}; }
    RequestSection Pull(std::uint32_t i = 0) const { return {call, i, false}; }
  };
  Call CallOf(const RequestBuilder& builder, std::shared_ptr<JobCounters> counters = nullptr) {
    Call call;
    transport::ReceivedFrame frame{builder.Frame(), nullptr};
    auto request = wire::ParseRequest({frame.bytes.data(), frame.bytes.size()});
    REQUIRE(request.ok());
    call.call = std::make_shared<DataCall>(
        std::move(frame), *std::move(request),
        std::make_unique<RecordingResponder>(call.reply, &answers), 1, 1ull << 30,
        std::make_shared<std::atomic<std::uint64_t>>(0), std::move(counters), nullptr);
    return call;
  }
  // Begins to apply a push to the shard, in the same way as SectionRunner.
  void BeginApply(HostedShard* hosted) {
    ps_server::Push push;
    push.epoch = kEpoch;
    push.attempt = {1, 1};
    push.rows = gradient.size();
    push.payload = std::as_bytes(std::span<const float>(gradient));
    REQUIRE(hosted->shard->BeginApply(push).code == PushCode::kApplied);
    REQUIRE(hosted->shard->applying());
    hosted->applying.emplace();
  }
  // Ends the apply. Returns the tasks that waited for the end of the apply.
  std::vector<std::function<void()>> EndApply(HostedShard* hosted) {
    while (hosted->shard->applying()) hosted->shard->ContinueApply(kTurnBytes);
    hosted->applying.reset();
    return std::exchange(hosted->after_apply, {});
  }
  const std::vector<float> gradient = std::vector<float>(4, 1);
};

// The surroundings of one part of the service: the directory, one executor for all shards, and the
// control executor. A fixture declares them as its last member. The tasks in the executors are then
// destroyed before the part that posted the tasks.
struct PartSurroundings {
  ManualClock clock;
  log::Logger logger{{.level = log::Level::kError, .file = "/dev/null"}};
  JobTable jobs;
  ShardDirectory directory{&jobs, &logger};
  SectionMetrics metrics{};
  ShardExecutor shards{{.executor = &executor, .jobs = &jobs, .metrics = &metrics}};
  runtime::ManualExecutor control{&clock}, executor{&clock};

  void RunAll() {
    while (executor.RunReady() + control.RunReady() > 0) {
    }
  }
};

struct HostFixture {
  ManualClock clock;
  std::vector<std::unique_ptr<runtime::ManualExecutor>> executors;
  metrics::Registry registry;
  fault::Failpoints failpoints;
  std::unique_ptr<ShardHost> host;
  int answers = 0;

  explicit HostFixture(int executor_count = 2, std::uint64_t frame_bytes_max = 1ull << 30) {
    ShardHost::Options options;
    for (int i = 0; i < executor_count; ++i) {
      executors.push_back(std::make_unique<runtime::ManualExecutor>(&clock));
      options.executors.push_back(executors.back().get());
    }
    options.registry = &registry;
    options.failpoints = &failpoints;
    options.frame_bytes_max = frame_bytes_max;
    host = std::make_unique<ShardHost>(std::move(options));
  }
  ~HostFixture() { executors.clear(); }  // posted tasks must be destroyed before the host

  void RunAll() {
    int ran = 1;
    while (ran > 0) {
      ran = 0;
      for (auto& executor : executors) ran += executor->RunReady();
    }
  }
  void Hold(const ShardSettings& settings, ShardEpoch epoch = kEpoch, MapVersion start = kStart) {
    absl::Status status = absl::UnknownError("not loaded");
    host->shard_executor(settings.shard)
        .Assign(settings, epoch, start, {},
                [&](ShardExecutor::Loaded loaded) { status = loaded.status; });
    RunAll();
    REQUIRE(status.ok());
    host->jobs().Learn(settings.job, {1, 9}, 8);
  }
  std::shared_ptr<Reply> Start(tensor::AlignedBuffer frame,
                               std::unique_ptr<transport::Reservation> reservation = nullptr) {
    auto reply = std::make_shared<Reply>();
    host->Handle({std::move(frame), std::move(reservation)},
                 std::make_unique<RecordingResponder>(reply, &answers));
    return reply;
  }
  std::shared_ptr<Reply> Send(const RequestBuilder& request) {
    auto reply = Start(request.Frame());
    RunAll();
    return reply;
  }
  std::vector<v1::ShardState> Report(bool digests = true) {
    std::vector<v1::ShardState> states;
    host->Report(JobUid(0), digests, [&](std::vector<v1::ShardState> s) { states = std::move(s); });
    RunAll();
    return states;
  }
};

}  // namespace evergrad::ps_server
