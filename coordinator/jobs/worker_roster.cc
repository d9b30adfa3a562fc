#include "coordinator/jobs/worker_roster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/reach_rule.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::seconds kPausesSaidEvery{10};
constexpr std::size_t kHostBytesMax = 256;
constexpr std::size_t kTextBytesMax = 500;
constexpr std::size_t kBackoffsNamedMax = 4;
constexpr std::size_t kWaitsBytesMax = 512, kAwaitsBytesMax = 128;

bool Stalls(const JobWorker& worker, MonoTime now) {
  return worker.stuck || worker.aside_until > now;
}

void AddTo(std::string* list, absl::string_view one) {
  absl::StrAppend(list, list->empty() ? "" : ", ", one);
}

}  // namespace

WorkerRoster::WorkerRoster(const JobPart& part, const EpochAccount* epochs)
    : JobPart(part), epochs_(epochs), unfit_(options_.aside_max) {}

JobWorker* WorkerRoster::Find(TaskId task) {
  const auto found = workers_.find(task);
  return found == workers_.end() ? nullptr : &found->second;
}

// ---------------------------------------------------------------- workers that come and go

JobWorker WorkerRoster::Make(TaskId task, const std::string& identity, MonoTime backoff_until,
                             const v1::Hello& hello) const {
  JobWorker worker;
  worker.task = task;
  worker.identity = identity;
  worker.host = client::CleanText(hello.host(), kHostBytesMax);
  worker.backoff_until = backoff_until;
  worker.last_done = worker.advanced_at = host_->Now();
  worker.process = hello.process_uid();
  worker.compute = absl::StrCat(hello.build_id(), " ", hello.compute());
  worker.functions.insert(hello.functions().begin(), hello.functions().end());
  return worker;
}

void WorkerRoster::Replace(const JobWorker& former, bool counted, JobWorker* worker) {
  worker->rate = former.rate;
  if (worker->process != former.process) return Forget(former, counted);
  worker->progress = former.progress;  // kept until the worker's next report
  worker->stuck = former.stuck;
  worker->aside_until = former.aside_until;
}

void WorkerRoster::Forget(const JobWorker& worker, bool counted) {
  if (UnfitOf(worker) == nullptr && counted) fit_left_ = host_->Now();
  unfit_.Forget(worker.process);
}

void WorkerRoster::OnProgress(JobWorker* worker, const v1::WorkerProgress& said) {
  v1::WorkerProgress& progress = worker->progress;
  if (client::FromProto<Attempt>(said.running_attempt()) !=
          client::FromProto<Attempt>(progress.running_attempt()) ||
      said.running_step() != progress.running_step()) {
    worker->advanced_at = host_->Now();
  }
  if (worker->stuck && !said.computing()) {
    worker->stuck = false;
    job_.Event("stall", absl::StrCat("worker/", worker->identity,
                                     " has stopped computing and may be given work again"));
  }
  if (said.steps() != progress.steps()) job_.Touch();
  progress = said;
  progress.clear_device();
  progress.clear_steps_log();  // Curves are made from accepted Dones.
  progress.set_state(client::CleanText(said.state(), 64));
  ReachRule::Clean(progress.mutable_unreached());
  progress.set_awaits(client::CleanText(said.awaits(), kAwaitsBytesMax));
  progress.set_waiting_for(worker->paused() ? client::CleanText(said.waiting_for(), kWaitsBytesMax)
                                            : std::string());
}

// ---------------------------------------------------------------- work

bool WorkerRoster::Usable(const JobWorker& worker, MonoTime now) const {
  return worker.ready && !worker.silent && !worker.called_back && !worker.leaving &&
         !worker.stuck && worker.backoff_until <= now && worker.aside_until <= now &&
         !unfit_.IsAside(worker.process, now);
}

bool WorkerRoster::Holds(TaskId task) const {
  const auto found = workers_.find(task);
  return found != workers_.end() && (!found->second.held.empty() || found->second.stuck);
}

std::uint32_t WorkerRoster::Busy(std::chrono::milliseconds while_) const {
  const MonoTime now = host_->Now();
  std::uint32_t busy = 0;
  for (const auto& [task, worker] : workers_)
    busy += !worker.held.empty() || now - worker.last_done < while_;
  return busy;
}

std::chrono::milliseconds WorkerRoster::BacksOffFor(TaskId task) const {
  const auto found = workers_.find(task);
  if (found == workers_.end()) return std::chrono::milliseconds(0);
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::duration_cast<std::chrono::milliseconds>(
                      found->second.backoff_until - host_->Now()));
}

