#include "ps_server/service/section_runner.h"

#include <catch2/catch.hpp>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

struct Fixture : ShardsFixture {
  metrics::Registry registry;
  SectionMetrics counters;
  JobTable jobs;
  fault::Failpoints failpoints;
  RowCopies copies{nullptr};
  int unproved = 0;
  HostedShard* hosted = Add(CountingShard(0));
  RequestBuilder request;

  Fixture() {
    for (int i = 0; i < 8; ++i) counters.updates[i] = Counter(absl::StrCat("updates_", i));
    for (int i = 0; i < 4; ++i) counters.pulls[i] = Counter(absl::StrCat("pulls_", i));
    counters.push_bytes = Counter("push_bytes");
    counters.pull_bytes = Counter("pull_bytes");
  }
  metrics::Counter* Counter(const std::string& name) {
    return &registry.GetCounter(name + "_total", name);
  }
  SectionRunner runner{
      {.jobs = &jobs,
       .failpoints = &failpoints,
       .metrics = &counters,
       .copies = &copies,
       .on_unproved = [this](const v1::RequestHeader&, const v1::PushSection&) { ++unproved; }}};
};

TEST_CASE_METHOD(Fixture, "an admitted push is answered and counted when its apply has ended") {
  request.Push(0, 0, 0, {1, 2, 3, 4});
  const Call call = CallOf(request);
  runner.BeginPush(hosted, call.Push());
  REQUIRE(hosted->applying.has_value());
  CHECK_FALSE(call.reply->answered);
  CHECK(hosted->traffic.pushes == 0);
  CHECK(runner.ContinuePush(hosted) > 0);
  CHECK_FALSE(hosted->applying.has_value());
  CHECK(call.reply->push() == v1::APPLIED);
  CHECK(hosted->traffic.pushes == 1);
  CHECK(hosted->traffic.bytes_received == 16);
  CHECK(counters.updates[static_cast<int>(PushCode::kApplied)]->value() == 1);
  CHECK(counters.push_bytes->value() == 16);
  CHECK(hosted->shard->Values() == std::vector<float>{1, 2, 3, 4});
}

// Returns a request of `sender` with a push to shard 0. If `pulls` is true, the request also pulls
// shard 0 after the push.
RequestBuilder RequestOf(const std::string& sender, std::uint64_t closure, bool pulls) {
  RequestBuilder builder;
  builder.header.set_client_name(sender);
  builder.Push(0, closure, 0, {1, 1, 1, 1});
  if (pulls) builder.Pull(0);
  return builder;
}

TEST_CASE_METHOD(Fixture,
                 "the staleness of a gradient is the number of updates since its sender's last "
                 "pull") {
  jobs.Learn(JobUid(kJob), {1, 1}, 1);
  const std::shared_ptr<JobCounters> of_job = jobs.CountersOf(JobUid(kJob));
  const auto run = [&](const std::string& sender, std::uint64_t closure, bool pulls) {
    const Call call = CallOf(RequestOf(sender, closure, pulls), of_job);
    runner.BeginPush(hosted, call.Push());
    while (hosted->applying) runner.ContinuePush(hosted);
    if (pulls) runner.RunPull(hosted, call.Pull());
    CHECK(call.reply->push() == v1::APPLIED);
  };
  // Returns the numbers of updates whose gradients were at most 0, 1 and 2 updates old.
  const auto seen = [&] {
    const std::vector<std::uint64_t> counts = of_job->staleness.Read().cumulative;
    return std::vector<std::uint64_t>(counts.begin(), counts.begin() + 3);
  };
  run("worker/0", 0, true);  // not counted, because the sender has pulled nothing before
  CHECK(of_job->staleness.Read().cumulative.back() == 0);
  run("worker/0", 1, true);
  CHECK(seen() == std::vector<std::uint64_t>{1, 1, 1});
  run("worker/1", 2, true);
  run("worker/0", 3, false);  // one update old, because of the update of worker/1
  CHECK(seen() == std::vector<std::uint64_t>{1, 2, 2});
  run("worker/0", 4, false);  // two updates old, because worker/0 did not pull after update 3
  run("worker/1", 5, true);   // two updates old, because of two updates of worker/0
  CHECK(seen() == std::vector<std::uint64_t>{1, 2, 4});
  RequestBuilder skip = RequestOf("worker/1", 6, false);
  skip.header.mutable_pushes(0)->set_kind(v1::SKIP);
  skip.header.mutable_pushes(0)->set_skip_reason("nan");
  skip.payloads[0] = {};
  runner.BeginPush(hosted, CallOf(skip, of_job).Push());
  // A skipped update has no gradient to count.
  CHECK(of_job->staleness.Read().cumulative.back() == 4);
}

TEST_CASE("a shard remembers the pulls of a limited number of senders") {
  SenderPulls pulls;
  for (std::size_t i = 0; i < SenderPulls::kSendersMax + 10; ++i)
    pulls.OnPull(absl::StrCat("worker/", i), 5);
  CHECK(pulls.size() == SenderPulls::kSendersMax);
  CHECK(pulls.StalenessOf(absl::StrCat("worker/", SenderPulls::kSendersMax + 9), 8) == 2);
  CHECK_FALSE(pulls.StalenessOf("another", 8).has_value());
}

