// Tests how the sections for one server are divided among requests.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <set>

#include "worker/runner/request_split.h"

namespace evergrad::worker {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::vector<SectionSize> PushesAndPulls(std::uint32_t shards, std::uint64_t bytes) {
  std::vector<SectionSize> sections;
  for (std::uint32_t shard = 0; shard < shards; ++shard) sections.push_back(PushSize(shard, bytes));
  for (std::uint32_t shard = 0; shard < shards; ++shard) sections.push_back(PullSize(shard, bytes));
  return sections;
}

TEST_CASE(
    "sections within a client's share go in one request, in the given order, and so do all "
    "sections if no limit is known") {
  const auto sections = PushesAndPulls(60, kMiB);
  for (const client::RequestLimits& limits :
       {client::RequestLimits{256 * kMiB, 1024 * kMiB}, client::RequestLimits{}}) {
    const SplitPlan plan = SplitRequests(limits, sections);
    CHECK_FALSE(plan.in_parts);
    REQUIRE(plan.requests.size() == 1);
    CHECK(plan.requests[0].size() == sections.size());
    CHECK(std::is_sorted(plan.requests[0].begin(), plan.requests[0].end()));
  }
  CHECK(SplitRequests({256 * kMiB, 1024 * kMiB}, {}).requests.empty());
}

TEST_CASE(
    "sections above a server's grant go in parts of an eighth of its budget, a shard's pull with "
    "its push") {
  const auto sections = PushesAndPulls(320, kMiB / 2);  // 160 MiB in each direction
  const SplitPlan plan = SplitRequests({16 * kMiB, 1024 * kMiB}, sections);
  CHECK(plan.in_parts);
  CHECK_FALSE(plan.never_fits);
  // A push, a pull and their headers together are a little larger than half of a part. Each part
  // therefore has one shard.
  CHECK(plan.requests.size() == 320);
  std::set<std::size_t> sent;
  for (const auto& request : plan.requests) {
    REQUIRE(request.size() == 2);
    CHECK(sections[request[0]].push);
    CHECK_FALSE(sections[request[1]].push);
    CHECK(sections[request[0]].shard == sections[request[1]].shard);
    sent.insert(request.begin(), request.end());
  }
  CHECK(sent.size() == sections.size());
}

TEST_CASE(
    "a request above a client's share goes in parts, though the server could grant it whole") {
  const auto sections = PushesAndPulls(20, kMiB);
  CHECK(SplitRequests({128 * kMiB, 1024 * kMiB}, sections).requests.size() == 1);
  // With these limits, a request may use 40 MiB of the budget.
  const SplitPlan plan = SplitRequests({64 * kMiB, 1024 * kMiB}, sections);
  CHECK(plan.in_parts);
  CHECK_FALSE(plan.never_fits);
  CHECK(plan.requests.size() == 7);  // three shards in each part of 8 MiB
  // A push and a pull of one shard are sent together, even if they are larger than a part.
  const std::vector<SectionSize> one = {PushSize(1, 20 * kMiB), PullSize(1, 20 * kMiB)};
  CHECK(SplitRequests({64 * kMiB, 1024 * kMiB}, one).requests ==
        std::vector<std::vector<std::size_t>>{{0, 1}});
}

TEST_CASE(
    "while parts are in flight later sections go in parts, too, even if they fit into one "
    "request") {
  const auto sections = PushesAndPulls(8, kMiB);
  CHECK(SplitRequests({64 * kMiB, 1024 * kMiB}, sections, /*in_parts=*/false).requests.size() == 1);
  const SplitPlan plan = SplitRequests({64 * kMiB, 1024 * kMiB}, sections, /*in_parts=*/true);
  CHECK(plan.in_parts);
  CHECK(plan.requests.size() == 3);
}

TEST_CASE(
    "a shard whose push and pull do not fit together is pushed alone, and its pull is left until "
    "the push is answered") {
  const std::vector<SectionSize> sections = {PushSize(1, 9 * kMiB), PullSize(1, 9 * kMiB),
                                             PullSize(2, 9 * kMiB)};
  const SplitPlan plan = SplitRequests({16 * kMiB, 1024 * kMiB}, sections);
  CHECK(plan.in_parts);
  CHECK_FALSE(plan.never_fits);
  CHECK(plan.requests == std::vector<std::vector<std::size_t>>{{0}, {2}});
}

TEST_CASE(
    "a push or pull that no request can carry is named, with the limit of the budget or of the "
    "frame") {
  const auto never = [](const client::RequestLimits& limits, const SectionSize& section) {
    const std::vector<SectionSize> sections = {PullSize(0, 1000), section};
    const SplitPlan plan = SplitRequests(limits, sections);
    return plan.never_fits.has_value() && *plan.never_fits == 1;
  };
  CHECK(never({16 * kMiB, 1024 * kMiB}, PushSize(1, 16 * kMiB)));
  CHECK(never({16 * kMiB, 1024 * kMiB}, PullSize(1, 16 * kMiB)));
  CHECK(never({256 * kMiB, 16 * kMiB}, PushSize(1, 16 * kMiB)));
  CHECK(never({256 * kMiB, 16 * kMiB}, PullSize(1, 16 * kMiB)));
  CHECK_FALSE(never({256 * kMiB, 32 * kMiB}, PullSize(1, 16 * kMiB)));
  const client::RequestLimits budget{16 * kMiB, 1024 * kMiB}, frame{256 * kMiB, 16 * kMiB};
  CHECK(budget.section_flag() == "--budget-bytes-max 16777216");
  CHECK(frame.section_flag() == "--frame-bytes-max 16777216");
  // A section of the reported maximum size must fit.
  for (const client::RequestLimits& limits : {budget, frame}) {
    CHECK_FALSE(never(limits, PushSize(1, limits.section_bytes_max())));
    CHECK_FALSE(never(limits, PullSize(1, limits.section_bytes_max())));
  }
}

TEST_CASE(
    "whatever the sizes, every section is sent once, or is left behind its shard's push, and no "
    "request is more than the server grants") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const client::RequestLimits limits{kMiB + random() % (64 * kMiB),
                                       kMiB + random() % (64 * kMiB)};
    std::vector<SectionSize> sections;
    for (std::uint32_t i = 0; i < 1 + random() % 60; ++i) {
      const std::uint32_t shard = static_cast<std::uint32_t>(random() % 40);
      const std::uint64_t bytes = random() % limits.section_bytes_max();
      const bool rows = random() % 2 == 0;
      const std::uint64_t ids =
          rows ? std::min<std::uint64_t>(random() % 1000 * 8, limits.section_bytes_max() - bytes)
               : 0;
      sections.push_back(random() % 2 == 0 ? PushSize(shard, bytes, ids, rows ? 3 : 0)
                                           : PullSize(shard, bytes, ids, rows ? 3 : 0));
    }
    const SplitPlan plan = SplitRequests(limits, sections, random() % 4 == 0);
    REQUIRE_FALSE(plan.never_fits);
    std::set<std::size_t> sent;
    for (const auto& request : plan.requests) {
      REQUIRE_FALSE(request.empty());
      std::vector<SectionSize> of_request;
      for (const std::size_t i : request) {
        REQUIRE(sent.insert(i).second);
        of_request.push_back(sections[i]);
      }
      const RequestSize size = SizeOf(of_request);
      REQUIRE(limits.Fits(size.request_bytes, size.response_bytes));
    }
    for (std::size_t i = 0; i < sections.size(); ++i) {
      if (sent.contains(i)) continue;
      const auto pushed = [&](std::size_t j) {
        return sections[j].push && sections[j].shard == sections[i].shard;
      };
      REQUIRE_FALSE(sections[i].push);
      REQUIRE(std::any_of(sent.begin(), sent.end(), pushed));
    }
  }
}

}  // namespace
}  // namespace evergrad::worker
