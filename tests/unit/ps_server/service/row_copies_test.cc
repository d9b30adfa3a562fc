#include "ps_server/service/row_copies.h"

#include <catch2/catch.hpp>

#include "service_fixture.h"

namespace evergrad::ps_server {
namespace {

struct Fixture : ShardsFixture {
  RowCopies copies{nullptr};
  HostedShard* hosted = Add(CountingSlot(0));
  RequestBuilder request;

  // Adds the pulled rows of section `i` of the call. Returns the address to which the rows will be
  // copied.
  const std::byte* AddSection(const Call& call, std::uint32_t i) {
    const std::uint32_t tables[] = {0}, rows[] = {3};
    const PullPlan plan = hosted->shard->Read(
        {kEpoch, false, {}, 0, {true, call.call->request().pull_ids[i], tables, rows}});
    REQUIRE(plan.rows_bytes == 3 * 2 * sizeof(float));
    DataCall::PullOutcome& outcome = call.call->pull(i);
    outcome.result = plan.result;
    outcome.result.chunks.push_back(copies.Add(plan, call.call));
    return outcome.result.chunks.back().bytes.data();
  }
};

TEST_CASE_METHOD(Fixture, "the sections of one request share memory, each at a multiple of 64") {
  for (int i = 0; i < 2; ++i) request.PullRows(0, {1, 2, 3});
  const Call call = CallOf(request);
  CHECK_FALSE(copies.HasRowsOf(call.call));
  const std::byte* const first = AddSection(call, 0);
  CHECK(copies.HasRowsOf(call.call));
  const std::byte* const second = AddSection(call, 1);
  CHECK(second == first + 64);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
  CHECK_FALSE(call.reply->answered);
  copies.Finish();
  REQUIRE(call.reply->answered);
  CHECK_FALSE(copies.HasRowsOf(call.call));
  CHECK(call.reply->values(1) == std::vector<float>(6, 0));
  copies.Finish();
  CHECK(answers == 1);
}

TEST_CASE_METHOD(Fixture, "another request, and a request after ReleaseMemory, get other memory") {
  request.PullRows(0, {1, 2, 3});
  std::vector<Call> calls;
  std::vector<const std::byte*> places;
  for (int i = 0; i < 3; ++i) {
    if (i == 2) copies.ReleaseMemory();
    calls.push_back(CallOf(request));
    places.push_back(AddSection(calls.back(), 0));
    copies.Finish();
  }
  CHECK(answers == 3);
  // The answers keep the memory of their rows, so their addresses must differ.
  CHECK(places[0] != places[1]);
  CHECK(places[1] != places[2]);
  CHECK(places[0] != places[2]);
}

TEST_CASE_METHOD(Fixture, "rows beyond the rest of the memory get new memory") {
  request.header.set_response_bytes_max(64);
  for (int i = 0; i < 2; ++i) request.PullRows(0, {1, 2, 3});
  const Call call = CallOf(request);
  const std::byte* const first = AddSection(call, 0);
  CHECK(AddSection(call, 1) != first + 64);
  copies.Finish();
  CHECK(call.reply->values(0) == std::vector<float>(6, 0));
}

}  // namespace
}  // namespace evergrad::ps_server
