// Tests how servers join a job and leave it, without a Job object.
#include "coordinator/jobs/server_admission.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

// A job that is training. Server "a" (process 1) and server "b" (process 2) hold a shard each.
struct Fixture : PartFixture {
  Fixture() {
    Place();
    for (const PhaseEvent event : {PhaseEvent::kStarted, PhaseEvent::kPlanned, PhaseEvent::kPlaced})
      phases.Apply(event);
    shards.Find(kFirst)->process = 1;
    shards.Find(kSecond)->process = 2;
  }
  // Server "a" registers again, in place of its first registration. If `process` is 1, it is the
  // same process and still holds its shard.
  absl::Status Admit(TaskId task, std::uint64_t process, bool died,
                     v1::Registered* registered = nullptr) {
    v1::Hello hello;
    hello.set_process_uid(process);
    if (process == 1) {
      v1::HeldShard* held = hello.add_shards();
      held->set_job_uid(id.uid.value());
      held->set_shard(0);
      *held->mutable_epoch() = EpochOf(0);
    }
    v1::Registered unseen;
    return admission.Admit(task, "a", FormerTask{kFirst, died}, hello,
                           registered == nullptr ? &unseen : registered);
  }
  std::size_t Count(const std::string& text) const {
    return static_cast<std::size_t>(std::count_if(
        said.begin(), said.end(),
        [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }

  JobPhases phases;
  EventLog events{100};
  EpochAccount epochs{{}, MonoTime{0}};
  WorkerRoster roster{Part(), &epochs};
  TaskTotals totals;
  JobNotices notices{Part(), &roster, &totals};
  DeathWatch deaths{Part(), &events, [](ClosureId) { return ""; }};
  ShardQueries queries{id.uid, [](TaskId, const v1::CoordinatorMessage&) {}};
  ShardPlacer placer{Part(), &deaths.backoff(), &queries};
  ShardMover mover{Part(), &placer};
  ShardSeal seal{Part()};
  int wholes_wanted = 0;
  ServerAdmission admission{Part(),
                            {.phases = &phases,
                             .notices = &notices,
                             .placer = &placer,
                             .mover = &mover,
                             .seal = &seal,
                             .queries = &queries,
                             .deaths = &deaths,
                             .totals = &totals,
                             .want_whole = [this] { ++wholes_wanted; }}};
};

TEST_CASE("a server that registers is told the job and the map, unless the job has ended") {
  const bool ended = GENERATE(false, true);
  Fixture f;
  if (ended) {
    for (const PhaseEvent event :
         {PhaseEvent::kCancelled, PhaseEvent::kFinished, PhaseEvent::kWritten})
      f.phases.Apply(event);
  }
  v1::Registered registered;
  REQUIRE(f.Admit(TaskId(9), 1, false, &registered).ok());
  CHECK(registered.has_job() == !ended);
  CHECK(registered.map().shards_size() == (ended ? 0 : 2));
  CHECK(f.shards.Find(f.kFirst) == nullptr);
  REQUIRE(f.shards.Find(TaskId(9)) != nullptr);
  CHECK_FALSE(f.shards.Find(TaskId(9))->ready);
  CHECK(f.wholes_wanted == 1);  // the job must record the new process
  CHECK(f.Take(TaskId(9)).empty());
  CHECK(f.admission.Ready(TaskId(9)));
  CHECK(f.shards.Find(TaskId(9))->ready);
  CHECK_FALSE(f.admission.Ready(TaskId(10)));
}

TEST_CASE("a malformed set in the Hello of a server changes nothing") {
  Fixture f;
  v1::Hello hello;
  v1::HeldShard* held = hello.add_shards();
  held->set_job_uid(f.id.uid.value());
  held->mutable_done()->add_bounds(1);  // the interval has no end
  v1::Registered registered;
  CHECK(f.admission.Admit(TaskId(9), "a", FormerTask{f.kFirst}, hello, &registered).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(f.shards.Find(f.kFirst) != nullptr);
  CHECK(f.shards.Find(TaskId(9)) == nullptr);
  CHECK(f.wholes_wanted == 0);
}

TEST_CASE("a server that returns in time is waited for and keeps its shards") {
  Fixture f;
  f.admission.OnAway(f.kFirst, "reset");
  f.admission.OnAway(f.kFirst, "reset");
  CHECK(f.Count("away: ps_server/a disconnected (reset); waiting for it to reconnect (declared "
                "lost after 30 s)") == 1);
  f.host.clock.Advance(seconds(2));
  REQUIRE(f.Admit(TaskId(9), 1, false).ok());
  CHECK(f.Count("away: ps_server/a reconnected after 2.0 s") == 1);
  f.admission.Ready(TaskId(9));
  CHECK(f.shards.AllHeld());
  CHECK(f.Count("death") == 0);
}

TEST_CASE("while all tasks register again, no event says that a server has reconnected") {
  Fixture f;
  f.phases.OpenWindow();
  f.admission.DisconnectAll();
  CHECK(f.shards.Ready().empty());
  REQUIRE(f.Admit(TaskId(9), 1, false).ok());
  CHECK(f.Count("reconnected") == 0);
}

TEST_CASE("another process in the place of a server is the death of the former one") {
  const bool away = GENERATE(false, true);
  Fixture f;
  if (away) f.admission.OnAway(f.kFirst, "reset");
  f.host.clock.Advance(seconds(1));
  REQUIRE(f.Admit(TaskId(9), 3, true).ok());
  CHECK(f.Count(away ? "death: ps_server/a: its session closed 1.0 s ago, and another process has "
                       "its identity now"
                     : "death: ps_server/a: another process has its identity") == 1);
}

TEST_CASE("a server that comes to a sealed job gets no shard, and what it lacks counts as sealed") {
  Fixture f;
  f.phases.Apply(PhaseEvent::kCancelled);
  f.ending = true;
  f.seal.Begin();
  CHECK(f.seal.WaitingFor() == "servers to seal their shards: 2 left");
  REQUIRE(f.Admit(TaskId(9), 3, true).ok());
  CHECK(f.seal.WaitingFor() == "servers to seal their shards: 1 left");
  f.Take(TaskId(9));
  f.admission.Ready(TaskId(9));
  for (const v1::CoordinatorMessage& message : f.Take(TaskId(9))) CHECK_FALSE(message.has_assign());
}

TEST_CASE("the shards of a lost server go to others, and the loss is known to the journal") {
  Fixture f;
  CHECK(f.admission.OnLost(f.kFirst, "a", "its lease ended", false));
  CHECK_FALSE(f.admission.OnLost(f.kFirst, "a", "its lease ended", false));
  CHECK(f.Count("death: ps_server/a: its lease ended") == 1);
  CHECK(f.wholes_wanted == 1);
  f.placer.Place();
  CHECK(f.book->ShardsOf("b").size() == 2);
}

TEST_CASE("the notice of a server that leaves counts its shards, and is an event once") {
  Fixture f;
  CHECK_FALSE(f.admission.OnLeaving(TaskId(9), "spot", true));
  CHECK(f.admission.OnLeaving(f.kFirst, "spot", true));
  CHECK_FALSE(f.admission.OnLeaving(f.kFirst, "spot", true));
  CHECK(f.Count("drain: ps_server/a leaves: spot; 1 shard is to be moved") == 1);
  f.admission.OnAway(f.kFirst, "closed");
  CHECK(f.Count("away: ps_server/a left after its drain notice and still held 1 shard") == 1);
}

TEST_CASE("a server that was only slow responds again by its heartbeat") {
  Fixture f;
  f.admission.OnAway(f.kFirst, "no heartbeat");
  v1::ServerProgress said;
  v1::JobUsage* use = said.add_jobs();
  use->set_job_uid(f.id.uid.value());
  use->set_shards(1);
  use->set_bytes(64);
  said.add_jobs()->set_shards(7);  // the report counts shards of another job
  f.admission.OnProgress(f.kFirst, said);
  CHECK(f.shards.Find(f.kFirst)->ready);
  CHECK(f.Count("away: ps_server/a responds again") == 1);
  v1::JobStatus status;
  f.admission.FillStatus(&status);
  REQUIRE(status.servers_size() == 2);
  CHECK(status.servers(0).state() == "serves");
  CHECK(status.servers(0).shards() == 1);
  CHECK(status.servers(0).bytes() == 64);
  f.admission.OnProgress(TaskId(9), said);  // the task is unknown, so nothing changes
}

TEST_CASE(
    "a server that disconnects at time 0 of the clock counts as disconnected until it answers") {
  Fixture f;
  REQUIRE(f.host.Now() == MonoTime{0});
  f.admission.OnAway(f.kFirst, "no heartbeat");
  f.host.clock.Advance(seconds(3));
  CHECK(f.placer.WaitingFor() ==
        "servers: ps_server/a has been disconnected for 3 s and holds 1 shard");
  f.admission.OnProgress(f.kFirst, {});
  CHECK(f.shards.Find(f.kFirst)->ready);
  CHECK(f.placer.WaitingFor().empty());
}

TEST_CASE("a server that registers and is not ready yet does not respond again") {
  Fixture f;
  REQUIRE(f.Admit(TaskId(9), 1, false).ok());
  f.admission.OnProgress(TaskId(9), {});
  CHECK_FALSE(f.shards.Find(TaskId(9))->ready);
  CHECK(f.Count("responds again") == 0);
}

TEST_CASE("servers of the map that do not return after a restart are lost one by one") {
  Fixture f;
  f.shards.servers().clear();
  f.phases.OpenWindow();
  f.admission.AwaitOwners();
  f.host.clock.Advance(f.options.server_lost_after);
  CHECK_FALSE(f.admission.LoseMissing());  // servers have time while the start-up window is open
  f.phases.CloseWindow();
  f.admission.AwaitFromNowOn();
  CHECK_FALSE(f.admission.LoseMissing());
  REQUIRE(f.Admit(TaskId(9), 1, false).ok());
  f.host.clock.Advance(f.options.server_lost_after);
  CHECK(f.admission.LoseMissing());
  CHECK_FALSE(f.admission.LoseMissing());
  CHECK(f.Count("death: ps_server/b: it has not reconnected since the coordinator restarted 30 s "
                "ago") == 1);
  CHECK(f.Count("death") == 1);
}

}  // namespace
}  // namespace evergrad::coordinator
