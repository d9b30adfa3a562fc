#include "coordinator/jobs/death_watch.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr int kBackoffsShownMax = 64;  // largest number of tasks in one status

double Seconds(MonoTime span) { return std::max(0.0, std::chrono::duration<double>(span).count()); }

}  // namespace

DeathWatch::DeathWatch(const JobPart& part, EventLog* events,
                       std::function<std::string(ClosureId)> name_of)
    : JobPart(part),
      events_(events),
      name_of_(std::move(name_of)),
      poison_({options_.poison_deaths, options_.together}),
      backoff_(options_.death_backoff) {}

// ---------------------------------------------------------------- a death

bool DeathWatch::HoldsShards(const std::string& server) const {
  return book_ && shards_.placed() && !book_->ShardsOf(server).empty();
}

// Returns the closure that the worker last reported as running, if the worker holds it.
std::optional<PoisonRule::Running> DeathWatch::RunningOf(const JobWorker* worker) const {
  if (worker == nullptr || worker->progress.state() != "running") return std::nullopt;
  const auto held =
      worker->held.find(client::FromProto<Attempt>(worker->progress.running_attempt()));
  if (held == worker->held.end() || held->second.kind != v1::TRAIN ||
      held->second.closure.value() != worker->progress.running_closure())
    return std::nullopt;
  return PoisonRule::Running{held->second.closure, worker->progress.running_step()};
}

void DeathWatch::OnDeath(Role role, const std::string& identity, absl::string_view reason,
                         bool leaving, const JobWorker* worker, const std::string& host) {
  // A worker that never sent a message after its Hello has never had work. The coordinator's log
  // and metrics report its end.
  if (worker != nullptr && worker->silent) return;
  const std::string name = absl::StrCat(RoleName(role), "/", identity);
  if (leaving) return job_.Event("state", absl::StrCat(name, " left: ", reason));
  events_->CountDeath();
  CreditServers();  // Called before this death changes which servers own shards.
  const MonoTime now = host_->Now();
  const bool held_work = worker != nullptr ? !worker->held.empty() : HoldsShards(identity);
  const bool kept_from_work = worker != nullptr ? worker->backoff_until > now : DiesIdle(identity);
  if (!held_work && kept_from_work) {
    // A process that dies several times per second must not displace all other events.
    backoff_.OnIdleDeath(now, role, identity);
    job_.Touch();
    return;
  }
  events_->AddDeath({role, identity, std::string(reason), host_->WallMillis()},
                    job_.NoteIfJournaled());
  const std::optional<PoisonRule::Running> running = RunningOf(worker);
  poison_.OnDeath(now, running, held_work);
  if (running)
    job_.SayNotReproducible(absl::StrCat(name, " died in closure ", running->closure.value(),
                                         " at step ", running->step));
  job_.Event("death",
             absl::StrCat(name, ": ", reason,
                          running ? absl::StrCat("; it last reported closure ",
                                                 running->closure.value(), " step ", running->step)
                                  : ""));
  if (!held_work) return;
  if (const DeathBackoff::Record* record = backoff_.OnDeath(now, role, identity, reason, host))
    SayBacksOff(*record);
}

void DeathWatch::SayBacksOff(const DeathBackoff::Record& record) {
  job_.Event("warning",
             absl::StrFormat(
                 "%s/%s has died %d times in a row while it held work of this job, without "
                 "completing any: the task gets no work for %.3g s (last death%s: %s)",
                 RoleName(record.role), record.identity, record.deaths,
                 Seconds(record.until - host_->Now()),
                 record.host.empty() ? "" : absl::StrCat(" on host ", record.host), record.reason));
}

