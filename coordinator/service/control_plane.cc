#include "coordinator/service/control_plane.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <google/protobuf/arena.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"
#include "coordinator/closures/term_rule.h"

namespace evergrad::coordinator {

namespace {

// Counts one call in progress until it is destroyed, whether the call was answered or not.
class CountedResponder final : public transport::UnaryResponder {
 public:
  CountedResponder(std::unique_ptr<transport::UnaryResponder> inner,
                   std::shared_ptr<std::atomic<std::uint32_t>> calls)
      : inner_(std::move(inner)), calls_(std::move(calls)) {}
  ~CountedResponder() override { calls_->fetch_sub(1); }
  void Answer(absl::StatusOr<std::string> response) override {
    inner_->Answer(std::move(response));
  }

 private:
  std::unique_ptr<transport::UnaryResponder> inner_;
  // Shared with every call, because a call may outlive the control plane.
  std::shared_ptr<std::atomic<std::uint32_t>> calls_;
};

// Counts the batches of one session that are not handled yet. Shared by the session's callbacks.
struct Inbox {
  std::atomic<std::uint32_t> queued{0};
  std::atomic<bool> overflowed{false};
};

// A batch that the transport's thread parses and the control executor uses. Its parts are in a few
// blocks of memory, which are freed together.
struct ParsedBatch {
  google::protobuf::Arena arena;
  v1::TaskBatch* const batch = google::protobuf::Arena::CreateMessage<v1::TaskBatch>(&arena);
};

ControlOptions WithDerived(ControlOptions options) {
  options.jobs.server_lost_after = options.membership.server_lost_after;
  return options;
}

}  // namespace

void AnswerWith(transport::UnaryResponder& responder,
                const google::protobuf::MessageLite& message) {
  responder.Answer(message.SerializeAsString());
}

ControlPlane::ControlPlane(ControlOptions options, Parts parts)
    : options_(WithDerived(std::move(options))),
      parts_(parts),
      life_id_(random::EntropyFromOs() | 1),
      store_(parts.store, parts.control, parts.logger),
      gate_(parts.store, options_.gate_bytes_max, [this] { return CommitTurns(); }),
      files_({parts.control, parts.files, parts.clock, parts.logger, parts.registry},
             options_.file_bytes_max),
      membership_(options_.membership),
      sessions_({parts.control, parts.logger, &gate_,
                 [this](std::uint64_t number) { CloseSession(number); },
                 [this] { metrics_.gate.refused.Add(); }}),
      calls_(std::make_shared<std::atomic<std::uint32_t>>(0)),
      job_host_(MakeJobHost()),
      jobs_(options_.jobs_running_max),
      division_host_(MakeDivisionHost()),
      division_(division_host_.get(), options_.share_turn),
      log_reads_({&sessions_, &membership_, parts.logger},
                 {options_.log_lines_max, options_.query_timeout}),
      metrics_{*parts.registry, options_, membership_.registrations().options().all_burst},
      job_gauges_(*parts.registry) {
  store_.Listen([this] { CheckStore(); });
}

absl::Status ControlPlane::Recover() {
  absl::StatusOr<std::vector<JobUid>> stored = parts_.store->ListJobs();
  if (!stored.ok()) return stored.status();
  absl::Status refused;
  for (const JobUid uid : *stored) {
    absl::StatusOr<StoredJob> loaded = parts_.store->LoadJob(uid);
    if (!loaded.ok()) return loaded.status();
    absl::StatusOr<std::unique_ptr<Job>> job =
        Job::Restore(job_host_.get(), options_.jobs, uid, *loaded);
    if (!job.ok()) {
      parts_.logger->Error(job.status().message());
      if (refused.ok()) refused = job.status();
      continue;
    }
    parts_.logger->Info(absl::StrCat("job of the journal: job_uid=", JobUidString(uid), " name=",
                                     (*job)->name(), " state=", JobStateName((*job)->state())));
    // All jobs run that were running according to the journal, whatever --jobs-running-max is in
    // this life.
    if (jobs_.Restore(*std::move(job))) division_.Restore(uid);
  }
  if (refused.ok()) return refused;
  return absl::Status(
      refused.code(),
      absl::StrCat(refused.message(), "; the journal was not changed: ",
                   absl::IsDataLoss(refused)
                       ? ""
                       : "start the version that ran the job, to let it end or to cancel it, or ",
                   "start with another --state-dir (and --forget-unknown-jobs, where parameter "
                   "servers still hold its shards) and submit "
                   "it again (its checkpoints are files of their own)"));
}

transport::Handlers ControlPlane::handlers() {
  transport::Handlers handlers;
  handlers.unary = [this](const transport::PeerInfo& peer, absl::string_view method,
                          std::string request,
                          std::unique_ptr<transport::UnaryResponder> responder) {
    const ControlCall* const call = FindCall(Calls(), method);
    if (call == nullptr) {
      return responder->Answer(
          absl::UnimplementedError(absl::StrCat("unknown method: ", method.substr(0, 200))));
    }
    if (absl::Status status = CheckCaller(*call, peer); !status.ok())
      return responder->Answer(std::move(status));
    if (calls_->fetch_add(1) >= options_.calls_max) {
      calls_->fetch_sub(1);
      metrics_.calls.refused.Add();
      responder->Answer(absl::ResourceExhaustedError(
          absl::StrCat("too many calls in progress: limit=", options_.calls_max)));
      return;
    }
    Responder counted = std::make_shared<CountedResponder>(std::move(responder), calls_);
    const bool posted = parts_.control->Post(
        [this, counted, call, bytes = std::move(request)] { OnUnary(*call, bytes, counted); });
    if (!posted) counted->Answer(absl::UnavailableError("the coordinator is stopping"));
  };
  handlers.stream = [this](const transport::PeerInfo& peer, absl::string_view method,
                           std::shared_ptr<transport::MessageStream> stream)
      -> std::optional<transport::MessageStreamEvents> {
    if (method != client::kSessionMethod) return std::nullopt;
    if (open_sessions_.fetch_add(1) >= options_.membership.tasks_max + 64) {
      open_sessions_.fetch_sub(1);
      metrics_.sessions.refused.Add();
      return std::nullopt;
    }
    const std::uint64_t number = next_session_.fetch_add(1);
    auto inbox = std::make_shared<Inbox>();
    if (!parts_.control->Post(
            [this, number, peer, stream] { OpenSession(number, peer, stream); })) {
      open_sessions_.fetch_sub(1);
      return std::nullopt;
    }
    transport::MessageStreamEvents events;
    events.on_message = [this, number, inbox](std::string bytes) {
      if (inbox->overflowed.load()) return;
      if (inbox->queued.fetch_add(1) >= options_.batches_queued_max) {
        inbox->overflowed.store(true);
        parts_.control->Post([this, number] {
          Reject(number, "limit", "too many messages waiting to be handled", false,
                 options_.membership.lease);
        });
        return;
      }
      // The batch is parsed here, so that the control executor does not wait for the parser.
      auto parsed = std::make_shared<ParsedBatch>();
      const bool well = parsed->batch->ParseFromString(bytes);
      parts_.control->Post([this, number, inbox, parsed, well] {
        inbox->queued.fetch_sub(1);
        OnBatch(number, well ? parsed->batch : nullptr);
      });
    };
    events.on_end = [this, number](const absl::Status&) {
      parts_.control->Post([this, number] { OnStreamEnd(number); });
    };
    return events;
  };
  return handlers;
}

void ControlPlane::Start(std::string advertised_address, std::string metrics_address) {
  address_ = std::move(advertised_address);
  metrics_address_ = std::move(metrics_address);
  started_ms_ = WallMillis();
  highest_reported_ = parts_.store->term().value();
  window_until_ = Now() + options_.window;
  if (options_.window.count() == 0) EndWindow();
  Tick();
}

void ControlPlane::Stop() {
  stopped_ = true;
  v1::CoordinatorBatch batch;
  batch.add_messages()->mutable_stopping();
  for (const std::uint64_t number : sessions_.Numbers()) {
    sessions_.Flush(number);
    // A draining server must learn that it need not wait for this coordinator.
    if (const Session* session = sessions_.Find(number);
        session->registered() && session->role == Role::kPsServer)
      sessions_.SendBytes(number, batch.SerializeAsString());
  }
  open_sessions_.fetch_sub(static_cast<std::uint32_t>(sessions_.size()));
  sessions_.RemoveAll();
  job_waiters_.Clear();  // the destructor of each call answers it
  for (const EarlyCall& call : std::exchange(early_calls_, {}))
    call.responder->Answer(absl::UnavailableError("the coordinator is stopping"));
  log_reads_.Stop();
  closure_calls_.Clear();
}

void ControlPlane::ScheduleTick() {
  parts_.control->PostAfter(options_.tick, [this] {
    if (!stopped_) Tick();
  });
}

void ControlPlane::Tick() {
  const MonoTime now = Now();
  CheckStore();
  if (window_open_ && now >= window_until_) EndWindow();
  Apply(membership_.Tick(now));
  for (const std::uint64_t number : sessions_.WithoutHelloSince(now - options_.hello_within))
    Reject(number, "malformed", "no hello in time", false, options_.membership.lease);
  for (auto& [task, facts] : facts_) {
    const TaskEntry* entry = membership_.Find(task);
    if (entry != nullptr && entry->state != facts.last_state) {
      facts.last_state = entry->state;
      facts.since_ms = WallMillis();
    }
  }
  std::erase_if(facts_, [&](const auto& one) { return membership_.Find(one.first) == nullptr; });
  for (Job* job : jobs_.Running()) job->Tick();
  division_.Tick(Now(), !window_open_);
  job_waiters_.Check(Now());
  closure_calls_.Check(Now());
  log_reads_.Check(Now());
  UpdateMetrics();
  ScheduleTick();
}

void ControlPlane::UpdateMetrics() {
  metrics_.tasks.current.Set(membership_.living());
  metrics_.registrations.current.Set(membership_.registrations().recent(Now()));
  metrics_.sessions.current.Set(static_cast<double>(sessions_.size()));
  metrics_.jobs_queued.current.Set(static_cast<double>(jobs_.queued()));
  metrics_.calls.current.Set(calls_->load());
  files_.UpdateMetrics();
  metrics_.gate.current.Set(static_cast<double>(gate_.bytes()));
  // The limits apply to one job, so the metrics show the fullest one.
  std::uint64_t open = 0, behind = 0;
  for (Job* job : jobs_.Running()) {
    open = std::max(open, job->open_closures());
    behind = std::max(behind, job->closures_behind());
    metrics_.closures_behind.refused.Add(job->TakeWindowRefusals());
  }
  metrics_.closures_open.current.Set(static_cast<double>(open));
  metrics_.closures_behind.current.Set(static_cast<double>(behind));
  std::vector<JobGauges::One> numbers;
  for (const Job* job : jobs_.Running()) {
    const JobUid uid = job->uid();
    JobGauges::One& of = numbers.emplace_back();
    of.labels = {{"job", job->name()}, {"job_uid", JobUidString(uid)}};
    of.values = {job->share(),
                 static_cast<double>(division_.workers(uid)),
                 division_.worker_seconds(uid),
                 static_cast<double>(job->steps_done()),
                 static_cast<double>(job->open_closures()),
                 job->checkpoint_age_seconds().value_or(std::numeric_limits<double>::quiet_NaN())};
  }
  job_gauges_.Set(std::move(numbers));
  metrics_.jobs_running.current.Set(static_cast<double>(jobs_.running()));
  metrics_.workers_alive.Set(membership_.Count(Role::kWorker, TaskState::kAlive));
  metrics_.servers_alive.Set(membership_.Count(Role::kPsServer, TaskState::kAlive));
  metrics_.term.Set(static_cast<double>(term_.value()));
}

// ---------------------------------------------------------------- line 18

void ControlPlane::EndWindow() {
  if (life_over_ || (!term_known_ && EndsForLostJobs())) return;
  window_open_ = false;
  if (!term_known_) {
    const Term term = FirstTerm(parts_.store->term(), highest_reported_);
    if (parts_.store->persistent() && highest_reported_ > parts_.store->term().value()) {
      parts_.logger->Error(
          absl::StrCat("these tasks registered with another journal, or this journal has lost its "
                       "end: term of the journal=",
                       parts_.store->term().value(), " of the tasks=", highest_reported_,
                       "; jobs that it does not know are over for them (psctl checkpoint list RUNS "
                       "shows the checkpoints to resume from)"));
    }
    if (absl::Status status = parts_.store->CommitTerm(term); !status.ok()) {
      store_.Fail(status);
      return;
    }
    term_ = term;
    term_known_ = true;
    for (const auto& [uid, job] : jobs_.all()) job->Resume(term_);
    parts_.logger->Info(absl::StrCat("coordinating: term=", term_.value(),
                                     " tasks_waiting=", sessions_.deferred().size()));
  }
  const std::vector<std::uint64_t> pending = sessions_.TakeDeferred();
  // Servers come first, because their shards can be adopted only while a job's window is open.
  // Workers are answered after the window: no worker may get a map while a forgotten shard could
  // still change hands under the version of that map.
  const auto role_of = [&](std::uint64_t number) {
    const Session* session = sessions_.Find(number);
    return session == nullptr ? Role::kWorker : session->role;
  };
  for (const std::uint64_t number : pending) {
    if (role_of(number) == Role::kPsServer) Register(number);
  }
  for (const auto& [uid, job] : jobs_.all()) job->CloseWindow();
  for (const std::uint64_t number : pending) {
    if (role_of(number) != Role::kPsServer) Register(number);
  }
  for (const EarlyCall& call : std::exchange(early_calls_, {})) call.serve();
  StartNextJob();
}

// A task has seen a life later than ours, so everything that is numbered from now on must lie above
// it. All tasks register anew, and grants wait for them as they do at a start.
void ControlPlane::BeginAnew(Term term, std::uint64_t reported) {
  if (absl::Status status = parts_.store->CommitTerm(term); !status.ok()) {
    store_.Fail(status);
    return;
  }
  parts_.logger->Warning(
      absl::StrCat("a task has seen a later term of the coordinator: term=", term_.value(),
                   " reported=", reported, " new_term=", term.value()));
  term_ = term;
  window_open_ = true;
  window_until_ = Now() + options_.window;
  for (Job* job : jobs_.Running()) job->BeginAnew(term_);
  division_.RemoveAll();
  for (const std::uint64_t number : sessions_.RegisteredNumbers())
    Reject(number, "not_active", "the coordinator has begun a new term: register again", false,
           std::chrono::milliseconds(0));
}

// ---------------------------------------------------------------- membership

void ControlPlane::Apply(const std::vector<MembershipChange>& changes) {
  for (const MembershipChange& change : changes) {
    const std::string name = absl::StrCat(RoleName(change.role), "/", change.identity);
    switch (change.kind) {
      case MembershipChange::Kind::kSuspected:
        parts_.logger->Warning(
            absl::StrCat("task suspected: task=", name, " reason=", change.reason));
        if (change.role == Role::kPsServer) {
          for (Job* job : jobs_.Running()) job->OnServerAway(change.task, change.reason);
        }
        break;
      case MembershipChange::Kind::kGone:
        if (change.leaving)
          parts_.logger->Info(absl::StrCat("task gone: task=", name, " reason=", change.reason));
        else
          parts_.logger->Warning(absl::StrCat("task gone: task=", name, " reason=", change.reason));
        metrics_.workers_gone.Add();
        if (Job* job = JobOf(change.task))
          job->OnWorkerGone(change.task, change.reason, change.leaving);
        division_.Remove(change.task);
        break;
      case MembershipChange::Kind::kLost:
        parts_.logger->Warning(absl::StrCat("server lost: task=", name, " reason=", change.reason));
        metrics_.servers_lost.Add();
        for (Job* job : jobs_.Running())
          job->OnServerLost(change.task, change.identity, change.reason, change.leaving);
        break;
    }
    if (change.close_session) {
      if (const Session* session = sessions_.Of(change.task)) {
        Reject(session->number, "not_active", absl::StrCat("lease expired: ", change.reason), false,
               std::chrono::milliseconds(0));
      }
    }
  }
}

// ---------------------------------------------------------------- jobs

Job* ControlPlane::JobOf(TaskId worker) const {
  const std::optional<JobUid> job = division_.JobOf(worker);
  return job ? jobs_.Running(*job) : nullptr;
}

absl::Status ControlPlane::NoSuchJob(absl::string_view name_or_uid) const {
  std::string text = name_or_uid.empty()
                         ? std::string("no job has been submitted")
                         : absl::StrCat("no such job: job=", name_or_uid.substr(0, 200));
  // A journal forgets only jobs that ended long ago.
  if (parts_.store->persistent())
    return UserError(
        absl::NotFoundError(absl::StrCat(text, " (psctl job list shows the known jobs)")));
  const absl::Time started = absl::FromUnixMillis(started_ms_);
  absl::StrAppend(
      &text, "; ",
      term_.value() > 1 ? "the coordinator was restarted at " : "this coordinator was started at ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", started, absl::UTCTimeZone()),
      " without a journal (--state-dir) and does not know earlier jobs");
  return UserError(absl::NotFoundError(text));
}

