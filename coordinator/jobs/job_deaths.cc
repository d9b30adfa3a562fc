// What follows for a job from the death of a task: which closure is to blame, whether the job gets
// further at all, and who gets no work for a while.
#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kBackoffsShownMax = 64;  // in a status

double Seconds(MonoTime span) { return std::max(0.0, std::chrono::duration<double>(span).count()); }

}  // namespace

// ---------------------------------------------------------------- who has said nothing yet

void Job::Withhold(TaskId task) {
  if (Worker* worker = FindWorker(task)) worker->silent = true;
}

void Job::Speaks(TaskId task) {
  Worker* worker = FindWorker(task);
  if (worker == nullptr || !std::exchange(worker->silent, false)) return;
  BeginTotals(*worker);
  Pump();
}

void Job::BeginTotals(const Worker& worker) {
  if (totals_.BeginWorker(worker.identity, worker.process)) journal_.WantWhole();
}

void Job::Warn(const std::string& text) {
  if (active()) Event("warning", text);
}

// ---------------------------------------------------------------- a death

void Job::OnDeath(Role role, const std::string& identity, absl::string_view reason, bool leaving,
                  const Worker* worker, const std::string& host) {
  if (!active()) return;
  if (worker != nullptr && worker->silent)
    return;  // it was given nothing; the coordinator's log and metrics tell of it
  const std::string name = absl::StrCat(RoleName(role), "/", identity);
  if (leaving) {
    Event("state", absl::StrCat(name, " left: ", reason));
    return;
  }
  events_.CountDeath();
  CreditServers();  // by who owned what before this death
  const MonoTime now = host_->Now();
  const bool held_work = worker != nullptr
                             ? !worker->held.empty()
                             : book_ && shards_.placed() && !book_->ShardsOf(identity).empty();
  const bool kept_from_work = worker != nullptr ? worker->backoff_until > now : DiesIdle(identity);
  if (!held_work && kept_from_work) {
    // A process that dies several times a second must not push everything else out of the events.
    death_backoff_.OnIdleDeath(now, role, identity);
    Touch();
    return;
  }
  events_.AddDeath({role, identity, std::string(reason), host_->WallMillis()}, NoteIfJournaled());
  std::optional<PoisonRule::Running> running;
  if (worker != nullptr && worker->progress.state() == "running") {
    const Attempt attempt = client::FromProto<Attempt>(worker->progress.running_attempt());
    const auto held = worker->held.find(attempt);
    if (held != worker->held.end() && held->second.kind == v1::TRAIN &&
        held->second.closure.value() == worker->progress.running_closure()) {
      running = PoisonRule::Running{held->second.closure, worker->progress.running_step()};
    }
  }
  poison_.OnDeath(now, running, held_work);
  if (running)
    SayNotReproducible(absl::StrCat(name, " died in closure ", running->closure.value(),
                                    " at step ", running->step));
  Event("death",
        absl::StrCat(name, ": ", reason,
                     running ? absl::StrCat("; it last reported closure ", running->closure.value(),
                                            " step ", running->step)
                             : ""));
  if (!held_work) return;
  if (const DeathBackoff::Record* record =
          death_backoff_.OnDeath(now, role, identity, reason, host))
    SayBacksOff(*record);
}

void Job::SayBacksOff(const DeathBackoff::Record& record) {
  Event("warning",
        absl::StrFormat("%s/%s has died %d times in a row while it held work of this job, without "
                        "completing any: it "
                        "gets no work for %.3g s (last death%s: %s)",
                        RoleName(record.role), record.identity, record.deaths,
                        Seconds(record.until - host_->Now()),
                        record.host.empty() ? "" : absl::StrCat(" on host ", record.host),
                        record.reason));
}

void Job::JudgeDeaths() {
  CreditServers();
  if (std::exchange(repairs_ended_, false) && book_)
    death_limit_.OnLeft(DeathLimit::Again::kRepairs, book_->RepairsLeft());
  const PoisonRule::Verdict verdict = poison_.Judge(host_->Now());
  death_limit_.OnDeaths(verdict.others);
  if (verdict.others > 0) journal_.Note();  // carries the count
  if (grants_stopped()) return;
  if (verdict.poison) {
    const std::uint64_t c = verdict.poison->closure.value();
    Fail(MakeError(
             absl::InternalError(absl::StrCat(
                 "poison closure: it killed its workers again and again at the same step: closure=",
                 c, source_->NameOf(verdict.poison->closure), " step=", verdict.poison->step,
                 " deaths=", options_.poison_deaths,
                 " (a worker that stood "
                 "still for step_timeout counts as one)")),
             "poison", ""),
         false);
  } else if (death_limit_.deaths() > options_.deaths_max) {
    Fail(MakeError(absl::ResourceExhaustedError(
                       absl::StrCat("tasks that held work of the job died repeatedly, and the job "
                                    "made no progress meanwhile (--deaths-max): deaths=",
                                    death_limit_.deaths(), " max=", options_.deaths_max)),
                   "limit", ""),
         false);
  }
}

// ---------------------------------------------------------------- who gets no work for a while

bool Job::DiesIdle(const std::string& server) const {
  return death_backoff_.Counts(host_->Now(), Role::kPsServer, server) &&
         (!book_ || !shards_.placed() || book_->ShardsOf(server).empty());
}

// Once for all closures that have ended together: it looks at every shard.
void Job::CreditServers() {
  if (!std::exchange(servers_served_, false) || !book_ || death_backoff_.size() == 0) return;
  std::set<std::string> owners;
  for (const ShardOwner& owner : book_->durable().map) owners.insert(owner.server);
  death_backoff_.OnProgressOf(Role::kPsServer, owners);
}

void Job::FillBackoffs(v1::JobStatus* status) const {
  const MonoTime now = host_->Now();
  const auto add = [&](Role role, const std::string& identity, MonoTime until) {
    v1::TaskBackoff* row = status->add_backing_off();
    row->set_task(absl::StrCat(RoleName(role), "/", identity));
    row->set_for_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(
        0, std::chrono::duration_cast<std::chrono::milliseconds>(until - now).count())));
    return row;
  };
  std::map<std::string, MonoTime>
      living;  // workers that membership's own rule, or this one, keeps from work
  for (const auto& [task, worker] : workers_) {
    if (worker.backoff_until > now) living[worker.identity] = worker.backoff_until;
  }
  for (const DeathBackoff::Record& record : death_backoff_.Shown(now)) {
    if (static_cast<std::size_t>(status->backing_off_size()) == kBackoffsShownMax) return;
    MonoTime until = record.until;
    if (record.role == Role::kWorker) {
      if (const auto here = living.extract(record.identity); !here.empty())
        until = std::max(until, here.mapped());
    }
    v1::TaskBackoff* row = add(record.role, record.identity, until);
    row->set_deaths(record.deaths);
    row->set_idle_deaths(record.idle_deaths);
    row->set_reason(record.reason);
    row->set_host(record.host);
  }
  for (const auto& [identity, until] : living) {
    if (static_cast<std::size_t>(status->backing_off_size()) == kBackoffsShownMax) return;
    add(Role::kWorker, identity, until)
        ->set_reason("its processes were replaced or ended soon after their start");
  }
}

}  // namespace evergrad::coordinator
