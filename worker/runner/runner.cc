#include "worker/runner/runner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "common/client/protocol.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/attempt_factory.h"
#include "worker/runner/attempt_reports.h"
#include "worker/runner/attempt_run.h"
#include "worker/runner/batch_streams.h"
#include "worker/runner/compute_job.h"
#include "worker/runner/compute_queue.h"
#include "worker/runner/device_report.h"
#include "worker/runner/drain.h"
#include "worker/runner/heartbeat.h"
#include "worker/runner/input_opener.h"
#include "worker/runner/job_context.h"
#include "worker/runner/runner_metrics.h"
#include "worker/runner/session_messages.h"
#include "worker/runner/step_log.h"

namespace evergrad::worker {
namespace {

using client::FromProto;

}  // namespace

// The router, which passes each message of the coordinator to the responsible part, and starts one
// attempt after another.
struct Runner::Impl final : AttemptOwner, std::enable_shared_from_this<Runner::Impl> {
  Impl(Environment e, Options o)
      : env(std::move(e)),
        options(std::move(o)),
        backend(std::make_shared<ComputeBackend>(BackendOptions{
            options.device, options.threads, options.bind_threads, options.cuda_library})),
        compute(env.control, env.compute),
        metrics(env.registry, options.step_records_max, options.data_bytes_max),
        step_log(options.step_records_max, &metrics.step_records),
        device(backend, env.registry),
        heartbeat(env.client, &device, &step_log, env.logger),
        streams({options.prefetch_batches_max, options.prefetch_bytes_max, allocate}, env.registry),
        reports({env.send, env.logger, &metrics, options.message_bytes_max}) {}
  // Completes the construction. Init must be called when a shared_ptr owns the runner, because the
  // drain holds a weak_ptr to the runner.
  void Init() {
    drain = std::make_shared<worker::Drain>(worker::Drain::Environment{
        env.control, options.drain_done_max, options.drain_alone_max, [weak = weak_from_this()] {
          if (const auto self = weak.lock(); self && self->run)
            self->GiveUp({.reason = "draining"});
        }});
    Exchange::Environment exchange;
    exchange.executor = env.control;
    exchange.client = env.client;
    exchange.book = &book;
    exchange.endpoints = &endpoints;
    exchange.failpoints = env.failpoints;
    exchange.clock = env.clock;
    exchange.counters = metrics.exchange;
    exchange.allocate = allocate;
    exchange.deadline = options.call_deadline;
    exchange.backoff_min = options.backoff_min;
    exchange.backoff_max = options.backoff_max;
    factory.emplace(
        AttemptFactory::Environment{{{this, nullptr, &book, &compute, env.control, env.logger,
                                      env.failpoints, env.clock, std::move(exchange)},
                                     {&metrics, &step_log},
                                     &streams,
                                     &device,
                                     env.functions,
                                     options.skip_not_finite},
                                    env.send,
                                    options.host});
  }

  log::Context About(const Work& work) const {
    return {job && job->uid() == work.job ? job->name() : "", ClosureName(work)};
  }
  // Returns the log context: the job, and the running attempt.
  log::Context About() const {
    return {job ? job->name() : "", run ? ClosureName(run->work()) : ""};
  }
  void SendDropped(const Work& work, const AttemptReports::Dropped& dropped) {
    reports.SendDropped(work, dropped, About(work));
  }
  void SendDone(Attempt attempt) { reports.SendDone(attempt, Progress()); }

  // ------------------------------------------------------------------ jobs and maps

