// Tests servers that leave, whose shards are moved (LEDGER line 22), and tasks that die during a
// move.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "job_fixture.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

void FinishHeld(FakeCluster& c) {
  for (auto& [identity, worker] : c.workers) {
    c.FinishHeld(worker);
  }
}

// Lets the job train, with a worker that keeps the closures that it is granted.
void Train(FakeCluster& c, int servers = 2) {
  for (int i = 0; i < servers; ++i) c.AddServer(std::to_string(i));
  c.AddWorker("0");
  c.hold = [](const FakeWorker&, const v1::Grant& g) {
    return g.kind() == v1::TRAIN && g.closure() >= 3;
  };
  c.job->Start();
  REQUIRE(c.Run([&] { return !c.workers["0"].held.empty(); }));
}

void Leave(FakeCluster& c, const std::string& identity) {
  c.servers[identity].leaving = "SIGTERM";
  c.job->OnLeaving(c.servers[identity].task, "SIGTERM", true);
}

// Does what the coordinator does when the session of a server ends after the server has announced
// that it leaves.
void Gone(FakeCluster& c, const std::string& identity) {
  const TaskId task = c.servers.at(identity).task;
  c.servers.erase(identity);
  c.job->OnServerAway(task, "its session closed");
  c.job->OnServerLost(task, identity, "announced that it leaves: SIGTERM", true);
}

Json End(FakeCluster& c) {
  c.hold = [](const FakeWorker&, const v1::Grant&) { return false; };
  FinishHeld(c);
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "SUCCEEDED");
  CHECK(c.refused.empty());
  CHECK(c.host.foreign.empty());
  return Json::parse(c.host.files.at("/runs/fake/result.json"));
}

void CheckNothingLost(FakeCluster& c, const Json& result) {
  CHECK(result["repair"]["shards_rolled_back"] == 0);
  CHECK(result["repair"]["closures_rerun"] == 0);
  CHECK(result["deaths"].empty());
  CHECK_THAT(AllEvents(c), !Contains("rollback:"));
  for (const v1::Grant& grant : c.granted) CHECK(grant.all_targets());
}

TEST_CASE(
    "the shards of a leaving server are moved with a new epoch, the same start and ledger, and no "
    "rollback or grant") {
  FakeCluster c;
  Train(c);
  const v1::ShardMap before = c.workers["0"].map;
  REQUIRE(c.servers["0"].shards.size() == 2);
  const std::map<std::uint32_t, FakeServer::Shard> held = c.servers["0"].shards;
  Leave(c, "0");
  c.Deliver();
  CHECK(c.servers["0"].shards.empty());
  CHECK(c.servers["0"].drained == 1);
  CHECK(c.servers["0"].cannot.empty());
  REQUIRE(c.servers["1"].shards.size() == 4);
  const v1::ShardMap& after = c.workers["0"].map;
  CHECK(client::FromProto<MapVersion>(after.version()) >
        client::FromProto<MapVersion>(before.version()));
  for (const auto& [p, shard] : held) {
    CHECK(after.shards(static_cast<int>(p)).server_identity() == "1");
    CHECK(client::FromProto<ShardEpoch>(after.shards(static_cast<int>(p)).epoch()) >
          client::FromProto<ShardEpoch>(shard.assign.epoch()));
    CHECK(client::FromProto<MapVersion>(after.shards(static_cast<int>(p)).start()) ==
          client::FromProto<MapVersion>(shard.assign.start()));
    CHECK(c.servers["1"].shards[p].done.ToString() == shard.done.ToString());
    CHECK(c.servers["1"].shards[p].assign.moved_from().n() == shard.assign.epoch().n());
  }
  CHECK_THAT(
      AllEvents(c),
      Contains("drain: ps_server/0 leaves: SIGTERM; 2 shards are to be moved") &&
          Contains(
              "drain: ps_server/0 has handed over its shards: 2 shards are at other servers, and "
              "no closure is run again"));
  Gone(c, "0");
  CheckNothingLost(c, End(c));
  CHECK_THAT(AllEvents(c), Contains("state: ps_server/0 left: announced that it leaves: SIGTERM"));
}

TEST_CASE(
    "the last server reports that it cannot hand over, and one without shards may go at once and "
    "gets no more") {
  FakeCluster c;
  Train(c, 1);
  Leave(c, "0");
  c.Deliver();
  CHECK(c.servers["0"].drained == 1);
  CHECK_THAT(c.servers["0"].cannot, Contains("no other server is connected"));
  CHECK_THAT(AllEvents(c), Contains("warning: ps_server/0 is leaving, but its shards cannot be "
                                    "moved: no other server is connected"));
  CHECK(c.servers["0"].shards.size() == 4);  // server 0 serves its shards until it leaves
  c.AddServer("7");
  Leave(c, "7");
  c.Deliver();
  CHECK(c.servers["7"].drained == 1);
  CHECK(c.servers["7"].cannot.empty());
  // Server 0 leaves while it still has all its shards, so they are rolled back (LEDGER line 21).
  // Their new owner must not be a server that is leaving.
  Gone(c, "0");
  c.Deliver();
  CHECK(c.servers["7"].shards.empty());
  CHECK_THAT(c.job->WaitingFor(), Contains("none can take 4 shards"));
  c.AddServer("8");
  const Json result = End(c);
  CHECK(result["repair"]["shards_rolled_back"] == 4);
}

