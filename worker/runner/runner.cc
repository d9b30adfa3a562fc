#include "worker/runner/runner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/client/log_lines.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/attempt_reports.h"
#include "worker/runner/batch_streams.h"
#include "worker/runner/compute_job.h"
#include "worker/runner/compute_queue.h"
#include "worker/runner/counting.h"
#include "worker/runner/device_report.h"
#include "worker/runner/drain.h"
#include "worker/runner/exchange.h"
#include "worker/runner/export_files.h"
#include "worker/runner/failpoint_site.h"
#include "worker/runner/input_opener.h"
#include "worker/runner/job_context.h"
#include "worker/runner/runner_metrics.h"
#include "worker/runner/session_messages.h"
#include "worker/runner/step_log.h"
#include "worker/runner/upload.h"

namespace evergrad::worker {
namespace {

using client::FromProto;
using client::ToProto;

constexpr std::size_t kNamedExamplesMax = 8;
// So long before a step is expected to end its push is announced: longer than a round trip through
// a busy host.
constexpr MonoTime kAnnouncedAhead = std::chrono::milliseconds(2);
constexpr std::size_t kWaitingForBytesMax = 1024;
constexpr MonoTime kTroubleSaidEvery =
    std::chrono::seconds(60);  // of a full disk, which is tried again and again

}  // namespace

struct Runner::Impl : std::enable_shared_from_this<Runner::Impl> {
  struct Run {
    Run() {}  // not defaulted: clang 14 does not see a nested class with initializers as
              // constructible before Impl ends
    Work work;
    std::uint64_t number = 0;  // of this run: what comes late for another one is ignored
    std::uint32_t steps = 0;
    std::uint64_t begin = 0, end = 0;    // evaluation: examples
    std::shared_ptr<Exchange> exchange;  // shared with its own callbacks
    std::uint32_t next_step = 0;         // computed so far
    std::uint32_t settled_steps = 0;     // settled and past `worker.after_push`
    bool busy = false;                   // a step is being computed, or waits
    bool paused = false;                 // a failpoint holds the run
    bool finishing = false;
    bool recalled = false;  // it goes on all the same, unless it waits for room
    bool batch_asked = false;
    std::shared_ptr<const ReadyBatch> batch;  // shared with the compute thread
    const std::shared_ptr<NextBatch> next = std::make_shared<NextBatch>();  // likewise
    std::shared_ptr<ComputeJob::BatchRows>
        rows;                       // of `batch`; null without tables. Used by one thread at a time
    std::uint64_t rows_number = 0;  // of `rows`, and of those before
    v1::ClosureMetrics metrics;
    std::int64_t count = 0;           // of a counting job's evaluation
    std::vector<MetricSum> measured;  // in the order of the model's metrics
    v1::DescribeResult describe;
    v1::ExportResult exported;
    std::optional<Upload> upload;  // the files of an export on their way to the coordinator
    std::shared_ptr<const ComputeJob::Exported> sending;  // shared with the compute thread
    const std::shared_ptr<ExportReader> reader =
        std::make_shared<ExportReader>();         // used on the compute thread
    bool reading = false;                         // a part is being read there
    std::map<std::string, v1::RunFileInfo> sent;  // files whose last part was sent
    // A functions job's.
    std::shared_ptr<sdk::FunctionCall>
        call;  // used on the compute executor, and let go there: it holds what is the user's
    std::shared_ptr<std::atomic<bool>> cancelled;  // shared with the call
    std::string result;

    void Add(const std::vector<MetricSum>& metrics_of_step) {
      measured.resize(metrics_of_step.size());
      for (std::size_t m = 0; m < measured.size(); ++m) measured[m].Add(metrics_of_step[m]);
    }
  };

  struct ExportBegun {
    std::shared_ptr<const ComputeJob::Exported> exported;  // null once written
    std::vector<v1::RunFileInfo> written;
    bool sent = false;  // it is to be sent
  };

  Impl(Environment e, Options o)
      : env(std::move(e)),
        options(std::move(o)),
        backend(std::make_shared<ComputeBackend>(BackendOptions{
            options.device, options.threads, options.bind_threads, options.cuda_library})),
        metrics(env.registry, options.step_records_max, options.data_bytes_max),
        device(backend, env.registry),
        streams({options.prefetch_batches_max, options.prefetch_bytes_max, room}, env.registry) {}

  // Once the runner is shared, because the drain holds it weakly.
  void Init() {
    drain = std::make_shared<worker::Drain>(worker::Drain::Environment{
        env.control, options.drain_done_max, options.drain_alone_max, [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->GiveUpRun();
        }});
  }

