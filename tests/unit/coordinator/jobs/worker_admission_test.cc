// Tests how workers join a job and leave it, without a Job object.
#include "coordinator/jobs/worker_admission.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

// A job that is training, with sixteen closures and two placed shards. Its grants have proofs.
struct Fixture : PartFixture {
  Fixture() {
    id.grant_key = std::string(32, 'k');
    Place();
    for (const PhaseEvent event : {PhaseEvent::kStarted, PhaseEvent::kPlanned, PhaseEvent::kPlaced})
      phases.Apply(event);
  }
  static v1::Hello HelloOf(std::uint64_t process) {
    v1::Hello hello;
    hello.set_process_uid(process);
    return hello;
  }
  // Registers a worker. The test uses the number `task` as the number of the process, too.
  v1::Registered Admit(std::uint64_t task, const std::string& identity,
                       const std::optional<FormerTask>& former = std::nullopt) {
    return Admit(task, identity, former, HelloOf(task));
  }
  v1::Registered Admit(std::uint64_t task, const std::string& identity,
                       const std::optional<FormerTask>& former, const v1::Hello& hello) {
    v1::Registered registered;
    admission.Admit(TaskId(task), identity, MonoTime{0}, former, hello, &registered);
    return registered;
  }
  // Grants the next closure to the worker. Returns the entry about the attempt for the worker's
  // Hello.
  v1::HeldAttempt Grant(std::uint64_t task, const std::string& identity) {
    const auto granted = book->NextGrant(TaskId(task));
    REQUIRE(granted);
    if (JobWorker* worker = roster.Find(TaskId(task)))
      worker->Take(granted->attempt, {granted->closure, v1::TRAIN, host.Now()});
    v1::HeldAttempt held;
    held.set_job_uid(id.uid.value());
    held.set_closure(granted->closure.value());
    *held.mutable_attempt() = client::ToProto(granted->attempt);
    held.set_kind(v1::TRAIN);
    held.set_all_targets(true);
    *held.mutable_v1() = client::ToProto(book->durable().version);
    held.set_granted_to(identity);
    held.set_proof(claims.ProofOf(identity, granted->closure, granted->attempt));
    return held;
  }
  TaskId HolderOf(const v1::HeldAttempt& held) const {
    const auto current = book->current().find(ClosureId(held.closure()));
    return current == book->current().end() ? TaskId() : current->second.worker;
  }

  JobPhases phases;
  EventLog events{100};
  EpochAccount epochs{{}, MonoTime{0}};
  WorkerClaims claims{Part(), &epochs};
  WorkerRoster roster{Part(), &epochs};
  TaskTotals totals;
  JobNotices notices{Part(), &roster, &totals};
  ReadingRound reading;
  DeathWatch deaths{Part(), &events, [](ClosureId) { return ""; }};
  bool knows = true;
  std::vector<ClosureId> adopted;
  int wholes_wanted = 0;
  WorkerAdmission admission{
      Part(),
      {.phases = &phases,
       .claims = &claims,
       .notices = &notices,
       .roster = &roster,
       .reading = &reading,
       .deaths = &deaths,
       .totals = &totals},
      {.knows = [this](ClosureId) { return knows; },
       .adopted = [this](ClosureId closure, Attempt) { adopted.push_back(closure); },
       .want_whole = [this] { ++wholes_wanted; }}};
};

TEST_CASE("a worker that registers is told the job and the map, unless the job ends") {
  const bool ends = GENERATE(false, true);
  Fixture f;
  if (ends) f.phases.Apply(PhaseEvent::kCancelled);
  const v1::Registered registered = f.Admit(7, "0");
  CHECK(registered.has_job() == !ends);
  CHECK(registered.map().shards_size() == (ends ? 0 : 2));
  CHECK(f.roster.Find(TaskId(7)) != nullptr);
  CHECK(f.Take(TaskId(7)).empty());
}

TEST_CASE("a worker that registers again keeps the attempts that are still needed") {
  Fixture f;
  f.Admit(7, "0");
  const v1::HeldAttempt kept = f.Grant(7, "0"), ended = f.Grant(7, "0"), silent = f.Grant(7, "0");
  f.book->OnDone(ClosureId(ended.closure()), client::FromProto<Attempt>(ended.attempt()),
                 f.book->durable().version, f.book->durable().version);
  v1::Hello hello = f.HelloOf(7);
  for (const auto& held : {kept, ended, kept}) *hello.add_attempts() = held;
  v1::HeldAttempt other_job = kept;
  other_job.set_job_uid(99);
  *hello.add_attempts() = other_job;
  const v1::Registered registered = f.Admit(9, "0", FormerTask{TaskId(7)}, hello);
  REQUIRE(registered.adopted_size() == 1);
  CHECK(registered.adopted(0).closure() == kept.closure());
  CHECK(registered.adopted(0).proof().empty());
  CHECK(registered.adopted(0).granted_to().empty());
  CHECK(f.adopted == std::vector<ClosureId>{ClosureId(kept.closure())});
  CHECK(f.HolderOf(kept) == TaskId(9));
  CHECK(f.HolderOf(silent) == TaskId());  // the worker's Hello did not name this attempt
  CHECK(f.roster.Find(TaskId(9))->held.size() == 1);
  CHECK(f.roster.Find(TaskId(7)) == nullptr);
  CHECK(f.host.foreign.empty());
}