TEST_CASE("a leaving server gets no shard at the first placement, and its job waits for another") {
  FakeCluster c;
  c.AddServer("0");
  c.job->OnLeaving(c.servers["0"].task, "SIGTERM", true);
  c.AddWorker("0");
  c.job->Start();
  CHECK_FALSE(c.Run([&] { return c.Status().state() == "RUNNING"; }, std::chrono::seconds(1)));
  CHECK(c.servers["0"].drained == 1);
  CHECK(c.job->WaitingFor() == "servers: none is connected");
  c.AddServer("1");
  CheckNothingLost(c, End(c));
}

TEST_CASE(
    "a server that dies during its moves keeps the moved shards' state, and the rest is rolled "
    "back") {
  FakeCluster c;
  Train(c);
  int received = 0;
  c.lose = [&](const FakeServer&, const v1::CoordinatorMessage& m) {
    return m.has_receive() && ++received > 1;
  };
  Leave(c, "0");
  c.Deliver();
  CHECK(c.servers["1"].shards.size() == 3);
  CHECK(c.servers["0"].shards.size() == 1);
  CHECK(c.servers["0"].drained == 0);
  Gone(c, "0");
  c.lose = [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
  c.Deliver();
  CHECK(c.servers["1"].shards.size() == 4);
  const Json result = End(c);
  CHECK(result["repair"]["shards_rolled_back"] == 1);
  CHECK(result["deaths"].empty());
}

TEST_CASE(
    "a receiver that disconnects or leaves before it has received the shard is replaced by "
    "another") {
  for (const bool leaves : {false, true}) {
    INFO(leaves);
    FakeCluster c;
    Train(c, 3);
    // Server 1 is the first choice for moved shards, because it is the first of the servers with
    // the fewest shards. Every order to receive a shard that is sent to server 1 is lost.
    const std::size_t at_0 = c.servers["0"].shards.size();
    REQUIRE(at_0 > 0);
    c.lose = [&](const FakeServer& server, const v1::CoordinatorMessage& m) {
      return m.has_receive() && server.identity == "1";
    };
    Leave(c, "0");
    c.Deliver();
    REQUIRE(c.servers["0"].shards.size() > 0);
    if (leaves)
      Leave(c, "1");
    else
      c.job->OnServerAway(c.servers["1"].task, "its session closed");
    c.Deliver();
    CHECK(c.servers["0"].shards.empty());
    CHECK(c.servers["0"].drained == 1);
    c.lose = [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
    if (!leaves) c.AddServer("1", true);
    CheckNothingLost(c, End(c));
  }
}

TEST_CASE("a drained server's shards do not go to one that backs off, unless it is the only one") {
  for (const bool another : {true, false}) {
    INFO(another);
    FakeCluster c;
    Train(c);
    // Server 1 dies four times while it has shards. Afterwards server 0 has all shards, and server
    // 1 gets no work for a second.
    for (int death = 0; death < 4; ++death) {
      c.AddServer("1");
      c.Deliver();
    }
    REQUIRE(c.servers["0"].shards.size() == 4);
    if (another) {
      c.AddServer("2");
      c.Deliver();
      REQUIRE(c.servers["2"].shards.empty());
    }
    Leave(c, "0");
    c.Deliver();
    CHECK(c.servers["0"].shards.empty());
    CHECK(c.servers["0"].drained == 1);
    CHECK(c.servers["1"].shards.size() == (another ? 0 : 4));
    if (another) CHECK(c.servers["2"].shards.size() == 4);
  }
}

TEST_CASE(
    "a shard that cannot be moved is tried three times, reported and left, and the rest is moved") {
  FakeCluster c;
  Train(c);
  const std::uint32_t stays = c.servers["0"].shards.begin()->first;
  c.move_error = [&](const FakeServer& server, std::uint32_t shard) {
    return server.identity == "1" && shard == stays
               ? absl::DataLossError("it does not fit together")
               : absl::OkStatus();
  };
  Leave(c, "0");
  REQUIRE(c.Run([&] { return c.servers["0"].drained > 0; }, std::chrono::seconds(5)));
  CHECK_THAT(c.servers["0"].cannot, Contains("no other server can take the shard now"));
  CHECK(c.servers["0"].shards.size() == 1);
  CHECK(c.servers["1"].shards.size() == 3);
  // If a shard is too large to be moved, this must be reported at once.
  FakeCluster large;
  Train(large);
  large.move_error = [&](const FakeServer& server, std::uint32_t) {
    return server.identity == "0" ? absl::ResourceExhaustedError("shard is too large to be moved")
                                  : absl::OkStatus();
  };
  Leave(large, "0");
  REQUIRE(large.Run([&] { return large.servers["0"].drained > 0; }, std::chrono::seconds(5)));
  CHECK_THAT(large.servers["0"].cannot, Contains("too large to be moved"));
}

TEST_CASE("a moved shard that its new owner does not hold is rolled back") {
  FakeCluster c;
  Train(c);
  Leave(c, "0");
  // The new owner loses the received state after the move is recorded and before the Assign
  // arrives, although its process is the same.
  c.lose = [&](const FakeServer&, const v1::CoordinatorMessage& m) {
    if (m.has_assign()) c.servers["1"].moving.clear();
    return false;
  };
  c.Deliver();
  c.lose = [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
  CHECK_THAT(
      AllEvents(c),
      Contains(
          "was lost while it was moved: this server does not have the state of a moved shard"));
  const Json result = End(c);
  CHECK(result["repair"]["shards_rolled_back"] == 2);
}

TEST_CASE(
    "a shard that a former life stopped for a move is rolled back, with or without a record, and "
    "then moved") {
  MemoryStateStore::Options persistent;
  persistent.persistent = true;
  for (const bool after : {false, true}) {
    INFO(after);
    FakeCluster c({}, persistent);
    Train(c);
    c.lose = [&](const FakeServer&, const v1::CoordinatorMessage& m) {
      return after ? m.has_assign() || m.has_drop() : m.has_receive();
    };
    Leave(c, "0");
    c.Deliver();
    CHECK(c.servers["0"].drained == (after ? 1 : 0));
    CHECK(c.servers["0"].shards.begin()->second.stopped);
    c.lose = [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
    const v1::ShardMap before = c.workers["0"].map;
    const std::map<std::uint32_t, FakeServer::Shard> held = c.servers["0"].shards;
    c.Restart();
    c.Deliver();
    CHECK(c.servers["0"].shards.empty());
    CHECK(c.servers["0"].drained == 1);
    const v1::ShardMap& now = c.workers["0"].map;
    for (const auto& [p, shard] : held) {
      CHECK(client::FromProto<MapVersion>(now.shards(static_cast<int>(p)).start()) >
            client::FromProto<MapVersion>(before.shards(static_cast<int>(p)).start()));
    }
    CHECK_THAT(
        AllEvents(c),
        Contains(after
                     ? "rollback: ps_server/1 registered without the shards that it held: 2 shards"
                     : "rollback: ps_server/0 was handing over shards when the coordinator ended: "
                       "2 shards"));
    const Json result = End(c);
    CHECK(result["repair"]["shards_rolled_back"] == 2);
  }
}

TEST_CASE(
    "a session that is lost during a move changes nothing, and the same process continues with "
    "it") {
  FakeCluster c;
  Train(c);
  c.lose = [&](const FakeServer&, const v1::CoordinatorMessage& m) { return m.has_receive(); };
  Leave(c, "0");
  c.Deliver();
  REQUIRE(c.servers["0"].shards.begin()->second.stopped_in == c.host.term().value());
  c.lose = [](const FakeServer&, const v1::CoordinatorMessage&) { return false; };
  c.job->OnServerAway(c.servers["0"].task, "its session closed");
  c.AddServer("0", true);
  c.Deliver();
  CHECK(c.servers["0"].shards.empty());
  CHECK(c.servers["0"].drained == 1);
  CheckNothingLost(c, End(c));
}

TEST_CASE(
    "a job that ends during moves ends like others: shards are sealed, reported and dropped where "
    "they are") {
  FakeCluster c;
  Train(c);
  c.lose = [&](const FakeServer&, const v1::CoordinatorMessage& m) { return m.has_receive(); };
  Leave(c, "0");
  c.Deliver();
  REQUIRE(c.servers["0"].shards.begin()->second.stopped);
  c.job->Cancel();
  REQUIRE(c.RunToEnd());
  CHECK(c.Status().state() == "CANCELLED");
  CHECK(c.host.foreign.empty());
  // An answer about a move that has ended must change nothing.
  v1::TaskMessage late;
  late.mutable_received()->set_job_uid(c.job->uid().value());
  c.Say(c.servers["1"].task, late);
}

TEST_CASE("messages about moves without an order change nothing") {
  FakeCluster c;
  Train(c);
  const std::string before = AllEvents(c);
  v1::TaskMessage stopped, received;
  stopped.mutable_stopped()->set_job_uid(c.job->uid().value());
  stopped.mutable_stopped()->set_shard(1);
  received.mutable_received()->set_job_uid(c.job->uid().value());
  received.mutable_received()->set_shard(4'000'000'000u);
  for (const char* server : {"0", "1"}) {
    c.Say(c.servers[server].task, stopped);
    c.Say(c.servers[server].task, received);
  }
  CHECK(AllEvents(c) == before);
  CheckNothingLost(c, End(c));
}

TEST_CASE("a worker's notice is an event with its reason") {
  FakeCluster c;
  Train(c);
  c.job->OnLeaving(c.workers["0"].task, "preemption notice", false);
  c.job->OnLeaving(c.workers["0"].task, "preemption notice", false);
  const std::string all = AllEvents(c);
  CHECK_THAT(all, Contains("drain: worker/0 leaves: preemption notice"));
  CHECK(all.find("drain:") == all.rfind("drain:"));
}

}  // namespace
}  // namespace evergrad::coordinator