  void SetJob(const v1::JobInfo& info) {
    const JobUid uid(info.job_uid());
    if (job && job->uid() != uid) EndJob(job->uid(), "replaced");
    if (job) return job->Learn(info);
    heartbeat.BeginJob();
    device.BeginJob();
    metrics.ShowServedJob(info.name(), uid);
    const DataOptions data{options.data_bytes_max, options.data_roots, options.data_cache};
    job = std::make_unique<JobContext>(
        info, JobContext::Environment{backend, data, &metrics.data, allocate, env.more_job_kinds});
    if (job->spec() != nullptr)
      book.SetOverBudget(job->pauses_over_budget() ? AttemptBook::OverBudget::kPause
                                                   : AttemptBook::OverBudget::kFail);
    input = std::make_shared<InputOpener>(
        InputOpener::Environment{env.control, &compute, env.failpoints, env.clock}, job->compute(),
        [this](Attempt attempt, const absl::Status& status) { OnOpened(attempt, status); });
    env.logger->Info(absl::StrCat("job received: type=", job->spec() ? job->spec()->type : "?"),
                     About());
  }

  void EndJob(JobUid uid, absl::string_view state) {
    book.DropJob(uid);
    reports.ForgetJob(uid);
    SyncRun();
    if (!job || job->uid() != uid) return;
    env.logger->Info(absl::StrCat("job ended: state=", state), About());
    streams.CloseAll();  // attempts of the next job may have the same numbers
    input.reset();
    // The compute executor destroys its own objects.
    compute.Post([made = job->TakeCompute()] {});
    job.reset();
    metrics.ShowServedJob("", {});
    endpoints.clear();
    step_log.Clear();
    env.client->Retain({});
  }

  void SetMap(const v1::ShardMap& proto) {
    if (!job || job->uid().value() != proto.job_uid()) return;
    if (book.map().job == job->uid() && FromProto<MapVersion>(proto.version()) < book.map().version)
      return;
    absl::StatusOr<PlacedShards> placed = PlacedShardsOf(proto);
    if (!placed.ok()) return env.logger->Error(placed.status().message(), About());
    endpoints = std::move(placed->endpoints);
    book.OnMap(std::move(placed->map));
    std::vector<std::string> addresses;
    for (const auto& [server, endpoint] : endpoints) addresses.push_back(endpoint.address());
    env.client->Retain(addresses);
    if (run) run->OnMap();
    SchedulePump();
  }

  void OnOpened(Attempt attempt, const absl::Status& status) {
    const Work* const next = book.NextToBegin();
    if (!status.ok() && next != nullptr && next->attempt == attempt && !run)
      FailWork(Work(*next), status);
    SchedulePump();
  }

  // ------------------------------------------------------------------ messages

  void OnRegistered(const v1::Registered& registered) {
    drain->SetSession(true);
    highest_term = std::max(highest_term, registered.term());
    life_id = registered.life_id();
    registration = registered.registration();
    if (registered.has_job()) {
      SetJob(registered.job());
    } else if (job) {
      EndJob(job->uid(), "unknown to the coordinator");
    }
    const std::set<Attempt> adopted = DropNotAdopted(registered);
    if (registered.has_map()) SetMap(registered.map());
    SyncRun();
    // An attempt that was dropped since the Hello (for example after SUPERSEDED from a shard) must
    // be reported. The coordinator has adopted the attempt and would otherwise wait for it forever.
    for (const v1::HeldAttempt& attempt : registered.adopted()) {
      const auto number = FromProto<Attempt>(attempt.attempt());
      if (adopted.contains(number) && !book.Holds(number))
        SendDropped(WorkOf(attempt), {.reason = "dropped while this worker registered"});
    }
    for (const DoneReport& report : book.Unanswered()) SendDone(report.work.attempt);
    if (const auto running = run) running->OnSession();
    SchedulePump();
  }

  // Returns the attempts of the current job that the coordinator has adopted.
  std::set<Attempt> DropNotAdopted(const v1::Registered& registered) {
    std::set<Attempt> adopted;
    for (const v1::HeldAttempt& attempt : registered.adopted()) {
      if (job && attempt.job_uid() == job->uid().value())
        adopted.insert(FromProto<Attempt>(attempt.attempt()));
    }
    for (const Attempt attempt : book.OnRegistered(Term(registered.term()), adopted)) {
      env.logger->Info(
          absl::StrCat("an attempt was dropped, because the coordinator did not adopt it: attempt=",
                       attempt.ToString()),
          About());
      metrics.dropped.Add();
      Forget(attempt);
    }
    return adopted;
  }

