// Tests that a server is refused if no worker could reach its address.
#include <catch2/catch.hpp>

#include "tests/unit/coordinator/service/task_fixture.h"

namespace evergrad::coordinator {
namespace {

TEST_CASE(
    "a server whose endpoint remote workers cannot reach is refused permanently before it gets "
    "shards") {
  std::string peer, endpoint;
  TestCluster c([&](ControlOptions& o) {
    o.unreachable_endpoint = [&](const std::string& by,
                                 // Called on the control executor before the Hello is answered.
                                 const std::string& at) {
      peer = by;
      endpoint = at;
      return at == "127.0.0.1:4001";
    };
  });
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_PS_SERVER, "0", 1);
  hello.mutable_endpoint()->set_address("127.0.0.1:4001");
  const auto rejected = c.Add(hello).Rejected();
  REQUIRE(rejected);
  CHECK(rejected->kind() == "endpoint");
  CHECK(rejected->exit());
  CHECK_THAT(rejected->message(),
             Catch::Matchers::Contains("127.0.0.1:4001") && Catch::Matchers::Contains("--listen"));
  CHECK(peer == "inproc");
  CHECK(endpoint == "127.0.0.1:4001");
  CHECK(c.AddServer("0", 2).Registered());
}

TEST_CASE("at most 64 characters of an impossible host name are kept and shown") {
  TestCluster c;
  v1::Hello hello = TestCluster::HelloOf(v1::ROLE_WORKER, "0", 1);
  hello.set_host(std::string(1000, 'h'));
  REQUIRE(c.Add(hello).Registered());
  const auto tasks = c.Call<v1::ListTasksResponse>(v1::ListTasksRequest());
  REQUIRE(tasks.ok());
  for (const v1::TaskRow& task : tasks->tasks()) CHECK(task.host().size() <= 64);
}

}  // namespace
}  // namespace evergrad::coordinator