WorkerPin::Choice WorkerRoster::Pinned() {
  if (!id_.spec.strategy.deterministic) return {};
  const MonoTime now = host_->Now();
  return {true,
          pin_.Choose(
              workers_, unfit_, [&](const JobWorker& worker) { return Usable(worker, now); },
              [this](absl::string_view kind, const std::string& text) { job_.Event(kind, text); })};
}

void WorkerRoster::Recall(JobWorker* worker, Attempt attempt, JobWorker::Held* held) {
  held->recalled = true;
  ++worker->recalled;
  v1::CoordinatorMessage message;
  v1::Recall* recall = message.mutable_recall();
  recall->set_job_uid(id_.uid.value());
  recall->set_closure(held->closure.value());
  *recall->mutable_attempt() = client::ToProto(attempt);
  host_->Send(worker->task, message);
}

void WorkerRoster::RecallAll(JobWorker* worker) {
  for (auto& [attempt, held] : worker->held) {
    if (!held.recalled) Recall(worker, attempt, &held);
  }
}

void WorkerRoster::TakeAll(JobWorker* worker) {
  worker->DropAll();
  worker->advanced_at = host_->Now();
  worker->stuck = worker->progress.computing();
}

std::vector<TaskId> WorkerRoster::Stalled(bool window_open) {
  const MonoTime now = host_->Now();
  if (options_.step_timeout.count() == 0 || now < next_stall_check_) return {};
  next_stall_check_ =
      now + std::min<std::chrono::milliseconds>(options_.step_timeout / 8, std::chrono::seconds(1));
  const bool server_missing =
      shards_.placed() &&
      (!shards_.AllHeld() || std::any_of(shards_.servers().begin(), shards_.servers().end(),
                                         [](const auto& s) { return !s.second.ready; }));
  std::vector<TaskId> stalled;
  for (auto& [task, worker] : workers_) {
    if (worker.held.empty() || !worker.ready || server_missing || window_open || worker.paused())
      worker.advanced_at = now;
    if (now - worker.advanced_at >= options_.step_timeout) stalled.push_back(task);
  }
  return stalled;
}

// ---------------------------------------------------------------- workers that cannot take part

// Returns whether no worker is known to be able to run the job. A worker that has just registered
// counts as able.
bool WorkerRoster::NobodyFits() const {
  return elsewhere_ == 0 && std::all_of(workers_.begin(), workers_.end(), [&](const auto& one) {
           const JobWorker& worker = one.second;
           return worker.leaving || worker.called_back || UnfitOf(worker) != nullptr;
         });
}

bool WorkerRoster::SetAside(JobWorker& worker, const v1::Failed& failed, bool has_callers) {
  const MonoTime now = host_->Now();
  const UnfitWorkers::Change change =
      unfit_.Add(worker.process, failed.lack(), failed.cause().message(), now);
  if (change.aside) RecallAll(&worker);
  if (change.news) {
    job_.Event("warning",
               absl::StrCat("worker/", worker.identity,
                            " cannot take part in the job and is tried again from time to time: ",
                            unfit_.Of(worker.process)->why));
    job_.Touch();
  }
  // No result depends on the worker yet.
  if (epochs_->succeeded() == 0) pin_.Release(worker.identity);
  if (!NobodyFits()) return true;
  const bool repair =
      failed.kind() == v1::TRAIN && !failed.all_targets() && failed.lack() == v1::INPUT;
  if (plan_ && !has_callers && !repair) return true;
  if (plan_ && !has_callers && fit_left_ && now < *fit_left_ + options_.server_lost_after) {
    unfit_.TryAgainBy(worker.process, *fit_left_ + options_.server_lost_after);
    return true;
  }
  // The worker is tried again at once, because another failure may end the job.
  unfit_.TryAgainBy(worker.process, now);
  return false;
}

// ---------------------------------------------------------------- texts and views

