// Tests the totals of the tasks' work in a job, without a Job object.
#include "coordinator/jobs/task_totals.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

v1::WorkerProgress Progress(std::uint64_t stint, std::uint64_t steps, std::uint64_t bytes) {
  v1::WorkerProgress said;
  said.set_job_stint(stint);
  said.set_steps(steps);
  said.set_job_bytes(bytes);
  return said;
}

v1::Endpoint At(const std::string& address) {
  v1::Endpoint endpoint;
  endpoint.set_address(address);
  return endpoint;
}

TEST_CASE("the closures that counted differ from the closures that a worker reported") {
  TaskTotals totals;
  CHECK(totals.BeginWorker("w", 1));
  CHECK_FALSE(totals.BeginWorker("w", 1));
  CHECK_FALSE(totals.HasCountedClosures("w"));
  totals.CountClosure("w", 4, 40);
  totals.ReportWorker("w", Progress(1, 9, 1000));
  CHECK(totals.BeginWorker("w", 2));
  totals.ReportWorker("w", Progress(1, 1, 10));
  CHECK(totals.HasCountedClosures("w"));
  const auto rows = totals.WorkerRows();
  CHECK(rows.at("w").steps() == 10);
  CHECK(rows.at("w").state() == "gone");
  const auto list = totals.Workers();
  REQUIRE(list.size() == 1);
  CHECK(list[0].name == "worker/w");
  CHECK(list[0].steps == 4);
  CHECK(list[0].bytes == 1010);
}

TEST_CASE("a server is new to the journal if its process or its address is new") {
  TaskTotals totals;
  CHECK(totals.BeginServer("s", 1, At("a:1")));
  CHECK_FALSE(totals.BeginServer("s", 1, At("a:1")));
  CHECK(totals.BeginServer("s", 1, At("a:2")));
  CHECK(totals.BeginServer("s", 2, At("a:2")));
  REQUIRE(totals.EndpointOf("s") != nullptr);
  CHECK(totals.EndpointOf("s")->address() == "a:2");
  CHECK(totals.EndpointOf("t") == nullptr);
}

TEST_CASE("the steps of a server are the updates in its shards, even without a report") {
  TaskTotals totals;
  v1::JobUsage use;
  use.set_stint(1);
  use.set_bytes_sent(5);
  use.set_bytes_received(6);
  use.set_duplicates_refused(2);
  totals.BeginServer("s", 1, At("a:1"));
  totals.ReportServer("s", use);
  CHECK(totals.OfServer("s").bytes == 11);
  CHECK(totals.OfServer("t").bytes == 0);
  CHECK(totals.duplicates_refused() == 2);
  std::vector<v1::ShardState> shards(3);
  for (std::size_t i = 0; i < 3; ++i) shards[i].set_updates_applied(10 + i);
  const auto list = totals.Servers(shards, {"s", "t", "s"});
  REQUIRE(list.size() == 2);
  CHECK(list[0].steps == 22);
  CHECK(list[0].bytes == 11);
  CHECK(list[1].name == "ps_server/t");
  CHECK(list[1].steps == 11);
}

TEST_CASE("the text of a device is bounded") {
  TaskTotals totals;
  v1::WorkerProgress said = Progress(1, 1, 1);
  said.mutable_device()->set_name(std::string(1000, 'n'));
  for (int i = 0; i < 20; ++i)
    (*said.mutable_device()->mutable_graph_recaptures())[std::to_string(i)] = 1;
  totals.ReportWorker("w", said);
  const v1::WorkerRow row = totals.WorkerRows().at("w");
  CHECK(row.device().name().size() <= 259);
  CHECK(row.device().graph_recaptures_size() == 16);
}

TEST_CASE("among very many transient workers those without work are removed") {
  TaskTotals totals;
  for (int i = 0; i < 4097; ++i) totals.BeginWorker(std::to_string(i), 1);
  totals.CountClosure("1", 1, 1);
  for (const char* identity : {"0", "1", "2"}) totals.ForgetIdleWorker(identity);
  const auto rows = totals.WorkerRows();
  CHECK_FALSE(rows.contains("0"));
  CHECK(rows.contains("1"));
  CHECK(rows.contains("2"));  // so few tasks are left that none is forgotten
}

TEST_CASE("totals are restored unchanged from a snapshot") {
  TaskTotals totals;
  totals.BeginWorker("w", 7);
  totals.CountClosure("w", 4, 40);
  totals.ReportWorker("w", Progress(2, 9, 1000));
  totals.BeginServer("s", 1, At("a:1"));
  v1::JobSnapshot was, is;
  totals.Fill(&was);
  TaskTotals back;
  back.Read(was);
  back.Fill(&is);
  CHECK(is.SerializeAsString() == was.SerializeAsString());
  CHECK_FALSE(back.BeginWorker("w", 7));
  CHECK_FALSE(back.BeginServer("s", 1, At("a:1")));
}

}  // namespace
}  // namespace evergrad::coordinator