  void OnMessage(const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kJob: SetJob(message.job()); return SchedulePump();
      case v1::CoordinatorMessage::kMap: return SetMap(message.map());
      case v1::CoordinatorMessage::kGrant: return OnGrant(message.grant());
      case v1::CoordinatorMessage::kRecall: return OnRecall(message.recall());
      case v1::CoordinatorMessage::kDoneAnswer: return OnDoneAnswer(message.done_answer());
      case v1::CoordinatorMessage::kRunFileAnswer:
        if (const auto running = run) running->OnFileAnswer(message.run_file_answer());
        return;
      case v1::CoordinatorMessage::kReadLogs:
        return client::AnswerReadLogs(*env.logger, message.read_logs(), env.send);
      case v1::CoordinatorMessage::kJobEnded:
        EndJob(JobUid(message.job_ended().job_uid()), message.job_ended().state());
        return SchedulePump();
      default:
        env.logger->Warning(
            absl::StrCat("the coordinator sent a message that is not for a worker: kind=",
                         static_cast<int>(message.message_case())));
    }
  }

  void OnGrant(const v1::Grant& grant) {
    const Work work = WorkOf(grant, identity);
    if (!KindOf(grant.kind()))
      return SendDropped(work, {.reason = absl::StrCat("unknown kind of work: kind=",
                                                       static_cast<int>(grant.kind()))});
    if (!job || job->uid() != work.job) return SendDropped(work, {.reason = "unknown job"});
    if (work.kind == WorkKind::kExport) job->export_order = grant.export_order();
    if (drain->begun()) return SendDropped(work, {.reason = "draining"});
    if (!book.OnGrant(work)) {
      if (book.Holds(work.attempt)) return;  // a repeated grant
      metrics.attempts.refused.Add();
      return SendDropped(work, {.reason = absl::StrCat("too many attempts are queued: limit=",
                                                       AttemptBook::kQueuedMax)});
    }
    SchedulePump();
  }

  void OnRecall(const v1::Recall& recall) {
    if (!job || job->uid().value() != recall.job_uid()) return;
    const auto attempt = FromProto<Attempt>(recall.attempt());
    GiveBack(attempt, "recalled");
    if (const auto running = run; running && running->work().attempt == attempt) running->Recall();
    SchedulePump();
  }

  // Hands the attempt back if it has not begun. The log line is no warning, because a job that
  // shares the cluster loses many attempts in this way.
  void GiveBack(Attempt attempt, const std::string& reason) {
    for (const AttemptBook::Held& held : book.HeldForHello()) {
      if (held.work.attempt != attempt || book.OnRecall(attempt).empty()) continue;
      Forget(attempt);
      SendDropped(held.work, {.reason = reason, .level = log::Level::kDebug});
    }
  }

  void OnDoneAnswer(const v1::DoneAnswer& answer) {
    if (!job || job->uid().value() != answer.job_uid()) return;
    const auto attempt = FromProto<Attempt>(answer.attempt());
    if (book.OnDoneAnswer(attempt, answer.superseded())) Forget(attempt);
    SyncRun();
    CheckDrained();
    SchedulePump();
  }

  // ------------------------------------------------------------------ one attempt after another

  void SchedulePump() {
    if (std::exchange(pump_scheduled, true)) return;
    env.control->Post([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->pump_scheduled = false;
      self->Pump();
    });
  }