std::string WorkerRoster::WaitingFor() const {
  const MonoTime now = host_->Now();
  bool ready = false, usable = false;
  std::string stalled, unfit;
  for (const auto& [task, worker] : workers_) {
    const UnfitWorkers::Record* const record = UnfitOf(worker);
    const bool here = worker.ready && !worker.leaving;
    ready |= here;
    usable |= Usable(worker, now) && record == nullptr;
    if (record != nullptr && here && unfit.size() < kTextBytesMax)
      AddTo(&unfit, absl::StrCat("worker/", worker.identity, " (", record->why, ")"));
    if (Stalls(worker, now)) AddTo(&stalled, absl::StrCat("worker/", worker.identity));
  }
  if (!ready && elsewhere_ == 0) return "workers: none is connected";
  if (!ready)
    return absl::StrCat("workers: ",
                        elsewhere_ == 1
                            ? "the only connected worker serves"
                            : absl::StrCat("all ", elsewhere_, " connected workers serve"),
                        " other jobs now");
  if (!usable && !unfit.empty())
    return absl::StrCat("workers: none of the connected workers can take part in the job: ", unfit);
  if (!usable && !stalled.empty())
    return absl::StrCat("workers: set aside because they made no progress: ", stalled);
  if (!usable) return absl::StrCat("workers: ", WaitingForBackoffs());
  if (pin_.waits())
    return absl::StrCat("workers: a deterministic job continues only with worker/", pin_.identity(),
                        " or a worker with the same build and settings: ", pin_.compute());
  return "";
}

// Returns the text of the wait if no worker is usable and none is unfit or set aside.
std::string WorkerRoster::WaitingForBackoffs() const {
  const MonoTime now = host_->Now();
  std::string text;
  std::size_t backing_off = 0;
  for (const auto& [task, worker] : workers_) {
    if (!worker.ready || worker.leaving || worker.backoff_until <= now ||
        backing_off++ >= kBackoffsNamedMax)
      continue;
    const double seconds = std::chrono::duration<double>(worker.backoff_until - now).count();
    AddTo(&text, absl::StrCat("worker/", worker.identity, " for ", absl::StrFormat("%.1f", seconds),
                              " s"));
  }
  if (backing_off == 0) return "the connected workers have sent no report since they registered";
  return absl::StrCat("the connected workers back off after repeated deaths: ", text,
                      backing_off > kBackoffsNamedMax ? ", …" : "");
}

// Paused workers exist only with `on_over_budget: pause`.
std::string WorkerRoster::WaitingForPauses() const {
  std::string text;
  std::size_t waiting = 0;
  for (const auto& [task, worker] : workers_) {
    if (!worker.paused()) continue;
    if (waiting++ == 0)
      text = absl::StrCat(worker.progress.waiting_for(), " (worker/", worker.identity);
  }
  if (waiting == 0) return "";
  return absl::StrCat(text, waiting == 1 ? "" : absl::StrCat(" and ", waiting - 1, " more"), ")");
}

void WorkerRoster::TellPauses(absl::string_view gone) {
  const JobWorker* waits = nullptr;
  for (const auto& [task, worker] : workers_) {
    if (worker.paused()) waits = &worker;
  }
  const MonoTime now = host_->Now();
  if (waits != nullptr && !pause_said_ &&
      (!pause_said_at_ || now >= *pause_said_at_ + kPausesSaidEvery)) {
    pause_said_ = true;
    pause_said_at_ = now;
    job_.Event("warning", absl::StrCat("paused (on_over_budget: pause): worker/", waits->identity,
                                       " waits for ", waits->progress.waiting_for()));
  } else if (waits == nullptr && pause_said_) {
    pause_said_ = false;
    job_.Event("state", gone.empty()
                            ? "resumed: no push waits for memory any more"
                            : absl::StrCat("no push waits for memory any more: worker/", gone,
                                           ", whose push waited, has left this job"));
  }
}

void WorkerRoster::FillStatus(std::map<std::string, v1::WorkerRow> rows,
                              v1::JobStatus* status) const {
  for (const auto& [task, worker] : workers_) FillRow(worker, &rows[worker.identity]);
  for (const auto& [identity, row] : rows) *status->add_workers() = row;
}

void WorkerRoster::FillRow(const JobWorker& worker, v1::WorkerRow* row) const {
  const UnfitWorkers::Record* const unfit = UnfitOf(worker);
  row->set_identity(worker.identity);
  row->set_state(worker.leaving                    ? "leaving"
                 : !worker.ready                   ? "away"
                 : Stalls(worker, host_->Now())    ? "stalled"
                 : unfit != nullptr                ? "unfit"
                 : worker.progress.state().empty() ? "idle"
                                                   : worker.progress.state());
  row->set_closure(worker.progress.running_closure());
  *row->mutable_unreached() = worker.progress.unreached();
  if (unfit != nullptr && unfit->unreached && row->unreached().empty())
    *row->add_unreached() = *unfit->unreached;
}

}  // namespace evergrad::coordinator
