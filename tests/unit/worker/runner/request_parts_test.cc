// Tests how sections are divided into requests, and how many parts are in flight.
#include "worker/runner/request_parts.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {
namespace {

using PushKey = ExchangeSections::PushKey;
using PullKey = ExchangeSections::PullKey;

constexpr std::uint64_t kMiB = 1u << 20;

// Six shards of one variable on server a. Each has a push of 1 MiB and a pull of 8 bytes.
struct Fixture {
  Fixture() : sections(MakeLayout()) {
    ShardMap map;
    map.version = MapVersion(1, 5);
    const auto memory = std::make_shared<tensor::AlignedBuffer>(kMiB);
    for (std::uint32_t shard = 0; shard < 6; ++shard) {
      map.shards.push_back({ShardEpoch(1, 1), {}, "a"});
      sections.AddPush(
          UpdateIndex(0),
          {{ShardId(shard), {memory, std::span<const std::byte>(memory->data(), memory->size())}},
           0,
           ""});
    }
    sections.WantPulls(1);
    group = sections.ReadyByOwner(map, {{"a", {}}}).at("a");
  }
  static std::shared_ptr<const Layout> MakeLayout() {
    v1::Plan plan;
    for (std::uint32_t i = 0; i < 6; ++i) {
      v1::ShardSpec* shard = plan.add_shards();
      shard->set_shard(i);
      shard->mutable_variable()->set_name("kernel");
      shard->mutable_variable()->add_shape(12);
      shard->mutable_variable()->set_dtype(v1::DTYPE_FLOAT32);
      shard->set_row_begin(2 * i);
      shard->set_row_end(2 * i + 2);
    }
    return std::make_shared<const Layout>(*Layout::FromPlan(plan));
  }
  RequestParts::Requests Divide(const client::RequestLimits& limits) const {
    return parts.Divide("a", group, sections, limits);
  }

  ExchangeSections sections;
  ExchangeSections::Group group;
  RequestParts parts;
};

TEST_CASE("sections that fit into the share of a client are one request") {
  const Fixture f;
  const RequestParts::Requests requests = f.Divide({64 * kMiB, 1024 * kMiB});
  CHECK_FALSE(requests.in_parts);
  REQUIRE(requests.now.size() == 1);
  CHECK(requests.now[0].pushes == f.group.pushes);
  CHECK(requests.now[0].pulls == f.group.pulls);
}

TEST_CASE("at most four parts are in flight at a server, and an answer makes place for the next") {
  Fixture f;
  const client::RequestLimits limits{8 * kMiB, 1024 * kMiB};
  const RequestParts::Requests first = f.Divide(limits);
  CHECK(first.in_parts);
  REQUIRE(first.now.size() == 4);
  for (std::uint32_t shard = 0; shard < 4; ++shard) {
    CHECK(first.now[shard].pushes == std::vector<PushKey>{{0, shard}});
    CHECK(first.now[shard].pulls == std::vector<PullKey>{{0, shard}});
    f.parts.Sent("a");
  }
  CHECK(f.Divide(limits).now.empty());
  CHECK(f.Divide(limits).in_parts);
  f.parts.Answered("a");
  CHECK(f.Divide(limits).now.size() == 1);
  CHECK(f.parts.AnyInFlight("a"));
  CHECK_FALSE(f.parts.AnyInFlight("b"));
}

TEST_CASE("while parts are in flight, further sections are parts, too") {
  Fixture f;
  const client::RequestLimits limits{64 * kMiB, 1024 * kMiB};
  f.parts.Sent("b");
  CHECK_FALSE(f.Divide(limits).in_parts);
  f.parts.Sent("a");
  CHECK(f.Divide(limits).in_parts);
  f.parts.Answered("a");
  CHECK_FALSE(f.parts.AnyInFlight("a"));
  CHECK_FALSE(f.Divide(limits).in_parts);
}

TEST_CASE("a section that exceeds every request is named") {
  const Fixture f;
  const RequestParts::Requests requests = f.Divide({kMiB / 2, 1024 * kMiB});
  REQUIRE(requests.never_fits.has_value());
  CHECK(requests.never_fits->shard == 0);
  CHECK(requests.now.empty());
}

}  // namespace
}  // namespace evergrad::worker