void ControlPlane::AfterJobsChanged() {
  job_waiters_.Check(Now());
  closure_calls_.Check(Now());
  for (const JobUid uid : jobs_.RemoveEnded()) division_.End(uid);
  // A job that is cancelled in the queue ends without ever having been active.
  for (const auto& [uid, job] : jobs_.all()) {
    if (job->TakeEnd()) metrics_.ended.Add();
  }
  ForgetOldJobs();
  StartNextJob();
  CheckDrained();
}

void ControlPlane::StartNextJob() {
  if (!term_known_ || window_open_ || !store_.no_new_jobs().ok()) return;
  while (Job* job = jobs_.TakeNext()) {
    division_.Begin(job->uid());
    IntroduceTasks(*job);
    job->Start();
  }
  division_.DivideSoon();
  division_.Tick(Now(), !window_open_);
}

// Introduces the tasks that registered before the job began: all servers, and the workers that
// serve no job.
void ControlPlane::IntroduceTasks(Job& job) {
  for (const auto& [task, number] : sessions_.tasks()) {
    const TaskEntry* entry = membership_.Find(task);
    if (entry == nullptr || (entry->role == Role::kWorker && JobOf(task) != nullptr)) continue;
    Introduce(job, task);
  }
}

void ControlPlane::Introduce(Job& job, TaskId task) {
  const TaskEntry* entry = membership_.Find(task);
  const auto facts = facts_.find(task);
  Session* session = sessions_.Of(task);
  if (entry == nullptr || facts == facts_.end() || session == nullptr || !entry->session_open ||
      entry->state == TaskState::kGone)
    return;
  v1::Registered said;
  if (entry->role == Role::kWorker) {
    division_.Assign(task, job.uid());
    job.AdmitWorker(task, entry->identity, entry->backoff_until, std::nullopt, false,
                    facts->second.hello, &said);
    if (!session->spoke) job.Withhold(task);
  } else if (absl::Status status = job.AdmitServer(task, entry->identity, std::nullopt, false,
                                                   facts->second.hello, &said);
             !status.ok()) {
    return;  // cannot happen, because the kept hello holds no sets
  }
  if (said.has_job()) {  // the job has begun
    v1::CoordinatorMessage message;
    *message.mutable_job() = said.job();
    sessions_.Queue(*session, message);
    if (said.has_map()) {
      *message.mutable_map() = said.map();
      sessions_.Queue(*session, message);
    }
  }
  job.Ready(task);
  if (entry->leaving) job.OnLeaving(task, facts->second.leaving, facts->second.drains);
}