TEST_CASE_METHOD(Fixture, "a push without an apply is answered at once") {
  v1::PushSection& skip = request.Push(0, 0, 0, {});
  skip.set_kind(v1::SKIP);
  skip.set_skip_reason("nan");
  request.Push(0, 0, 1, {1});
  *request.Push(0, 0, 2, {1, 2, 3, 4}).mutable_epoch() = client::ToProto(ShardEpoch{1, 4});
  request.Push(0, 0, 3, {1, 2, 3, 4}).set_codec(static_cast<v1::Codec>(7));
  jobs.Learn(JobUid(kJob), {1, 9}, 8);
  const Call call = CallOf(request);
  for (std::uint32_t i = 0; i < 4; ++i) {
    runner.BeginPush(hosted, call.Push(i));
    CHECK_FALSE(hosted->applying.has_value());
  }
  CHECK(call.reply->push(0) == v1::APPLIED);
  CHECK(call.reply->push(1) == v1::INVALID);
  CHECK(call.reply->push(2) == v1::STALE);
  CHECK(call.reply->response.header->pushes(2).version().n() == 9);
  CHECK(call.reply->push(3) == v1::INVALID);
  CHECK(call.reply->response.header->pushes(3).message().find("codec is not built") !=
        std::string::npos);
  CHECK(hosted->traffic.pushes == 1);
}

TEST_CASE_METHOD(Fixture, "a push without the proof of its grant is reported") {
  hosted->grants = std::make_shared<grants::GrantGuard>(JobUid(kJob), std::string(32, 'k'));
  request.Push(0, 0, 0, {1, 2, 3, 4});
  const Call call = CallOf(request);
  runner.BeginPush(hosted, call.Push());
  CHECK(call.reply->push() == v1::INVALID);
  CHECK(unproved == 1);
  CHECK(hosted->shard->lsn() == 0);
}

TEST_CASE_METHOD(Fixture, "a pull of a dense shard refers to its memory, and is counted") {
  request.Pull(0);
  const Call call = CallOf(request);
  CHECK(runner.RunPull(hosted, call.Pull()) > 0);
  CHECK(call.reply->values() == std::vector<float>(4, 0));
  CHECK(counters.pulls[static_cast<int>(PullCode::kValues)]->value() == 1);
  CHECK(counters.pull_bytes->value() == 16);
  CHECK(hosted->traffic.pulls == 1);
  CHECK(hosted->traffic.bytes_sent == 16);
}

TEST_CASE_METHOD(Fixture, "a pull of rows is counted at once, and answered when they are copied") {
  HostedShard* const slot = Add(CountingSlot(1));
  request.PullRows(1, {5, 6});
  const Call call = CallOf(request);
  CHECK(runner.RunPull(slot, call.Pull()) == 2 * 2 * sizeof(float));
  CHECK(slot->traffic.bytes_sent == 16);
  CHECK(slot->traffic.bytes_received == 16);
  CHECK_FALSE(call.reply->answered);
  copies.Finish();
  CHECK(call.reply->values() == std::vector<float>(4, 0));
}

TEST_CASE_METHOD(Fixture, "a pull beyond its reservation, or of an absent image, is invalid") {
  HostedShard* const slot = Add(CountingSlot(1));
  request.header.set_response_bytes_max(8);
  request.PullRows(1, {5, 6});
  request.Pull(0).mutable_image()->set_bytes(1);
  const Call call = CallOf(request);
  runner.RunPull(slot, call.Pull(0));
  runner.RunPull(hosted, call.Pull(1));
  CHECK(call.reply->pull(0) == v1::PULL_INVALID);
  CHECK(call.reply->pull(1) == v1::PULL_INVALID);
  CHECK(call.reply->response.header->pulls(1).message() == "the shard has no image");
  CHECK(counters.pulls[3]->value() == 2);
  CHECK(hosted->traffic.pulls + slot->traffic.pulls == 0);
}

TEST_CASE_METHOD(Fixture,
                 "a shard that is not held is stale, and a number beyond the job's invalid") {
  jobs.Learn(JobUid(kJob), {1, 9}, 8);
  request.Push(7, 0, 0, {1});
  request.Push(8, 0, 0, {1});
  request.Pull(7);
  request.Pull(8);
  const Call call = CallOf(request);
  for (std::uint32_t i = 0; i < 2; ++i) {
    runner.AnswerUnheld(call.Push(i));
    runner.AnswerUnheld(call.Pull(i));
  }
  CHECK(call.reply->push(0) == v1::STALE);
  CHECK(call.reply->response.header->pushes(0).version().n() == 9);
  CHECK(call.reply->push(1) == v1::INVALID);
  CHECK(call.reply->pull(0) == v1::PULL_STALE);
  CHECK(call.reply->pull(1) == v1::PULL_INVALID);
  CHECK(call.reply->response.header->pulls(1).message().find("unknown shard: shard=8 shards=8") ==
        0);
}

TEST_CASE_METHOD(Fixture, "server.after_apply loses the answer of an applied push") {
  REQUIRE(failpoints.Arm("server.after_apply=1*error", 1).ok());
  request.Push(0, 0, 0, {1, 2, 3, 4});
  const Call call = CallOf(request);
  runner.BeginPush(hosted, call.Push());
  runner.ContinuePush(hosted);
  CHECK_FALSE(call.reply->answered);
  CHECK(call.reply->failed.has_value());
  CHECK(hosted->shard->lsn() == 1);
}

}  // namespace
}  // namespace evergrad::ps_server
