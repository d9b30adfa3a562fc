// The work of a training job and the job's workers 7 and 8, without a Job object. The shards are
// placed.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "coordinator/jobs/job_kind.h"
#include "coordinator/jobs/training_work.h"
#include "reading_fixture.h"

namespace evergrad::coordinator {

struct WorkFixture : ReadingFixture {
  explicit WorkFixture(const MemoryStateStore::Options& store = {}) : ReadingFixture(store) {
    id.spec.type = "training";
    Place();
    epochs.SetPlan(&*plan);
    epochs.BeginPlan();
    source = JobKind::Of(id.spec).MakeSource(
        Part(),
        {.epochs = &epochs,
         .totals = &tasks,
         .rounds = &rounds,
         .claims = &claims,
         .journal = &journal,
         .grants = &training,
         .account_context = [this] { return EpochAccount::Context{host.Now()}; },
         .revoke = [](ClosureId, const ClosureBook::Current&) {},
         .calls = {.refusal = [] { return absl::OkStatus(); }, .waiting_for = [] { return ""; }}});
    source->UpdateNewLimit();
    AddWorker(7);
    AddWorker(8);
  }
  JobWorker& worker(std::uint64_t task) { return roster.workers().at(TaskId(task)); }
  // Grants closures to worker 7 alone, because worker 8 is not ready meanwhile. Returns the first
  // grant.
  v1::Grant Hold() {
    worker(8).ready = false;
    source->Grant(granter, roster.workers());
    worker(8).ready = true;
    v1::Grant grant;
    for (const v1::CoordinatorMessage& message : Take(TaskId(7))) {
      if (message.has_grant() && !grant.has_attempt()) grant = message.grant();
    }
    REQUIRE(grant.attempt().n() != 0);
    said.clear();
    return grant;
  }
  // Returns whether the closure of `grant` has no running attempt, so that it may be granted again.
  bool IsFree(const v1::Grant& grant) const {
    return book->current().count(ClosureId(grant.closure())) == 0;
  }
  EventLog events{10};
  TaskTotals tasks;
  CheckpointRounds rounds{
      Part(), &epochs, {.round_ended = [] {}, .saved = [](const auto&) {}, .over = [] {}}};
  WorkerClaims claims{Part(), &epochs};
  MetricsFile lines{&host, "/runs/part", [](absl::string_view, const std::string&) {}};
  JournalWriter journal{&host, &options, JobUid(0xabc), &lines, [](v1::JobCounters*) {}};
  DeathWatch deaths{Part(), &events, [](ClosureId) { return ""; }};
  DoneTurn turn{Part()};
  ClosureTotals totals{Part()};
  std::unique_ptr<ClosureSource> source;
  TrainingWork training{Part(),
                        {.roster = &roster,
                         .claims = &claims,
                         .deaths = &deaths,
                         .turn = &turn,
                         .journal = &journal,
                         .totals = &totals,
                         .source = &source}};
  Granter granter;
};

}  // namespace evergrad::coordinator