TEST_CASE("a worker cannot take over the attempt of another one, nor one without a proof") {
  const bool proved = GENERATE(false, true);
  Fixture f;
  f.Admit(7, "0");
  v1::HeldAttempt held = f.Grant(7, "0");
  v1::Hello hello = f.HelloOf(8);
  if (!proved) {
    f.admission.OnGone(TaskId(7), "killed", false);
    held.set_proof("forged");
  }
  *hello.add_attempts() = held;
  CHECK(f.Admit(8, "1", std::nullopt, hello).adopted_size() == 0);
  CHECK(f.adopted.empty());
  CHECK(f.HolderOf(held) == (proved ? TaskId(7) : TaskId()));
  CHECK(f.host.foreign == std::vector<std::string>{
                              proved ? "Hello with an attempt that another worker holds"
                                     : "Hello with an attempt that was not granted to the worker"});
}

TEST_CASE("an attempt at a closure that was never given out is not adopted") {
  Fixture f;
  f.Admit(7, "0");
  v1::Hello hello = f.HelloOf(7);
  *hello.add_attempts() = f.Grant(7, "0");
  f.knows = false;
  CHECK(f.Admit(9, "0", FormerTask{TaskId(7)}, hello).adopted_size() == 0);
}

TEST_CASE("a reading closure stays with its worker if the attempt is the current one") {
  const bool current = GENERATE(false, true);
  Fixture f;
  f.Admit(7, "0");
  f.reading.Begin(1, MonoTime{0});
  ReadingRound::Closure* const closure = f.reading.Waiting(f.host.Now());
  closure->attempt = Attempt{1, 50};
  closure->worker = TaskId(7);
  v1::Hello hello = f.HelloOf(7);
  v1::HeldAttempt* held = hello.add_attempts();
  held->set_job_uid(f.id.uid.value());
  held->set_kind(v1::EVALUATE);
  held->set_closure(closure->number);
  *held->mutable_attempt() = client::ToProto(Attempt{1, current ? 50u : 49u});
  const v1::Registered registered = f.Admit(9, "0", FormerTask{TaskId(7)}, hello);
  CHECK(registered.adopted_size() == (current ? 1 : 0));
  CHECK(closure->attempt == (current ? Attempt{1, 50} : Attempt{}));
  if (current) CHECK(closure->worker == TaskId(9));
}

TEST_CASE("a newer process in the place of a worker is the death of the former one") {
  const bool died = GENERATE(false, true);
  Fixture f;
  f.Admit(7, "0");
  const v1::HeldAttempt held = f.Grant(7, "0");
  f.Admit(9, "0", FormerTask{TaskId(7), died});
  CHECK(f.Said("death: worker/0: a newer process has its identity") == died);
  CHECK(f.HolderOf(held) == TaskId());
}

TEST_CASE("a worker that was withheld serves the job from its first word on") {
  Fixture f;
  CHECK_FALSE(f.admission.Ready(TaskId(7)));
  f.Admit(7, "0");
  f.admission.Withhold(TaskId(7));
  CHECK(f.admission.Ready(TaskId(7)));
  CHECK_FALSE(f.roster.Usable(*f.roster.Find(TaskId(7)), f.host.Now()));
  CHECK(f.wholes_wanted == 0);
  CHECK(f.admission.Speaks(TaskId(7)));
  CHECK(f.roster.Usable(*f.roster.Find(TaskId(7)), f.host.Now()));
  CHECK(f.wholes_wanted == 1);
  CHECK_FALSE(f.admission.Speaks(TaskId(7)));
}

TEST_CASE("the work of a worker that is gone can be granted again, and an event counts it") {
  Fixture f;
  f.Admit(7, "0");
  const v1::HeldAttempt first = f.Grant(7, "0"), second = f.Grant(7, "0");
  CHECK(f.admission.OnGone(TaskId(7), "killed", false));
  CHECK_FALSE(f.admission.OnGone(TaskId(7), "killed", false));
  CHECK(f.Said("requeue: worker/0 is gone: 2 closures are granted again"));
  CHECK(f.Said("death: worker/0: killed"));
  CHECK(f.HolderOf(first) == TaskId());
  CHECK(f.HolderOf(second) == TaskId());
}

TEST_CASE("a worker that goes to another job gives its work back, and no event says so") {
  Fixture f;
  f.Admit(7, "0");
  const v1::HeldAttempt held = f.Grant(7, "0");
  CHECK(f.admission.Release(TaskId(7)));
  CHECK_FALSE(f.admission.Release(TaskId(7)));
  CHECK(f.HolderOf(held) == TaskId());
  CHECK(f.said.empty());
}

TEST_CASE("the notice of a worker that leaves is an event once, and not of an ended job") {
  Fixture f;
  CHECK_FALSE(f.admission.OnLeaving(TaskId(7), "spot"));
  f.Admit(7, "0");
  CHECK(f.admission.OnLeaving(TaskId(7), "spot"));
  CHECK(f.admission.OnLeaving(TaskId(7), "spot"));
  CHECK(f.said == std::vector<std::string>{"drain: worker/0 leaves: spot"});
  CHECK_FALSE(f.roster.Usable(*f.roster.Find(TaskId(7)), f.host.Now()));
  f.Admit(8, "1");
  for (const PhaseEvent event :
       {PhaseEvent::kCancelled, PhaseEvent::kFinished, PhaseEvent::kWritten})
    f.phases.Apply(event);
  CHECK(f.admission.OnLeaving(TaskId(8), "spot"));
  CHECK(f.said.size() == 1);
}

TEST_CASE("a worker that backs off after deaths gets no work before the later of both ends") {
  Fixture f;
  v1::Registered registered;
  f.admission.Admit(TaskId(7), "0", f.host.Now() + seconds(3), std::nullopt, f.HelloOf(7),
                    &registered);
  f.admission.Ready(TaskId(7));
  CHECK_FALSE(f.roster.Usable(*f.roster.Find(TaskId(7)), f.host.Now() + seconds(2)));
  CHECK(f.roster.Usable(*f.roster.Find(TaskId(7)), f.host.Now() + seconds(3)));
}

}  // namespace
}  // namespace evergrad::coordinator
