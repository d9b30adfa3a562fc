// Tests orders to cut shards that are answered at once. snapshots_test.cc tests the orders that
// reach the snapshot writer.
#include "ps_server/service/cut_orders.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/client/protocol.h"
#include "tests/support/manual_executor.h"

namespace evergrad::ps_server {
namespace {

constexpr JobUid kJob{7};
constexpr ShardEpoch kEpoch{1, 5};

struct Fixture {
  ManualClock clock;
  runtime::ManualExecutor executor{&clock};
  log::Logger logger{{.level = log::Level::kError, .file = "/dev/null"}};
  JobTable jobs;
  ShardDirectory directory{&jobs, &logger};
  std::vector<v1::ShardDurable> sent;
  SessionSender sender{[this](v1::TaskMessage message) {
    sent.push_back(message.shard_durable());
    return true;
  }};
  CutOrders cuts{{.executor = &executor,
                  .logger = &logger,
                  .clock = &clock,
                  .directory = &directory,
                  .sender = &sender,
                  .shard_executor = nullptr}};

  void Put(std::uint32_t shard, const std::string& file) {
    HeldShard held;
    held.epoch = kEpoch;
    held.file = file;
    directory.Put({kJob, ShardId(shard)}, std::move(held));
  }
  static v1::CutShards OrderOf(const std::vector<std::uint32_t>& shards) {
    v1::CutShards cut;
    cut.set_job_uid(kJob.value());
    for (const std::uint32_t shard : shards) {
      v1::CutShard* one = cut.add_shards();
      one->set_shard(shard);
      *one->mutable_epoch() = client::ToProto(kEpoch);
    }
    return cut;
  }
  absl::StatusCode CodeOf(std::size_t i) const {
    return client::FromErrorDetail(sent.at(i).error()).code();
  }
};

TEST_CASE_METHOD(Fixture,
                 "a shard that is not held at the epoch of the order is answered NotFound") {
  Put(1, "");
  v1::CutShards cut = OrderOf({0, 1});
  *cut.mutable_shards(1)->mutable_epoch() = client::ToProto(ShardEpoch{1, 6});
  cuts.Submit(cut);
  REQUIRE(sent.size() == 2);
  CHECK(CodeOf(0) == absl::StatusCode::kNotFound);
  CHECK(sent[1].shard() == 1);
  CHECK(CodeOf(1) == absl::StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a shard that is being restored is answered Unavailable") {
  Put(0, "file:///job/shard");
  cuts.Submit(OrderOf({0}));
  REQUIRE(sent.size() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kUnavailable);
  CHECK(sent[0].error().message().find("file=file:///job/shard") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "an order without a folder is answered for each shard") {
  Put(0, "");
  Put(1, "");
  cuts.Submit(OrderOf({1, 0}));
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].shard() == 1);
  CHECK(CodeOf(0) == absl::StatusCode::kInvalidArgument);
  CHECK(sent[1].shard() == 0);
}

}  // namespace
}  // namespace evergrad::ps_server