void ControlPlane::CheckDrained(TaskId task) {
  const auto found = facts_.find(task);
  Session* session = sessions_.Of(task);
  if (found == facts_.end() || session == nullptr || !found->second.drains ||
      found->second.drained_said)
    return;
  std::string cannot;
  for (const Job* job : jobs_.Running()) {
    const auto said = found->second.drained.find(job->uid().value());
    if (said == found->second.drained.end()) return;
    if (cannot.empty()) cannot = said->second;
  }
  found->second.drained_said = true;
  v1::CoordinatorMessage message;
  message.mutable_drained()->set_cannot(cannot);
  sessions_.Queue(*session, message);
}

void ControlPlane::CheckDrained() {
  std::vector<TaskId> leaving;
  for (const auto& [task, facts] : facts_) {
    if (facts.drains && !facts.drained_said) leaving.push_back(task);
  }
  for (const TaskId task : leaving) CheckDrained(task);
}

// A worker with attempts in hand continues with their job. A worker that returns continues with its
// former job. Any other worker serves the job that lacks most workers.
Job* ControlPlane::JobFor(TaskId task, const v1::Hello& hello, std::optional<TaskId> former) {
  for (const v1::HeldAttempt& held : hello.attempts()) {
    if (Job* job = jobs_.Running(JobUid(held.job_uid()))) return job;
  }
  if (former) {
    if (Job* job = JobOf(*former)) return job;
  }
  const std::optional<JobUid> job = division_.JobFor(task);
  return job ? jobs_.Running(*job) : nullptr;
}