  void Pump() {
    metrics.attempts.current.Set(static_cast<double>(book.queued()));
    while (!run) {
      const Work* next = drain->begun() ? nullptr : book.NextToBegin();
      waiting_for = "";
      if (next == nullptr || !job) {
        // The time until a later attempt begins must not count as a wait of the device.
        if (job) job->pulled_ahead.reset(), job->step_ended.reset();
        return CheckDrained();
      }
      const Work work = *next;
      const absl::StatusOr<std::string> missing = MissingFor(work);
      if (!missing.ok()) {
        FailWork(work, missing.status());
        continue;
      }
      waiting_for = *missing;
      if (!missing->empty()) return;  // Pump is called again once the object has arrived
      Start(work);
    }
  }

  // Returns the missing object for which `work` waits, or "" if the work can begin now. An error
  // ends the attempt.
  absl::StatusOr<std::string> MissingFor(const Work& work) {
    EG_RETURN_IF_ERROR(job->Check(work.kind));
    if (!input->Open(job->NeedsOf(work.kind), work.attempt)) return "its input";
    if (work.kind == WorkKind::kDescribe) return "";
    EG_RETURN_IF_ERROR(input->CheckData(*job, work));
    EG_RETURN_IF_ERROR(job->CheckPlanHas(work));
    const bool has_map =
        book.map().job == job->uid() && book.map().shards.size() == job->layout()->shard_count();
    return has_map ? "" : "the shard map";
  }

  void Start(const Work& work) {
    book.Begin(work.attempt);  // sets V0; the pull of this turn uses this map [LEDGER 14]
    // Three log lines show how far an attempt of a dead worker had come: this line, the line of the
    // first push, and the line of the end.
    env.logger->Debug(absl::StrCat("attempt begins: attempt=", work.attempt.ToString()),
                      About(work));
    if (job->reads_data() && (work.kind == WorkKind::kTrain || work.kind == WorkKind::kEvaluate))
      streams.Open(*job, *input, work, book.HeldForHello());
    const std::shared_ptr<AttemptRun> starting = run = factory->Make(work, job.get(), registration);
    starting->Start();
  }

  // ------------------------------------------------------------------ the end of an attempt

  void ReportDone(bool send_now) override {
    const Work& work = run->work();
    env.logger->Debug(absl::StrCat("attempt ends: attempt=", work.attempt.ToString()), About());
    v1::Done done;
    FillWork(work, &done);
    run->FillDone(&done);
    // A Done that is too large to be sent would be kept forever, so it fails the attempt, and the
    // job with it.
    if (const absl::Status size = reports.CheckSize(work, done); !size.ok()) return Fail(size);
    const DoneReport report = book.Finish();
    *done.mutable_v0() = client::ToProto(report.v0);
    *done.mutable_v1() = client::ToProto(report.v1);
    run->OnReported();
    metrics.done.Add();
    EndRun();
    reports.KeepDone(report.work.attempt, std::move(done));
    if (send_now) SendDone(report.work.attempt);
  }

  void Fail(const absl::Status& status) override { FailWork(Work(run->work()), status); }

  void FailCompute(const absl::Status& status) override {
    Fail(status);
    // The backend returns Unavailable only if its device has failed. A worker with a failed device
    // must exit: it would fail each attempt at once, and the coordinator grants most work to the
    // worker that ends attempts fastest.
    if (absl::IsUnavailable(status) && env.on_device_lost) env.on_device_lost(status);
  }

  void GiveUp(const AttemptReports::Dropped& dropped) override {
    SendDropped(run->work(), dropped);
    book.Drop(run->work().attempt);
    EndRun();
  }

  void FailWork(const Work& work, const absl::Status& status) {
    reports.SendFailed(work, status, identity, About(work));
    book.Drop(work.attempt);
    Forget(work.attempt);
    SyncRun();
    SchedulePump();
  }