  // `f` on the control executor, later; from any thread.
  template <class F>
  void PostControl(F f) {
    env.control->Post([weak = weak_from_this(), f = std::move(f)]() mutable {
      if (const auto self = weak.lock()) f(*self);
    });
  }
  // `f` if this run is still the one; for continuations of it.
  template <class F>
  auto IfRun(F f) {
    return [weak = weak_from_this(), number = run->number,
            f = std::move(f)](auto&&... arguments) mutable {
      const auto self = weak.lock();
      if (self && self->run && self->run->number == number)
        f(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  }
  // `work` runs on the compute executor, and `then`, with its result, on the control executor if
  // the run is still the one.
  template <class W, class T>
  void Compute(W work, T then) {
    compute.Run(std::move(work), [after = IfRun(std::move(then))](auto result) mutable {
      after(std::move(result));
    });
  }

  log::Context About() const { return {job ? job->name() : "", run ? ClosureName(run->work) : ""}; }
  log::Context About(const Work& work) const {
    return {job && job->uid() == work.job ? job->name() : "", ClosureName(work)};
  }

  // ------------------------------------------------------------------ jobs and maps

  void SetJob(const v1::JobInfo& info) {
    const JobUid uid(info.job_uid());
    if (job && job->uid() != uid) EndJob(job->uid(), "replaced");
    if (job) return job->Learn(info);
    ++stint;
    device.BeginJob();
    metrics.ShowServedJob(info.name(), uid);
    const client::ParameterClient::Stats stats = env.client->stats();
    bytes_before_job = stats.bytes_sent + stats.bytes_received;
    job = std::make_unique<JobContext>(
        info, JobContext::Environment{backend,
                                      {options.data_bytes_max, options.data_roots},
                                      &metrics.data,
                                      options.allow_counting,
                                      room});
    if (job->spec() != nullptr)
      book.SetOverBudget(job->pauses_over_budget() ? AttemptBook::OverBudget::kPause
                                                   : AttemptBook::OverBudget::kFail);
    input = std::make_shared<InputOpener>(
        InputOpener::Environment{env.control, &compute, env.failpoints, env.clock}, job->compute(),
        [this](Attempt attempt, const absl::Status& status) { OnOpened(attempt, status); });
    env.logger->Info(absl::StrCat("job known: type=", job->spec() ? job->spec()->type : "?"),
                     About());
  }

  void EndJob(JobUid uid, absl::string_view state) {
    book.DropJob(uid);
    reports.ForgetJob(uid);
    SyncRun();
    if (!job || job->uid() != uid) return;
    env.logger->Info(absl::StrCat("job ended: state=", state), About());
    streams.CloseAll();  // the next job's attempts have the same numbers
    input.reset();
    // What the compute executor made ends there.
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
    std::vector<std::string> addresses;
    for (const auto& [server, endpoint] : placed->endpoints)
      addresses.push_back(endpoint.address());
    endpoints = std::move(placed->endpoints);
    book.OnMap(std::move(placed->map));
    env.client->Retain(addresses);
    if (run && run->exchange) run->exchange->OnMap();
    SchedulePump();
  }

  // ------------------------------------------------------------------ messages

  void OnRegistered(const v1::Registered& registered) {
    drain->SetSession(true);
    const Term term(registered.term());
    highest_term = std::max(highest_term, registered.term());
    life_id = registered.life_id();
    registration = registered.registration();
    if (registered.has_job()) {
      SetJob(registered.job());
    } else if (job) {
      EndJob(job->uid(), "unknown to the coordinator");
    }
    std::set<Attempt> adopted;
    for (const v1::HeldAttempt& attempt : registered.adopted()) {
      if (job && attempt.job_uid() == job->uid().value())
        adopted.insert(FromProto<Attempt>(attempt.attempt()));
    }
    for (const Attempt attempt : book.OnRegistered(term, adopted)) {
      env.logger->Info(absl::StrCat("attempt not adopted by the coordinator, dropped: attempt=",
                                    attempt.ToString()),
                       About());
      metrics.dropped.Add();
      Forget(attempt);
    }
    if (registered.has_map()) SetMap(registered.map());
    SyncRun();
    // Dropped between the Hello and now (SUPERSEDED by a shard, say): the coordinator took it over
    // and would wait without end.
    for (const v1::HeldAttempt& attempt : registered.adopted()) {
      if (!adopted.contains(FromProto<Attempt>(attempt.attempt())) ||
          book.Holds(FromProto<Attempt>(attempt.attempt())))
        continue;
      SendDropped(WorkOf(attempt), "dropped since the Hello");
    }
    for (const DoneReport& report : book.Unanswered()) SendDone(report.work.attempt);
    RestartUpload();
    SchedulePump();
  }

  void OnMessage(const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kJob: SetJob(message.job()); return SchedulePump();
      case v1::CoordinatorMessage::kMap: return SetMap(message.map());
      case v1::CoordinatorMessage::kGrant: return OnGrant(message.grant());
      case v1::CoordinatorMessage::kRecall: return OnRecall(message.recall());
      case v1::CoordinatorMessage::kDoneAnswer: return OnDoneAnswer(message.done_answer());
      case v1::CoordinatorMessage::kRunFileAnswer:
        return OnRunFileAnswer(message.run_file_answer());
      case v1::CoordinatorMessage::kReadLogs: return OnReadLogs(message.read_logs());
      case v1::CoordinatorMessage::kJobEnded:
        EndJob(JobUid(message.job_ended().job_uid()), message.job_ended().state());
        return SchedulePump();
      default:
        env.logger->Warning(absl::StrCat("message that is not for a worker: kind=",
                                         static_cast<int>(message.message_case())));
    }
  }

  void OnGrant(const v1::Grant& grant) {
    const auto kind = KindOf(grant.kind());
    const Work work = WorkOf(grant, identity);
    if (!kind)
      return SendDropped(
          work, absl::StrCat("unknown kind of work: kind=", static_cast<int>(grant.kind())));
    if (!job || job->uid() != work.job) return SendDropped(work, "the job is not known here");
    if (kind == WorkKind::kExport) job->export_order = grant.export_order();
    if (drain->begun()) return SendDropped(work, "draining");
    if (!book.OnGrant(work)) {
      if (book.Holds(work.attempt)) return;  // a repeat
      metrics.attempts.refused.Add();
      return SendDropped(
          work, absl::StrCat("too many attempts wait here: limit=", AttemptBook::kQueuedMax));
    }
    SchedulePump();
  }

  void OnRecall(const v1::Recall& recall) {
    if (!job || job->uid().value() != recall.job_uid()) return;
    Recall(FromProto<Attempt>(recall.attempt()), "recalled");
    SchedulePump();
  }

  void Recall(Attempt attempt, absl::string_view reason) {
    std::optional<Work> work;
    for (const AttemptBook::Held& held : book.HeldForHello()) {
      if (held.work.attempt == attempt) work = held.work;
    }
    for (const Attempt given_back : book.OnRecall(attempt)) {
      Forget(given_back);
      SendDropped(*work, reason, std::nullopt,
                  log::Level::kDebug);  // a job beside others loses many so, and nothing is wrong
    }
    if (run && run->work.attempt == attempt) {
      run->recalled = true;
      GiveBackPaused();
    }
  }

  // Who is wanted elsewhere does not wait for room: that may last until the other job has ended.
  bool GiveBackPaused() {
    if (!run->exchange || run->finishing || !(run->recalled || drain->begun()) ||
        !run->exchange->WaitsForRoom())
      return false;
    GiveUpRun(run->recalled ? "recalled while its pushes waited for room" : "draining");
    return true;
  }

  void OnDoneAnswer(const v1::DoneAnswer& answer) {
    if (!job || job->uid().value() != answer.job_uid()) return;
    const auto attempt = FromProto<Attempt>(answer.attempt());
    if (book.OnDoneAnswer(attempt, answer.superseded())) Forget(attempt);
    SyncRun();
    CheckDrained();
    SchedulePump();
  }

  void OnReadLogs(const v1::ReadLogs& request) {
    client::AnswerReadLogs(*env.logger, request, env.send);
  }

  // ------------------------------------------------------------------ what is told

  void SendDropped(const Work& work, absl::string_view reason,
                   std::optional<ShardId> superseded_by = std::nullopt,
                   log::Level level = log::Level::kInfo) {
    reports.SendDropped(work, {std::string(reason), superseded_by, level}, About(work));
  }

  void SendDone(Attempt attempt) { reports.SendDone(attempt, Progress()); }

  void Fail(const Work& work, const absl::Status& status) {
    reports.SendFailed(work, status, identity, About(work));
    book.Drop(work.attempt);
    Forget(work.attempt);
    SyncRun();
    SchedulePump();
  }

  // Nothing of an attempt remains but what the book holds.
  void Forget(Attempt attempt) {
    reports.Forget(attempt);
    streams.Close(attempt);
  }

  // ------------------------------------------------------------------ one attempt after another

  void SchedulePump() {
    if (std::exchange(pump_scheduled, true)) return;
    PostControl([](Impl& self) {
      self.pump_scheduled = false;
      self.Pump();
    });
  }

  void Pump() {
    metrics.attempts.current.Set(static_cast<double>(book.queued()));
    while (!run) {
      const Work* next = drain->begun() ? nullptr : book.NextToBegin();
      if (next == nullptr || !job) {
        if (job)
          job->pulled_ahead.reset(), job->step_ended.reset();  // what follows was not waited for
        waiting_for = "";
        CheckDrained();
        return;
      }
      const Work work = *next;
      const absl::StatusOr<bool> ready = Prepare(work);
      if (!ready.ok()) {
        Fail(work, ready.status());
        continue;
      }
      if (!*ready) return;  // whatever it waits for pumps again
      waiting_for = "";
      Start(work);
    }
  }

  // Whether `work` can begin now. An error ends it.
  absl::StatusOr<bool> Prepare(const Work& work) {
    EG_RETURN_IF_ERROR(job->Check(work.kind));
    if (!input->Open(job->NeedsOf(work.kind), work.attempt)) {
      waiting_for = "its input";
      return false;
    }
    if (work.kind == WorkKind::kDescribe) return true;
    EG_RETURN_IF_ERROR(input->CheckData(*job, work));
    EG_RETURN_IF_ERROR(job->CheckPlanHas(work));
    if (book.map().job != job->uid() || book.map().shards.size() != job->layout()->shard_count()) {
      waiting_for = "the shard map";
      return false;
    }
    return true;
  }

  void OnOpened(Attempt attempt, const absl::Status& status) {
    const Work* const next = book.NextToBegin();
    if (!status.ok() && next != nullptr && next->attempt == attempt && !run)
      Fail(Work(*next), status);
    SchedulePump();
  }

  void Start(const Work& work) {
    book.Begin(work.attempt);  // V0 is the map of the pull that leaves in this very turn [14]
    run.emplace();
    run->work = work;
    run->number = ++last_run;
    // These three tell from the logs alone where the work of a worker that died went on, and when.
    env.logger->Debug(absl::StrCat("attempt begins: attempt=", work.attempt.ToString()),
                      About(work));
    if (job->functions() && work.kind == WorkKind::kTrain) {
      static const sdk::Registry kNone;
      run->cancelled = std::make_shared<std::atomic<bool>>(false);
      static const FunctionWork kNothing;
      const FunctionWork& wanted = work.function == nullptr ? kNothing : *work.function;
      auto call = sdk::FunctionCall::Make(env.functions == nullptr ? kNone : *env.functions,
                                          wanted.function, wanted.arguments, work.closure.value(),
                                          job->seed(), run->cancelled);
      if (!call.ok()) return Fail(work, call.status());
      run->call = *std::move(call);
    }
    if (work.kind == WorkKind::kDescribe) {
      env.logger->Info("describing the job", About());
      return Compute([compute = job->compute()] { return compute->Describe(); },
                     [](Impl& self, absl::StatusOr<v1::DescribeResult> result) {
                       if (!result.ok()) return self.Fail(self.run->work, result.status());
                       self.run->describe = *std::move(result);
                       self.Finish();
                     });
    }
    if (work.kind == WorkKind::kTrain) {
      // Of a function, more than it may have, until its last step is known.
      run->steps = run->call ? kUpdatesPerClosureMax + 1 : job->plan()->Closure(work.closure).steps;
    } else if (work.kind == WorkKind::kEvaluate) {
      const plan::ClosureRange range = job->EvalRange(work);
      run->steps = job->counting() ? 1 : range.steps;
      run->begin = range.begin;
      run->end = range.end;
    }
    if (work.kind != WorkKind::kExport && job->reads_data())
      streams.Open(*job, *input, work, book.HeldForHello());

    Exchange::Environment environment;
    environment.executor = env.control;
    environment.client = env.client;
    environment.book = &book;
    environment.cache = job->cache();
    environment.endpoints = &endpoints;
    environment.failpoints = env.failpoints;
    environment.clock = env.clock;
    environment.counters = metrics.exchange;
    environment.room = room;
    environment.job = job->uid();
    environment.registration = registration;
    environment.deadline = options.call_deadline;
    environment.backoff_min = options.backoff_min;
    environment.backoff_max = options.backoff_max;
    Exchange::Events events;
    events.on_progress = IfRun([](Impl& self) { self.Advance(); });
    events.on_dropped = IfRun([](Impl& self, std::optional<ShardId> superseded_by) {
      self.SendDropped(self.run->work,
                       superseded_by ? absl::StrCat("superseded by a later attempt: shard=",
                                                    superseded_by->value())
                                     : "refused by a server",
                       superseded_by);
      self.AbortRun();
    });
    events.on_failed =
        IfRun([](Impl& self, absl::Status status) { self.Fail(self.run->work, status); });
    run->exchange =
        std::make_shared<Exchange>(std::move(environment), job->layout(), work, std::move(events));
    const bool fresh = work.kind == WorkKind::kTrain && job->pulled_ahead == book.map().version;
    job->pulled_ahead.reset();
    if (fresh) {
      run->exchange->HavePulls(1);
    } else {
      run->exchange->WantPulls(1);
      run->exchange->Flush();
    }
    Advance();
  }

  std::uint64_t pipeline() const { return job->spec()->strategy.pipeline; }

  // The next thing that can be done for the running attempt, if anything.
  void Advance() {
    if (!run || !run->exchange || run->finishing || GiveBackPaused()) return;
    while (run->settled_steps < run->next_step &&
           book.Unsettled(UpdateIndex(run->settled_steps)).empty() && !run->paused &&
           run->work.kind == WorkKind::kTrain) {
      ++run->settled_steps;
      if (env.failpoints == nullptr || !env.failpoints->AnyArmed()) continue;
      run->paused = true;
      AtFailpoint(env.failpoints, "worker.after_push", env.control,
                  IfRun([](Impl& self, absl::Status status) {
                    if (!status.ok()) return self.Fail(self.run->work, status);
                    self.run->paused = false;
                    self.Advance();
                  }));
      return;
    }
    if (run->paused || run->busy) return;
    if (drain->begun() && run->settled_steps == run->next_step && run->next_step < run->steps) {
      SendDropped(run->work, "draining");
      book.Drop(run->work.attempt);
      return AbortRun();
    }
    if (run->work.kind == WorkKind::kExport) {
      if (run->exchange->PullsDone(1)) Export();
      return;
    }
    if (run->next_step == run->steps) {
      const bool settled = run->work.kind != WorkKind::kTrain || run->settled_steps == run->steps;
      if (settled && book.MayFinish(true)) Finish();
      return;
    }
    if (job->reads_data() && !run->batch) {
      AskBatch();
      if (!run || !run->batch) return;
    }
    const std::uint64_t pulls = run->work.kind == WorkKind::kTrain ? run->next_step + 1 : 1;
    if (!run->exchange->PullsDone(pulls)) return;
    if (run->rows && !run->exchange->RowsDone(run->rows_number)) return;
    run->work.kind == WorkKind::kTrain ? BeginStep() : EvaluateBatch();
  }

  // For the step after the one that has its batch.
  void AskBatch() {
    if (std::exchange(run->batch_asked, true)) return;
    // From the reader's thread, or from this one: a turn of its own either way.
    streams.Next(run->work.attempt, [weak = weak_from_this(), control = env.control,
                                     number = run->number](absl::StatusOr<ReadyBatch> batch) {
      auto shared = std::make_shared<absl::StatusOr<ReadyBatch>>(std::move(batch));
      control->Post([weak, number, shared] {
        const auto self = weak.lock();
        if (self == nullptr || !self->run || self->run->number != number) return;
        self->run->batch_asked = false;
        if (!shared->ok()) return self->Fail(self->run->work, shared->status());
        self->run->batch = std::make_shared<const ReadyBatch>(*std::move(*shared));
        self->BringAhead();
        if (const absl::Status status = self->AskRows(); !status.ok())
          return self->Fail(self->run->work, status);
        self->Advance();
      });
    });
  }

  // To a device the batch goes now: while it still computes the step before, or the servers are
  // waited for.
  void BringAhead() {
    if (!job->compute()->on_device()) return;
    run->next->Put(run->batch);
    compute.Post([compute = job->compute(), next = run->next, which = run->batch.get()] {
      if (auto batch = next->Take(which)) compute->BringAhead(std::move(batch));
    });
  }

  // The rows of tables that the batch reads are pulled with the dense values of its step, or as
  // soon as it is known which they are.
  absl::Status AskRows() {
    EG_ASSIGN_OR_RETURN(run->rows,
                        job->compute()->RowsOf(*run->batch, job->layout(), &job->unique_ids));
    if (run->rows == nullptr) return absl::OkStatus();
    ++run->rows_number;
    run->exchange->WantRows(run->rows_number, run->rows->slots,
                            run->work.kind == WorkKind::kTrain ? run->rows_number : 1);
    run->exchange->Flush();
    return absl::OkStatus();
  }
  // Those of `batch`, with their values, for the compute thread.
  std::shared_ptr<ComputeJob::BatchRows> TakeRows() {
    if (run->rows) {
      run->rows->as_pulled = job->compute()->on_device();
      run->rows->values =
          run->exchange->TakeRows(run->rows_number, /*widen=*/!run->rows->as_pulled);
    }
    return std::move(run->rows);
  }

  // ------------------------------------------------------------------ a training step

  void BeginStep() {
    run->busy = true;
    AtFailpoint(
        env.failpoints, "worker.step", env.control, IfRun([](Impl& self, absl::Status status) {
          if (!status.ok())
            return self.Fail(self.run->work,
                             AboutStep(status, self.run->work.closure, self.run->next_step));
          self.run->call ? self.ComputeFunction() : self.ComputeStep();
        }));
  }

  static absl::Status AboutStep(const absl::Status& status, ClosureId closure, std::uint32_t step) {
    const absl::Status named(
        status.code(),
        absl::StrCat(status.message(), " closure=", closure.value(), " step=", step));
    return BlameOf(status) == Blame::kUser ? UserError(named) : named;
  }

  // The compute thread could not. Of what it does only a device's failure is Unavailable (Backend):
  // who stays would fail whatever is granted to it, at once, and so be granted most.
  void FailStep(const absl::Status& status) {
    const absl::Status about = AboutStep(status, run->work.closure, run->next_step);
    Fail(run->work, about);
    if (absl::IsUnavailable(about) && env.on_device_lost) env.on_device_lost(about);
  }

  void ComputeStep() {
    const UpdateIndex update(run->next_step);
    std::shared_ptr<const ReadyBatch> batch = std::move(run->batch);
    if (job->counting()) {
      auto counted = std::make_shared<ReadyBatch>();
      counted->update = update.value();
      counted->examples = job->plan()->Batch(run->work.closure, update);
      counted->size = static_cast<std::int64_t>(counted->examples.size());
      batch = std::move(counted);
    }
    const std::shared_ptr<ComputeJob::BatchRows> rows =
        job->counting() && job->layout()->slots() > 0
            ? job->compute()->CountedRows(run->work.closure.value(), update.value(), job->layout())
            : TakeRows();
    // With tables the next batch is asked for now: which rows it reads must be known when this
    // step's push leaves. With a device, too: cores are idle.
    if ((rows || job->compute()->on_device()) && job->reads_data() &&
        run->next_step + 1 < run->steps)
      AskBatch();
    // pipeline 1: the second pull leaves beside the first step; later ones ride with the push
    // before last.
    if (pipeline() == 1 && run->next_step == 0 && run->steps > 1) {
      run->exchange->WantPulls(2);
      run->exchange->Flush();
    }
    const std::uint64_t dropout_key = random::KeyOf(
        job->seed(), absl::StrCat("dropout/", run->work.closure.value(), "/", update.value()));
    // What was pulled is taken in the turn that hands it to the compute thread: a run that is let
    // go in between leaves it in the cache, whose next pull would else be answered `unchanged` for
    // values that nobody has.
    auto begin = [batch, rows, dropout_key](Impl& self) {
      auto pulled = std::make_shared<std::vector<PulledShard>>(self.job->cache()->Take());
      self.CountWait();
      self.Compute(
          [compute = self.job->compute(), layout = self.job->layout(), pulled, batch, rows,
           dropout_key, next = self.run->next]() -> absl::StatusOr<ComputeJob::Step> {
            EG_RETURN_IF_ERROR(compute->UseLayout(layout));
            compute->Absorb(std::move(*pulled));
            return compute->Train(*batch, rows.get(), dropout_key, next.get());
          },
          [batch, rows](Impl& then, absl::StatusOr<ComputeJob::Step> done) {
            if (then.env.clock != nullptr) {
              then.job->step_ended = then.env.clock->Now();
              then.job->step_time = *then.job->step_ended - then.step_begun;
            }
            then.OnStep(*batch, rows, std::move(done));
          });
      self.AnnounceStep(*batch);
    };
    if (job->counting() && job->spec()->counting.step_ms > 0) {
      env.control->PostAfter(std::chrono::milliseconds(job->spec()->counting.step_ms),
                             IfRun(std::move(begin)));
    } else {
      begin(*this);
    }
  }

  // A device that waits for servers, a batch or its host between two steps does nothing.
  void CountWait() {
    if (env.clock == nullptr || !job->step_ended) return;
    const MonoTime idle = env.clock->Now() - *std::exchange(job->step_ended, std::nullopt);
    device.AddWait(std::chrono::duration<double>(idle).count());
  }

  // The room for this step's push is asked for shortly before it is expected to be computed: the
  // grant is there in time, and the server does not hold room for a computation.
  void AnnounceStep(const ReadyBatch& batch) {
    if (env.clock == nullptr || job->counting() || job->layout()->slots() > 0)
      return;  // of rows nobody knows yet which shards they are of
    step_begun = env.clock->Now();
    auto shards = Touch(batch);
    if (!shards.ok()) return;
    const bool pulls = run->next_step + pipeline() + 2 <= run->steps || AnotherTrainQueued();
    env.control->PostAfter(
        std::max<MonoTime>(job->step_time - kAnnouncedAhead, MonoTime{0}),
        IfRun([shards = *std::move(shards), pulls, step = run->next_step](Impl& self) {
          if (self.run->busy && self.run->next_step == step)
            self.run->exchange->Announce(shards, pulls);
        }));
  }

  void OnStep(const ReadyBatch& batch, const std::shared_ptr<ComputeJob::BatchRows>& rows,
              absl::StatusOr<ComputeJob::Step> done) {
    const std::uint32_t step = run->next_step;
    if (!done.ok()) return FailStep(done.status());
    device.AddStep(*done);
    std::string skip_reason;
    if (done->too_large) {
      env.logger->Info(
          absl::StrCat("update skipped: its gradients, ", done->loss_scale,
                       " times as large, are beyond float16; the next ones are halved: closure=",
                       run->work.closure.value(), " step=", step),
          About());
      metrics.skips.Add();
      skip_reason = "overflow";
      if (!std::isfinite(done->result.loss_sum)) done->result.loss_sum = 0;
    } else if (!done->result.finite || !done->overflowed.empty()) {
      std::vector<std::uint64_t> named(
          batch.examples.begin(),
          batch.examples.begin() +
              static_cast<std::ptrdiff_t>(std::min(batch.examples.size(), kNamedExamplesMax)));
      const absl::Status status = UserError(absl::OutOfRangeError(
          absl::StrCat(done->result.finite ? "gradient is beyond the range of its wire type: "
                                           : "loss or gradient is not finite (NaN or Inf): ",
                       done->result.finite ? absl::StrCat(done->overflowed, " ") : "",
                       "closure=", run->work.closure.value(), " step=", step,
                       " loss=", done->result.loss_sum / static_cast<double>(batch.size),
                       " examples=", absl::StrJoin(named, ","),
                       batch.examples.size() > named.size()
                           ? absl::StrCat(",… (", batch.examples.size(), " in the batch)")
                           : "")));
      if (!options.skip_not_finite) return Fail(run->work, status);
      env.logger->Warning(absl::StrCat("update skipped: ", status.message()), About());
      metrics.skips.Add();
      skip_reason = done->result.finite ? "overflow" : "nan";
      if (!done->result.finite) done->result.loss_sum = 0;
    }
    if (!skip_reason.empty()) {
      for (MetricSum& metric : done->result.metrics)
        metric.sum = std::isfinite(metric.sum) ? metric.sum : 0;
    }
    auto shards = Touch(batch);
    if (!shards.ok()) return Fail(run->work, shards.status());
    RowPush row_push;
    if (rows) {
      // Here, for the compute thread has the next step to do.
      row_push = RowPush(rows->slots, std::make_shared<const tensor::AlignedBuffer>(
                                          rows->slots->Gather(*done->row_gradients)));
      for (const SlotRows::Part& part : rows->slots->parts()) {
        if (run->work.all_targets || run->work.targets.contains(part.shard))
          row_push.parts.push_back(&part);
      }
    }
    const std::uint64_t global_step = job->plan()->GlobalStep(run->work.closure, UpdateIndex(step));
    Measure(batch, done->result, global_step);
    AtFailpoint(env.failpoints, "worker.before_push", env.control,
                IfRun([shards = *std::move(shards), row_push = std::move(row_push),
                       gradients = std::move(done->gradients), skip_reason,
                       global_step](Impl& self, absl::Status status) {
                  if (!status.ok()) return self.Fail(self.run->work, status);
                  if (self.run->next_step == 0) {
                    self.env.logger->Debug(absl::StrCat("first push of an attempt leaves: attempt=",
                                                        self.run->work.attempt.ToString()),
                                           self.About());
                  }
                  self.PushStep(shards, gradients, row_push, global_step, skip_reason);
                }));
  }

  // ------------------------------------------------------------------ a step of a user's function

  void ComputeFunction() {
    auto pulled = std::make_shared<std::vector<PulledShard>>(job->cache()->Take());
    Compute(
        [compute = job->compute(), layout = job->layout(), pulled,
         call = run->call]() -> absl::StatusOr<ComputeJob::FunctionStep> {
          EG_RETURN_IF_ERROR(compute->UseLayout(layout));
          compute->Absorb(std::move(*pulled));
          return compute->RunFunction(*call);
        },
        [](Impl& self, absl::StatusOr<ComputeJob::FunctionStep> done) {
          self.OnFunctionStep(std::move(done));
        });
  }

  absl::Status AboutFunction(const absl::Status& status) const {
    const std::string name = run->work.function == nullptr ? "" : run->work.function->function;
    const absl::Status named(status.code(), absl::StrCat(status.message(), " function=", name));
    return AboutStep(BlameOf(status) == Blame::kUser ? UserError(named) : named, run->work.closure,
                     run->next_step);
  }

  void OnFunctionStep(absl::StatusOr<ComputeJob::FunctionStep> done) {
    if (!done.ok()) return Fail(run->work, AboutFunction(done.status()));
    const sdk::FunctionCall::Outcome& outcome = done->outcome;
    if (outcome.last) run->result = std::move(done->result);
    if (!outcome.stepped) {
      run->steps = run->next_step;
      run->busy = false;
      return Advance();
    }
    if (outcome.last) run->steps = run->next_step + 1;
    std::string skip_reason;
    if (!done->finite || !done->overflowed.empty()) {
      const absl::Status status = UserError(absl::OutOfRangeError(
          done->finite
              ? absl::StrCat("gradient is beyond the range of its wire type: ", done->overflowed)
              : "gradient is not finite (NaN or Inf)"));
      if (!options.skip_not_finite) return Fail(run->work, AboutFunction(status));
      env.logger->Warning(absl::StrCat("update skipped: ", AboutFunction(status).message()),
                          About());
      metrics.skips.Add();
      skip_reason = done->finite ? "overflow" : "nan";
    }
    run->metrics.set_examples(run->metrics.examples() + outcome.examples);
    run->metrics.set_steps(run->metrics.steps() + 1);
    ++job->steps;
    job->examples += outcome.examples;
    metrics.steps.Add();
    metrics.examples.Add(outcome.examples);
    std::vector<ShardId> shards;
    for (const std::uint32_t variable : outcome.pushed) {
      for (const ShardId shard : job->layout()->variables()[variable].shards) {
        if (run->work.all_targets || run->work.targets.contains(shard)) shards.push_back(shard);
      }
    }
    const std::uint64_t global_step =
        job->plan()->GlobalStep(run->work.closure, UpdateIndex(run->next_step));
    AtFailpoint(env.failpoints, "worker.before_push", env.control,
                IfRun([shards = std::move(shards), gradients = std::move(done->gradients),
                       skip_reason, global_step](Impl& self, absl::Status status) {
                  if (!status.ok()) return self.Fail(self.run->work, status);
                  self.PushStep(shards, gradients, {}, global_step, skip_reason);
                }));
  }

  // Rows of tables that a step pushes: those of `parts`.
  struct RowPush {
    RowPush() {}  // as Job
    RowPush(std::shared_ptr<const SlotRows> s, std::shared_ptr<const tensor::AlignedBuffer> g)
        : slots(std::move(s)), gradients(std::move(g)) {}
    std::shared_ptr<const SlotRows> slots;
    std::shared_ptr<const tensor::AlignedBuffer> gradients;
    std::vector<const SlotRows::Part*> parts;
  };

  // touch(c, u) ∩ targets, of dense shards.
  absl::StatusOr<std::vector<ShardId>> Touch(const ReadyBatch& batch) const {
    std::vector<ShardId> shards;
    if (job->counting()) {
      EG_ASSIGN_OR_RETURN(shards, CountingTouch(*job->layout(), batch.examples));
    } else {
      for (std::uint32_t i = 0; i < job->layout()->dense_shards(); ++i)
        shards.push_back(ShardId(i));
    }
    if (!run->work.all_targets)
      std::erase_if(shards, [&](ShardId shard) { return !run->work.targets.contains(shard); });
    return shards;
  }

  void Measure(const ReadyBatch& batch, const StepResult& result, std::uint64_t global_step) {
    const auto size = static_cast<std::uint64_t>(batch.size);
    const double loss = result.loss_sum / static_cast<double>(std::max<std::uint64_t>(size, 1));
    run->metrics.set_examples(run->metrics.examples() + size);
    run->metrics.set_steps(run->metrics.steps() + 1);
    run->metrics.set_loss_sum(run->metrics.loss_sum() + result.loss_sum);
    run->Add(result.metrics);
    v1::StepRecord record;
    record.set_global_step(global_step);
    record.set_loss(loss);
    record.set_examples(static_cast<std::uint32_t>(size));
    *run->metrics.add_step_records() = record;
    step_log.Add(std::move(record));
    metrics.loss.Set(loss);
    ++job->steps;
    job->examples += size;
    metrics.steps.Add();
    metrics.examples.Add(size);
  }

  void PushStep(const std::vector<ShardId>& dense, const std::shared_ptr<GradientBuffer>& gradients,
                const RowPush& rows, std::uint64_t global_step, absl::string_view skip_reason) {
    const UpdateIndex update(run->next_step);
    std::vector<ShardId> shards = dense;
    for (const SlotRows::Part* part : rows.parts) shards.push_back(part->shard);
    book.Expect(update, shards);
    std::vector<Exchange::Gradient> pushes;
    pushes.reserve(shards.size());
    for (const ShardId shard : dense)
      pushes.push_back({shard, skip_reason.empty() ? GradientBuffer::Slice(gradients, shard)
                                                   : tensor::SharedBytes{}});
    for (const SlotRows::Part* part : rows.parts) {
      if (!skip_reason.empty()) {
        pushes.push_back({part->shard, {}});
        continue;
      }
      const std::span<const std::byte> bytes(rows.gradients->data() + part->first_byte,
                                             part->bytes);
      pushes.push_back({part->shard, {rows.gradients, bytes}, rows.slots, part});
    }
    run->exchange->Push(update, global_step, std::move(pushes), skip_reason);
    ++run->next_step;
    run->busy = false;
    const std::uint64_t ahead = run->next_step + pipeline() +
                                1;  // pulls wanted with this push: of step next_step + pipeline
    if (ahead <= run->steps) {
      run->exchange->WantPulls(ahead);
    } else if (run->next_step == run->steps && AnotherTrainQueued() && !run->call &&
               job->layout()->slots() == 0) {
      // A function reads what was there when it began, or later; which rows the next closure reads
      // is not known yet.
      run->exchange->WantPulls(run->steps + 1);
      pulled_ahead = book.map().version;
    }
    run->exchange->Flush();
    Advance();
  }

  // The values that the last push brings back serve the next closure, if it begins at once.
  bool AnotherTrainQueued() const {
    for (const AttemptBook::Held& held : book.HeldForHello()) {
      if (!held.begun) return held.work.kind == WorkKind::kTrain;
    }
    return false;
  }

  // ------------------------------------------------------------------ evaluation and export

  void EvaluateBatch() {
    run->busy = true;
    job->step_ended.reset();
    auto pulled = std::make_shared<std::vector<PulledShard>>(job->cache()->Take());
    if (job->counting()) {
      return Compute(
          [compute = job->compute(), layout = job->layout(), pulled, begin = run->begin,
           end = run->end]() -> absl::StatusOr<std::int64_t> {
            EG_RETURN_IF_ERROR(compute->UseLayout(layout));
            compute->Absorb(std::move(*pulled));
            return compute->EvaluateCounting(begin, end);
          },
          [](Impl& self, absl::StatusOr<std::int64_t> sum) {
            if (!sum.ok()) return self.Fail(self.run->work, sum.status());
            self.run->count = *sum;
            self.run->metrics.set_examples(self.run->end - self.run->begin);
            self.EndEvaluationStep();
          });
    }
    const std::shared_ptr<const ReadyBatch> batch = std::move(run->batch);
    const std::shared_ptr<ComputeJob::BatchRows> rows = TakeRows();
    if (run->next_step + 1 < run->steps) AskBatch();
    Compute(
        [compute = job->compute(), layout = job->layout(), pulled, batch, rows,
         next = run->next]() -> absl::StatusOr<StepResult> {
          EG_RETURN_IF_ERROR(compute->UseLayout(layout));
          compute->Absorb(std::move(*pulled));
          return compute->Evaluate(*batch, rows.get(), next.get());
        },
        [batch](Impl& self, absl::StatusOr<StepResult> result) {
          if (!result.ok()) return self.FailStep(result.status());
          self.run->metrics.set_examples(self.run->metrics.examples() +
                                         static_cast<std::uint64_t>(batch->size));
          self.run->metrics.set_loss_sum(self.run->metrics.loss_sum() + result->loss_sum);
          self.run->Add(result->metrics);
          self.EndEvaluationStep();
        });
  }

  void EndEvaluationStep() {
    ++run->next_step;
    run->metrics.set_steps(run->next_step);
    if (run->next_step < run->steps) {
      run->busy = false;
      return Advance();
    }
    AtFailpoint(env.failpoints, "worker.evaluate", env.control,
                IfRun([](Impl& self, absl::Status status) {
                  if (!status.ok()) return self.Fail(self.run->work, status);
                  self.run->busy = false;
                  self.Advance();
                }));
  }

  // To the runs folder, where this host sees the coordinator's own; else the files are sent, a part
  // at a time.
  void Export() {
    run->busy = true;
    auto pulled = std::make_shared<std::vector<PulledShard>>(job->cache()->Take());
    Compute(
        [compute = job->compute(), layout = job->layout(), pulled, folder = job->runs_folder(),
         order = job->export_order]() -> absl::StatusOr<ExportBegun> {
          EG_RETURN_IF_ERROR(compute->UseLayout(layout));
          compute->Absorb(std::move(*pulled));
          ExportBegun begun;
          EG_ASSIGN_OR_RETURN(ComputeJob::Exported exported, compute->Export());
          begun.exported = std::make_shared<const ComputeJob::Exported>(std::move(exported));
          begun.sent = order.upload() || !SeesRunsFolder(folder, order);
          if (begun.sent) return begun;
          EG_ASSIGN_OR_RETURN(begun.written, WriteExport(folder, begun.exported->files));
          return begun;
        },
        [](Impl& self, absl::StatusOr<ExportBegun> begun) {
          if (!begun.ok()) return self.Fail(self.run->work, begun.status());
          self.run->exported.set_host(self.options.host);
          if (!begun->sent) {
            for (const v1::RunFileInfo& file : begun->written) {
              self.run->exported.add_files(absl::StrCat(self.job->runs_folder(), "/", file.name()));
              *self.run->exported.add_exported() = file;
            }
            return self.Finish();
          }
          std::vector<Upload::File> files;
          for (const ExportFile& file : begun->exported->files)
            files.push_back({file.name, file.bytes});
          self.run->exported.set_uploaded(true);
          self.run->sending = std::move(begun->exported);
          self.run->upload.emplace(std::move(files), client::kRunFileChunkMax,
                                   client::kRunFileWindow);
          self.SendFiles();
        });
  }

  // One part is read at a time, on the compute thread, where the values are.
  void SendFiles() {
    if (run->upload->done()) {
      for (const auto& [name, file] : run->sent) *run->exported.add_exported() = file;
      return Finish();
    }
    if (run->reading) return;
    const std::optional<Upload::Chunk> next = run->upload->Next();
    if (!next) return;
    run->reading = true;
    Compute(
        [compute = job->compute(), sending = run->sending, reader = run->reader, next = *next] {
          v1::RunFileChunk chunk;
          reader->Read(sending->files[next.file], next.offset, next.bytes, next.last, &chunk);
          return chunk;
        },
        [generation = run->upload->generation()](Impl& self, v1::RunFileChunk chunk) {
          self.run->reading = false;
          if (generation == self.run->upload->generation()) self.SendFile(std::move(chunk));
          if (self.run) self.SendFiles();
        });
  }

  void SendFile(v1::RunFileChunk chunk) {
    if (!chunk.sha256().empty()) {
      v1::RunFileInfo& file = run->sent[chunk.name()];
      file.set_name(chunk.name());
      file.set_bytes(chunk.bytes());
      file.set_sha256(chunk.sha256());
    }
    FillAttempt(run->work, &chunk);
    v1::TaskMessage message;
    *message.mutable_run_file() = std::move(chunk);
    env.send(std::move(message));  // without a session: the file begins anew in the next one
  }

  void OnRunFileAnswer(const v1::RunFileAnswer& answer) {
    if (!run || !run->upload || run->finishing || JobUid(answer.job_uid()) != run->work.job ||
        FromProto<Attempt>(answer.attempt()) != run->work.attempt)
      return;
    if (answer.has_error()) {
      const absl::Status error = client::FromErrorDetail(answer.error());
      const bool no_room = absl::IsResourceExhausted(error);
      const bool quiet = no_room && NoRoomSaidLately();
      env.logger->Write(quiet ? log::Level::kDebug : log::Level::kWarning,
                        absl::StrCat("the coordinator does not take a file: name=", answer.name(),
                                     " reason=", error.message()),
                        About());
      if (!no_room) return Fail(run->work, error);
      return GiveUpRun("the coordinator has no room for its files",
                       quiet ? log::Level::kDebug : log::Level::kInfo);
    }
    if (const absl::Status confirmed = run->upload->Confirm(answer.name(), answer.written());
        !confirmed.ok())
      return Fail(run->work, confirmed);
    SendFiles();
  }

  // Else it is said now.
  bool NoRoomSaidLately() {
    if (env.clock == nullptr) return false;
    const MonoTime now = env.clock->Now();
    if (no_room_said_at && now - *no_room_said_at < kTroubleSaidEvery) return true;
    no_room_said_at = now;
    return false;
  }

  void RestartUpload() {
    if (!run || !run->upload || run->finishing) return;
    run->upload->Restart();
    SendFiles();
  }

  // ------------------------------------------------------------------ the end of an attempt

  void Finish() {
    run->finishing = true;
    AtFailpoint(env.failpoints, "worker.before_done", env.control,
                IfRun([](Impl& self, absl::Status status) {
                  const bool dropped =
                      status.code() ==
                      absl::StatusCode::kAborted;  // kept, and sent in the next session
                  if (!status.ok() && !dropped) return self.Fail(self.run->work, status);
                  self.Report(!dropped);
                }));
  }

  void Report(bool send) {
    env.logger->Debug(absl::StrCat("attempt ends: attempt=", run->work.attempt.ToString()),
                      About());
    v1::Done done;
    FillWork(run->work, &done);
    switch (run->work.kind) {
      case WorkKind::kTrain:
      case WorkKind::kEvaluate: {
        if (run->call) {
          *done.mutable_metrics() = std::move(run->metrics);
          done.set_result(std::move(run->result));
          break;
        }
        if (job->counting()) {
          v1::NamedSum& sum = *run->metrics.add_sums();
          sum.set_name("count");
          sum.set_is_integer(true);
          sum.set_count(run->count);
        } else {
          FillSums(job->spec()->model.metrics, run->measured, run->work.kind == WorkKind::kEvaluate,
                   &run->metrics);
        }
        *done.mutable_metrics() = std::move(run->metrics);
        if (run->work.kind == WorkKind::kTrain && run->work.all_targets) {
          v1::TouchedLess& touched = *done.mutable_touched();
          for (const auto& [shard, updates] : book.TouchedLess()) {
            touched.add_shards(shard);
            touched.add_updates(updates);
          }
        }
        break;
      }
      case WorkKind::kDescribe: *done.mutable_describe() = std::move(run->describe); break;
      case WorkKind::kExport: *done.mutable_export_() = std::move(run->exported); break;
    }
    // A Done that cannot be sent would be kept for ever. It ends the attempt, and the job with it.
    if (const absl::Status size = reports.CheckSize(run->work, done); !size.ok())
      return Fail(run->work, size);
    const DoneReport report = book.Finish();
    *done.mutable_v0() = ToProto(report.v0);
    *done.mutable_v1() = ToProto(report.v1);
    if (report.work.kind == WorkKind::kTrain && pulled_ahead &&
        *pulled_ahead == book.map().version && run->exchange->PullsDone(run->steps + 1))
      job->pulled_ahead = pulled_ahead;
    metrics.done.Add();
    AbortRun();
    reports.KeepDone(report.work.attempt, std::move(done));
    if (send) SendDone(report.work.attempt);
  }

  // Lets go of the run, whatever the book says of its attempt.
  void AbortRun() {
    const Attempt attempt = run->work.attempt;
    pulled_ahead.reset();
    if (run->cancelled) run->cancelled->store(true);
    if (run->call) compute.Post([call = std::move(run->call)] {});
    run.reset();
    Forget(attempt);
    CheckDrained();
    SchedulePump();
  }
  // The book may have dropped the running attempt.
  void SyncRun() {
    if (run && (book.running() == nullptr || book.running()->attempt != run->work.attempt))
      AbortRun();
  }

  // ------------------------------------------------------------------ leaving

  void BeginDrain(std::function<void()> done) {
    if (!drain->Begin(std::move(done))) return;
    for (const AttemptBook::Held& held : book.HeldForHello()) {
      if (!held.begun) Recall(held.work.attempt, "draining");
    }
    if (run && run->work.kind != WorkKind::kTrain && !run->finishing) {
      GiveUpRun();
    } else if (run) {
      env.control->PostAfter(options.drain_step_max, IfRun([](Impl& self) { self.GiveUpRun(); }));
      Advance();
    }
    CheckDrained();
  }

  void GiveUpRun(absl::string_view reason = "draining", log::Level level = log::Level::kInfo) {
    if (!run) return;
    SendDropped(run->work, reason, std::nullopt, level);
    book.Drop(run->work.attempt);
    AbortRun();
  }

  void CheckDrained() { drain->Check(run.has_value(), !book.Unanswered().empty()); }

  v1::WorkerProgress Progress() {
    v1::WorkerProgress progress;
    progress.set_state("idle");
    progress.set_computing(compute.busy() || (input && input->opening()));
    progress.set_waiting_for(waiting_for);
    if (run) {
      progress.set_state(
          run->exchange && run->exchange->WaitsForRoom() ? "paused" : StateName(run->work.kind));
      progress.set_running_closure(run->work.closure.value());
      *progress.mutable_running_attempt() = ToProto(run->work.attempt);
      // A file that is sent advances, too: by each MiB that is confirmed.
      progress.set_running_step(
          run->upload ? static_cast<std::uint32_t>(run->upload->confirmed_bytes() >> 20)
                      : run->next_step);
      if (run->exchange) progress.set_waiting_for(run->exchange->WaitingFor());
      if (run->exchange) run->exchange->FillUnreached(&progress);
    } else if (const Work* next = book.NextToBegin(); next != nullptr) {
      // Between two closures (a Done is sent there) it is not idle. Without a running attempt no
      // death is blamed on the next one.
      progress.set_state(StateName(next->kind));
      progress.set_running_closure(next->closure.value());
    }
    if (!progress.waiting_for().empty() && !run) progress.set_state("waiting");
    if (job) {
      job->FillProgress(&progress);
    }
    // A heartbeat that does not fit into a message is none, and the lease ends: what a server says
    // in it is bounded.
    progress.set_waiting_for(client::CleanText(progress.waiting_for(), kWaitingForBytesMax));
    const client::ParameterClient::Stats stats = env.client->stats();
    progress.set_bytes_sent(stats.bytes_sent);
    progress.set_bytes_received(stats.bytes_received);
    if (job) {
      progress.set_job_stint(stint);
      progress.set_job_bytes(stats.bytes_sent + stats.bytes_received - bytes_before_job);
    }
    device.WarnOnce(env.logger, About());
    device.Fill(&progress);
    step_log.MoveTo(&progress);
    return progress;
  }

  const Environment env;
  Options options;  // data_roots change with the coordinator; the rest is constant
  const std::shared_ptr<ComputeBackend> backend;  // shared by the jobs' compute parts
  // What comes from servers or is read from files lands where the device reads it. Exchanges have
  // it, too, and are not the backend's last owners.
  const Room room = [weak = std::weak_ptr<ComputeBackend>(backend)](std::size_t bytes) {
    const auto made = weak.lock();
    return made == nullptr ? tensor::AlignedBuffer() : made->Stage(bytes);
  };
  ComputeQueue compute{env.control, env.compute};
  AttemptBook book;
  RunnerMetrics metrics;
  DeviceReport device;
  AttemptReports reports{{env.send, env.logger, &metrics, options.message_bytes_max}};
  StepLog step_log{options.step_records_max, &metrics.step_records};
  BatchStreams streams;
  std::unique_ptr<JobContext> job;     // null: no job is served
  std::shared_ptr<InputOpener> input;  // of `job`; shared with its own callbacks
  std::uint64_t bytes_before_job = 0;  // sent and received by this process before `job`
  std::uint64_t stint = 0;             // how often a job has begun here
  std::optional<Run> run;
  std::map<std::string, v1::Endpoint> endpoints;
  std::string identity, waiting_for;
  v1::Stamp registration;
  std::optional<MapVersion> pulled_ahead;  // map under which the last push also pulled
  std::uint64_t highest_term = 0, life_id = 0, last_run = 0;
  MonoTime step_begun{0};  // when the step that is computed was handed to the compute thread
  std::optional<MonoTime> no_room_said_at;
  bool pump_scheduled = false;
  std::shared_ptr<worker::Drain> drain;  // from Init on; shared with its own callbacks
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