// Adds what the job itself cannot know: its place among the other jobs.
void ControlPlane::FillStatus(const Job& job, v1::JobStatus* status,
                              std::uint64_t events_after) const {
  job.FillStatus(status, events_after);
  status->set_workers_serving(division_.workers(job.uid()));
  status->set_worker_seconds(division_.worker_seconds(job.uid()));
  if (job.started()) return;
  const std::optional<std::size_t> before = jobs_.PlaceInQueue(job.uid());
  if (!before) return;
  status->set_waiting_for(
      !term_known_ || window_open_ ? "tasks to register"
      : !store_.no_new_jobs().ok()
          ? std::string(store_.no_new_jobs().message())
          : absl::StrCat("the running limit: ", jobs_.running(), " of ", options_.jobs_running_max,
                         " jobs (--jobs-running-max)",
                         *before == 0 ? std::string() : absl::StrCat(", ", *before, " before it")));
}

void ControlPlane::ForgetOldJobs() {
  for (const JobUid uid : jobs_.EndedBeyond(options_.jobs_kept_max)) {
    if (parts_.store->persistent()) {
      if (absl::Status removed = parts_.store->Remove(uid); !removed.ok()) store_.Fail(removed);
    }
    jobs_.Forget(uid);
  }
}

// ---------------------------------------------------------------- the store

// Changes that a job has accepted and not committed yet must be committed too, because any message
// may follow from them.
bool ControlPlane::CommitTurns() {
  for (const auto& [uid, job] : jobs_.all()) {
    if (job->turn_open() && !job->CommitTurn()) return false;
  }
  return true;
}

void ControlPlane::CheckStore() {
  if (stopped_) return;
  CheckStorePlace();
  gate_.Release();
  if (!store_.CheckHealth()) return;
  for (Job* job : jobs_.Running()) job->Tick();
}

void ControlPlane::CheckStorePlace() {
  if (!store_.CheckPlace()) return;
  if (store_.place().ok()) {
    const char* again = "the coordinator's state folder is back in its place";
    parts_.logger->Info(absl::StrCat(again, ": new jobs are accepted"));
    for (Job* job : jobs_.Running()) job->Tell(again);
    StartNextJob();
  } else {
    parts_.logger->Error(absl::StrCat("no new job is accepted: ", store_.place().message()));
    for (Job* job : jobs_.Running()) job->Warn(std::string(store_.place().message()));
  }
}

}  // namespace evergrad::coordinator