void DeathWatch::Judge() {
  CreditServers();
  if (std::exchange(repairs_ended_, false) && book_)
    limit_.OnLeft(DeathLimit::Again::kRepairs, book_->RepairsLeft());
  const PoisonRule::Verdict verdict = poison_.Judge(host_->Now());
  limit_.OnDeaths(verdict.others);
  if (verdict.others > 0) job_.NoteIfJournaled();  // Makes the next commit contain the count.
  if (job_.grants_stopped()) return;
  if (verdict.poison) {
    job_.Fail(MakeError(absl::InternalError(absl::StrCat(
                            "poison closure: the closure repeatedly killed its workers at the same "
                            "step: closure=",
                            verdict.poison->closure.value(), name_of_(verdict.poison->closure),
                            " step=", verdict.poison->step, " deaths=", options_.poison_deaths,
                            " (a worker that stalled for step_timeout counts as a death)")),
                        "poison", ""),
              false);
  } else if (limit_.deaths() > options_.deaths_max) {
    job_.Fail(MakeError(absl::ResourceExhaustedError(absl::StrCat(
                            "tasks that held work of the job died repeatedly, and the job made no "
                            "progress meanwhile (--deaths-max): deaths=",
                            limit_.deaths(), " max=", options_.deaths_max)),
                        "limit", ""),
              false);
  }
}

// ---------------------------------------------------------------- progress

void DeathWatch::OnDescribed() { limit_.OnFirstSuccess(); }

void DeathWatch::OnFirstSuccess() {
  limit_.OnFirstSuccess();
  servers_served_ = true;
}

void DeathWatch::OnWorkerProgress(const std::string& worker) {
  backoff_.OnProgress(Role::kWorker, worker);
}

// Clears the records of every owner of a shard, because all of them have served the closures that
// have ended. This method visits every shard, so it is called once for all closures of a turn.
void DeathWatch::CreditServers() {
  if (!std::exchange(servers_served_, false) || !book_ || backoff_.size() == 0) return;
  std::set<std::string> owners;
  for (const ShardOwner& owner : book_->durable().map) owners.insert(owner.server);
  backoff_.OnProgressOf(Role::kPsServer, owners);
}

// ---------------------------------------------------------------- questions

bool DeathWatch::DiesIdle(const std::string& server) const {
  return backoff_.Counts(host_->Now(), Role::kPsServer, server) && !HoldsShards(server);
}

void DeathWatch::FillStatus(const JobWorkers& workers, v1::JobStatus* status) const {
  const MonoTime now = host_->Now();
  const auto add = [&](Role role, const std::string& identity, MonoTime until) {
    v1::TaskBackoff* row = status->add_backing_off();
    row->set_task(absl::StrCat(RoleName(role), "/", identity));
    row->set_for_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(
        0, std::chrono::duration_cast<std::chrono::milliseconds>(until - now).count())));
    return row;
  };
  // Connected workers that get no work now, because of membership or of DeathBackoff.
  std::map<std::string, MonoTime> connected;
  for (const auto& [task, worker] : workers) {
    if (worker.backoff_until > now) connected[worker.identity] = worker.backoff_until;
  }
  for (const DeathBackoff::Record& record : backoff_.Shown(now)) {
    if (status->backing_off_size() == kBackoffsShownMax) return;
    MonoTime until = record.until;
    if (record.role == Role::kWorker) {
      if (const auto here = connected.extract(record.identity); !here.empty())
        until = std::max(until, here.mapped());
    }
    v1::TaskBackoff* row = add(record.role, record.identity, until);
    row->set_deaths(record.deaths);
    row->set_idle_deaths(record.idle_deaths);
    row->set_reason(record.reason);
    row->set_host(record.host);
  }
  for (const auto& [identity, until] : connected) {
    if (status->backing_off_size() == kBackoffsShownMax) return;
    add(Role::kWorker, identity, until)
        ->set_reason("its processes were replaced or ended soon after their start");
  }
}

void DeathWatch::FillCounters(v1::JobCounters* counters) const {
  counters->set_other_deaths(limit_.deaths());
}

void DeathWatch::ReadCounters(const v1::JobCounters& counters) {
  limit_.Restore(counters.other_deaths());
}

}  // namespace evergrad::coordinator