  // Ends the run, whether or not the book still holds its attempt.
  void EndRun() {
    const std::shared_ptr<AttemptRun> ended = std::exchange(run, nullptr);
    ended->Cancel();
    Forget(ended->work().attempt);
    CheckDrained();
    SchedulePump();
  }
  // Ends the run if the book has dropped its attempt.
  void SyncRun() {
    if (run && (book.running() == nullptr || book.running()->attempt != run->work().attempt))
      EndRun();
  }
  // Removes all state of an attempt outside the book.
  void Forget(Attempt attempt) {
    reports.Forget(attempt);
    streams.Close(attempt);
  }

  // ------------------------------------------------------------------ leaving, heartbeats

  void BeginDrain(std::function<void()> done) {
    if (!drain->Begin(std::move(done))) return;
    for (const AttemptBook::Held& held : book.HeldForHello()) {
      if (!held.begun) GiveBack(held.work.attempt, "draining");
    }
    if (const auto running = run) running->Drain(options.drain_step_max);
    CheckDrained();
  }
  void CheckDrained() { drain->Check(run != nullptr, !book.Unanswered().empty()); }

  v1::WorkerProgress Progress() {
    return heartbeat.Take({compute.busy() || (input && input->opening()), waiting_for, job.get(),
                           run.get(), book.NextToBegin(), About()});
  }

  const Environment env;
  Options options;  // data_roots change with the coordinator; all other options are constant
  const std::shared_ptr<ComputeBackend> backend;  // shared by the compute parts of jobs
  // Allocates memory that suits the device, for values from the servers and for batches. The
  // pointer is weak, because exchanges hold this function, too, and must not own the backend.
  const Allocator allocate = [weak = std::weak_ptr<ComputeBackend>(backend)](std::size_t bytes) {
    const auto made = weak.lock();
    return made == nullptr ? tensor::AlignedBuffer() : made->Stage(bytes);
  };
  ComputeQueue compute;
  RunnerMetrics metrics;
  StepLog step_log;
  DeviceReport device;
  Heartbeat heartbeat;
  AttemptBook book;
  BatchStreams streams;
  AttemptReports reports;
  std::optional<AttemptFactory> factory;          // set by Init
  std::map<std::string, v1::Endpoint> endpoints;  // endpoints of the servers in book.map()
  std::unique_ptr<JobContext> job;                // nullptr if no job is served
  std::shared_ptr<InputOpener> input;             // input of `job`; shared with its own callbacks
  std::shared_ptr<AttemptRun> run;                // run of `job`; shared with its own callbacks
  std::shared_ptr<worker::Drain> drain;           // shared with its own callbacks
  std::string identity, waiting_for;
  v1::Stamp registration;
  std::uint64_t highest_term = 0, life_id = 0;
  bool pump_scheduled = false;
};

Runner::Runner(Environment environment, Options options)
    : impl_(std::make_shared<Impl>(std::move(environment), std::move(options))) {
  impl_->Init();
}
Runner::~Runner() = default;

void Runner::SetIdentity(const std::string& identity) { impl_->identity = identity; }
void Runner::SetDataRoots(const fs::Roots& roots) { impl_->options.data_roots = roots; }

void Runner::FillHello(v1::Hello* hello) const {
  hello->set_highest_term(impl_->highest_term);
  if (impl_->env.functions != nullptr) {
    for (const std::string& name : impl_->env.functions->names()) hello->add_functions(name);
  }
  hello->set_life_id(impl_->life_id);
  FillHeld(impl_->book.HeldForHello(), impl_->options.message_bytes_max, hello);
}

void Runner::OnRegistered(const v1::Registered& registered) { impl_->OnRegistered(registered); }
void Runner::OnLost() { impl_->drain->SetSession(false); }
void Runner::OnMessage(const v1::CoordinatorMessage& message) { impl_->OnMessage(message); }
v1::WorkerProgress Runner::Progress() { return impl_->Progress(); }
void Runner::Drain(std::function<void()> done) { impl_->BeginDrain(std::move(done)); }

}  // namespace evergrad::worker
