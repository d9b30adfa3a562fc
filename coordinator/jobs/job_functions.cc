// Closures as an API: the part of a job whose closures come from a client's schedule()
// (docs/closures.md).
//
// The queue holds what the journal must know (function_queue.h); here it is joined with the ledger:
// a closure that fails or is cancelled is dead in the book [20], and the user is told once every
// owner of a shard refuses it. Arguments are kept while a snapshot may still need the closure again
// [33].
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "coordinator/jobs/function_queue.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

// Numbers that a life may have given out and a torn journal forgotten: servers may hold updates of
// them. More than any tail that was not durable.
constexpr std::uint64_t kLifeGap = 1u << 16;
constexpr std::size_t kCancelMax = 65536;

template <class Response>
std::optional<absl::StatusOr<Response>> Refuse(absl::Status status) {
  return absl::StatusOr<Response>(std::move(status));
}

// Keras' compute_fans.
std::pair<std::uint64_t, std::uint64_t> Fans(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return {1, 1};
  if (shape.size() == 1) return {shape[0], shape[0]};
  std::uint64_t field = 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) field *= shape[i];
  return {field * shape[shape.size() - 2], field * shape.back()};
}

bool IsFunctionName(absl::string_view name) {
  return !name.empty() && name.size() <= client::kFunctionNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

v1::DescribeResult Job::DescribeFunctions() const {
  v1::DescribeResult result;
  std::uint64_t parameters = 0;
  std::string summary = "variable  shape  initializer  optimizer\n";
  for (const config::FunctionVariable& variable : id_.spec.functions.variables) {
    const optimizers::Settings& optimizer =
        variable.optimizer ? *variable.optimizer : id_.spec.optimizer;
    v1::VariableSpec& spec = *result.add_variables();
    spec.set_index(static_cast<std::uint32_t>(result.variables_size() - 1));
    spec.set_name(variable.name);
    std::uint64_t elements = 1;
    std::string shape;
    for (const std::uint64_t d : variable.shape) {
      spec.add_shape(d);
      elements *= d;
      absl::StrAppend(&shape, shape.empty() ? "" : ",", d);
    }
    parameters += elements;
    spec.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(id_.spec, variable.name, &spec);
    const auto [fan_in, fan_out] = Fans(variable.shape);
    client::FillInitializer(variable.initializer, fan_in, fan_out, id_.spec.training.seed,
                            spec.mutable_initializer());
    client::FillOptimizer(optimizer, spec.mutable_optimizer());
    absl::StrAppend(&summary, variable.name, "  [", shape, "]  ", variable.initializer.type, "  ",
                    optimizer.type, "\n");
  }
  result.set_parameters(parameters);
  result.set_model_summary(summary);
  return result;
}

void Job::NoteFunctions(const v1::FunctionsNote& note) {
  functions_->Apply(note);
  if (journals()) Note().mutable_functions()->MergeFrom(note);
  Touch();
  host_->JobChanged(id_.uid);
}

// ---------------------------------------------------------------- grants and ends

void Job::FillCall(std::uint64_t closure, v1::Grant* grant) const {
  const FunctionQueue::ScheduledClosure* entry = functions_->Find(closure);
  if (entry == nullptr) return;
  grant->set_function(entry->function);
  grant->set_arguments(entry->arguments);
}

// What was counted, when it happens and when the journal is read.
void Job::AddFunction(const v1::FunctionSucceeded& one) {
  epochs_.CountUnplanned(one.steps(), one.examples());
  totals_.CountClosure(one.worker(), one.steps(), one.examples());
}

void Job::CountFunction(const std::string& identity, ClosureId closure, const v1::Done& done) {
  v1::FunctionsNote note;
  v1::FunctionSucceeded* one = note.add_succeeded();
  one->set_closure(closure.value());
  one->set_worker(identity);
  one->set_steps(std::min<std::uint64_t>(done.metrics().steps(), kUpdatesPerClosureMax));
  one->set_examples(std::min<std::uint64_t>(done.metrics().examples(), 1ull << 40));
  one->set_result(done.result());
  AddFunction(*one);
  const bool first = functions_->results_given_up() == 0;
  NoteFunctions(note);
  if (first && functions_->results_given_up() > 0)
    Event("warning", absl::StrCat("discarding results, the oldest first, because they exceed "
                                  "the limit: result_bytes_max=",
                                  id_.spec.functions.result_bytes_max));
}

// [20]. False: the store failed.
bool Job::CancelFunctions(const IntervalSet& closures, v1::FunctionsNote* note) {
  *note->mutable_cancelled() = client::ToProto(closures);
  const Record record = book_->Cancel(closures);
  closing_.UnionWith(record.dead_add);
  NoteFunctions(*note);
  if (!Persist(record)) return false;
  std::vector<std::pair<ClosureId, ClosureBook::Current>> taken;
  for (const auto& [closure, current] : book_->current()) {
    if (record.dead_add.Contains(closure.value())) taken.emplace_back(closure, current);
  }
  for (const auto& [closure, current] : taken) {
    book_->ReleaseAttempt(closure, current.attempt);
    failures_.erase(closure.value());
    poison_.OnEnded(closure);
    Worker* worker = FindWorker(current.worker);
    if (worker == nullptr) continue;
    if (worker->Drop(current.attempt)) worker->advanced_at = host_->Now();
    SendSuperseded(worker->task, closure, current.attempt);
  }
  SendCloses();
  CheckClosing();
  return true;
}

// The first error wins: everything else that has not ended is cancelled, and the next call is told.
void Job::FailFunction(ClosureId closure, v1::ErrorDetail cause) {
  IntervalSet open;
  for (const std::uint64_t c : functions_->open()) open.Add(c);
  if (!open.Contains(closure.value())) return;
  const FunctionQueue::ScheduledClosure* entry = functions_->Find(closure.value());
  v1::FunctionsNote note;
  note.mutable_failed()->set_closure(closure.value());
  note.mutable_failed()->set_function(entry == nullptr ? "" : entry->function);
  const std::size_t others = open.size() - 1;
  Event("error", absl::StrCat("closure ", closure.value(), " (", note.failed().function(),
                              ") failed: ", ErrorText(cause),
                              others == 0 ? ""
                                          : absl::StrCat("; ", others,
                                                         others == 1 ? " other is" : " others are",
                                                         " cancelled")));
  *note.mutable_failed()->mutable_cause() = std::move(cause);
  CancelFunctions(open, &note);
}

void Job::BeginFunctionsLife(Record* begun) {
  if (functions_->next() + kLifeGap < plan_->closures()) {
    v1::FunctionsNote note;
    note.set_next(functions_->next() + kLifeGap);
    AppendRecord(book_->Cancel(IntervalSet::Range(functions_->next(), note.next())), begun);
    NoteFunctions(note);
  }
  closing_ = book_->durable().dead;  // who refuses it is learned anew
}

void Job::CheckClosing() {
  if (closing_.empty() || window_open_ || !book_ || !book_->RefusedEverywhere(closing_)) return;
  closing_.Clear();
  host_->JobChanged(id_.uid);
}

// ---------------------------------------------------------------- arguments, and what is saved

// [33] Arguments go once every snapshot of every shard holds what their closure did; where
// schedule() waits for room, once the newest does. Should that one be damaged later, an older one
// lacks the closure, and its updates there are counted as lost.
void Job::TrimArguments() {
  if (!functions_ || !book_) return;
  std::vector<std::uint64_t> ended;
  for (const auto& [c, entry] : functions_->kept()) {
    if (!functions_->open().contains(c)) ended.push_back(c);
  }
  if (ended.empty()) room_wanted_ = false;
  if (ended.empty() || !shards_.placed()) return;
  const DurableState& state = book_->durable();
  IntervalSet drop;
  if (rounds_.on()) {
    IntervalSet saved = state.succeeded;
    for (std::uint32_t p = 0; p < shards_.size(); ++p) {
      const std::vector<Snapshot>& known = state.snapshots[p];
      IntervalSet here;
      if (!known.empty()) here = known.back().done;
      if (!room_wanted_) {
        for (const Snapshot& s : known) here = here.Intersect(s.done);
      }
      saved = saved.Intersect(here.Union(state.lost[p]));
    }
    for (const std::uint64_t c : ended) {
      if (saved.Contains(c)) drop.Add(c);
    }
  } else if (room_wanted_) {
    std::uint64_t bytes = functions_->argument_bytes();
    for (const std::uint64_t c : ended) {
      if (bytes <= functions_->argument_bytes_max() / 2) break;
      bytes -= functions_->Find(c)->arguments.size() + FunctionQueue::kEntryBytes;
      drop.Add(c);
    }
    if (!drop.empty() && !std::exchange(arguments_given_up_said_, true))
      Event(
          "warning",
          "discarding the arguments of ended closures because they exceed the limit: there are no "
          "checkpoints, so a lost server would lose their updates");
  }
  if (drop.empty()) return;
  room_wanted_ = false;
  v1::FunctionsNote note;
  *note.mutable_arguments_dropped() = client::ToProto(drop);
  NoteFunctions(note);
}

bool Job::EverythingIsSaved(const std::vector<IntervalSet>& saved) const {
  if (saved.size() != shards_.size()) return false;
  const DurableState& state = book_->durable();
  for (std::uint32_t p = 0; p < saved.size(); ++p) {
    if (!saved[p].ContainsAll(state.succeeded.Minus(state.lost[p]))) return false;
  }
  return true;
}

// A checkpoint has been written.
void Job::NoteSaved(const v1::Manifest& manifest) {
  if (!functions_) return;
  saved_done_.assign(shards_.size(), IntervalSet());
  for (const v1::ShardFile& entry : manifest.shards()) {
    if (auto done = client::FromProto(entry.done());
        done.ok() && entry.shard() < saved_done_.size())
      saved_done_[entry.shard()] = *std::move(done);
  }
  TrimArguments();
  host_->JobChanged(id_.uid);
}

// ---------------------------------------------------------------- the calls

absl::Status Job::FunctionsRefusal() const {
  if (!functions_)
    return UserError(absl::FailedPreconditionError(
        absl::StrCat("closures can be scheduled only in jobs of spec.type functions: job=", name(),
                     " type=", id_.spec.type)));
  if (!ended() && phase_ < Phase::kSealing) return absl::OkStatus();
  if (first_cause_) {
    const absl::Status cause = client::FromErrorDetail(*first_cause_);
    const absl::Status text(cause.code(), absl::StrCat("the job has failed: job=", name(),
                                                       " cause=", ErrorText(*first_cause_)));
    return cause_is_users_ ? UserError(text) : WithRetryable(text, false);
  }
  const JobState end = ended() ? state_ : ending_;
  if (end == JobState::kCancelled)
    return UserError(absl::CancelledError(absl::StrCat("the job was cancelled: job=", name())));
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("the job has ended: job=", name(), " state=", JobStateName(end))));
}

absl::Status Job::CallRefusal(const v1::ClosureCall& call) const {
  EG_RETURN_IF_ERROR(FunctionsRefusal());
  if (call.client() == 0 || call.call() == 0 || call.answered_below() > call.call())
    return absl::InvalidArgumentError(
        absl::StrCat("invalid call number: client=", call.client(), " call=", call.call()));
  return absl::OkStatus();
}

std::string Job::ClosingText() const {
  return absl::StrCat("servers to close cancelled closures: ",
                      closing_.size() > kLifeGap ? "those of earlier coordinator processes"
                                                 : absl::StrCat(closing_.size(), " left"));
}

std::optional<v1::RaisedError> Job::TellError(const v1::ClosureCall& call, bool* wait) {
  if (const v1::RaisedError* told = functions_->Raised(call)) return *told;
  if (functions_->error() == nullptr) return std::nullopt;
  CheckClosing();
  *wait = !closing_.empty() || !host_->StoreTrouble().empty();
  if (*wait) return std::nullopt;
  v1::FunctionsNote note;
  *note.mutable_raised()->mutable_error() = *functions_->error();
  *note.mutable_raised()->mutable_call() = call;
  NoteFunctions(note);
  if (!Persist(Record())) *wait = true;
  return note.raised().error();
}

void Job::ReleaseFunctions(const v1::IntervalSet& released) {
  if (released.bounds_size() == 0) return;
  // A call that waits is asked again and again: only what changes something is a change.
  if (const auto set = client::FromProto(released); !set.ok() || !functions_->WouldRelease(*set))
    return;
  v1::FunctionsNote note;
  *note.mutable_released() = released;
  NoteFunctions(note);
}

Job::Answer<v1::ScheduleClosureResponse> Job::Schedule(const v1::ScheduleClosureRequest& request,
                                                       std::string* waiting_for) {
  using Response = v1::ScheduleClosureResponse;
  Response response;
  if (functions_) {  // also once the job ends: it was scheduled
    if (const auto again = functions_->Scheduled(request.call())) {
      response.set_scheduled(true);
      response.set_closure(*again);
      return response;
    }
  }
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (functions_->Answered(request.call()))
    return Refuse<Response>(
        absl::InvalidArgumentError("the client repeats a call that it has acknowledged"));
  if (auto released = client::FromProto(request.released()); !released.ok())
    return Refuse<Response>(released.status());
  if (!IsFunctionName(request.function()))
    return Refuse<Response>(UserError(absl::InvalidArgumentError(
        absl::StrCat("invalid function name: want=1 to ", client::kFunctionNameBytesMax,
                     " visible characters got=", client::CleanText(request.function(), 200)))));
  if (request.arguments().size() > client::kArgumentBytesMax)
    return Refuse<Response>(UserError(absl::InvalidArgumentError(
        absl::StrCat("arguments of a closure too large: bytes=", request.arguments().size(),
                     " max=", client::kArgumentBytesMax))));
  bool wait = false;
  if (auto error = TellError(request.call(), &wait)) {
    if (wait) return std::nullopt;
    *response.mutable_error() = *std::move(error);
    return response;
  }
  if (wait) {
    *waiting_for = ClosingText();
    return std::nullopt;
  }
  if (functions_->finish())
    return Refuse<Response>(UserError(absl::FailedPreconditionError(
        absl::StrCat("the job is finishing and accepts no closures: job=", name()))));
  if (!book_) {
    *waiting_for = "the job to start";
    return std::nullopt;
  }
  if (std::string store = WaitingForStore(); !store.empty()) {
    *waiting_for = std::move(store);
    return std::nullopt;
  }
  ReleaseFunctions(request.released());
  if (functions_->full()) {
    *waiting_for = absl::StrCat("space in the queue: queue_limit=", id_.spec.functions.queue_limit);
    return std::nullopt;
  }
  if (!functions_->HasRoomFor(request.arguments().size())) {
    room_wanted_ = true;
    TrimArguments();
    if (!functions_->HasRoomFor(request.arguments().size())) {
      room_wanted_ = true;
      *waiting_for = absl::StrCat(
          "memory for its arguments, which closures free when they are saved: argument_bytes_max=",
          functions_->argument_bytes_max());
      return std::nullopt;
    }
  }
  if (functions_->next() >= plan_->closures())
    return Refuse<Response>(
        WithRetryable(absl::ResourceExhaustedError(
                          absl::StrCat("no more closures in this job: max=", plan_->closures())),
                      false));
  v1::FunctionsNote note;
  v1::FunctionScheduled* one = note.add_scheduled();
  one->set_closure(functions_->next());
  one->set_function(request.function());
  one->set_arguments(request.arguments());
  *one->mutable_call() = request.call();
  NoteFunctions(note);
  UpdateNewLimit();
  if (!Persist(Record())) return std::nullopt;
  response.set_scheduled(true);
  response.set_closure(one->closure());
  Pump();
  return response;
}

// An error goes first: TellError has been asked.
std::string Job::Unjoined(bool durable) {
  CheckClosing();
  if (!functions_->open().empty()) {
    const std::string why = WaitingFor();
    return absl::StrCat(functions_->open().size(),
                        functions_->open().size() == 1 ? " closure" : " closures", " to end",
                        why.empty() ? "" : absl::StrCat("; waiting for ", why));
  }
  if (!closing_.empty()) return ClosingText();
  if (!book_) return durable ? "the job to start" : "";
  if (!durable || EverythingIsSaved(saved_done_)) return "";
  round_wanted_ = true;
  return absl::StrCat(
      "a checkpoint of the closures",
      rounds_.status().trouble().empty() ? "" : absl::StrCat(": ", rounds_.status().trouble()));
}

Job::Answer<v1::JoinClosuresResponse> Job::Join(const v1::JoinClosuresRequest& request,
                                                std::string* waiting_for) {
  using Response = v1::JoinClosuresResponse;
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (auto released = client::FromProto(request.released()); !released.ok())
    return Refuse<Response>(released.status());
  ReleaseFunctions(request.released());
  Response response;
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait) {
    *response.mutable_error() = *std::move(error);
    return response;
  }
  if (request.durable() && !rounds_.on())
    return Refuse<Response>(UserError(absl::FailedPreconditionError(
        absl::StrCat("join(durable) needs checkpoints, and the job has none: job=", name()))));
  *waiting_for = wait ? ClosingText() : Unjoined(request.durable());
  if (!waiting_for->empty()) return std::nullopt;
  response.set_joined(true);
  return response;
}

Job::Answer<v1::ClosuresDoneResponse> Job::ClosuresDone(const v1::ClosuresDoneRequest& request) {
  using Response = v1::ClosuresDoneResponse;
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  Response response;
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait)
    *response.mutable_error() = *std::move(error);
  response.set_done(!wait && !response.has_error() && Unjoined(false).empty());
  response.set_scheduled(functions_->scheduled());
  response.set_succeeded(functions_->succeeded());
  response.set_failed(functions_->failed());
  response.set_cancelled(functions_->cancelled());
  return response;
}

Job::Answer<v1::FetchResultResponse> Job::FetchResult(const v1::FetchResultRequest& request,
                                                      std::string* waiting_for) {
  using Response = v1::FetchResultResponse;
  if (!functions_) return Refuse<Response>(FunctionsRefusal());
  Response response;
  const std::uint64_t c = request.closure();
  if (const std::string* result = functions_->Result(c)) {
    response.set_state(v1::RESULT_SUCCEEDED);
    response.set_result(*result);
    return response;
  }
  if (const v1::RaisedError* failure = functions_->Failure(c)) {
    response.set_state(v1::RESULT_FAILED);
    *response.mutable_cause() = failure->cause();
    return response;
  }
  if (absl::Status refused = FunctionsRefusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (c >= functions_->next())
    return Refuse<Response>(UserError(absl::NotFoundError(
        absl::StrCat("no such closure: closure=", c, " next=", functions_->next()))));
  if (functions_->open().contains(c)) {
    const std::string why = WaitingFor();
    *waiting_for = absl::StrCat("closure ", c, " to end",
                                why.empty() ? "" : absl::StrCat("; waiting for ", why));
    return std::nullopt;
  }
  response.set_state(book_ && book_->durable().succeeded.Contains(c) ? v1::RESULT_GONE
                                                                     : v1::RESULT_CANCELLED);
  return response;
}

Job::Answer<v1::CancelClosuresResponse> Job::CancelClosures(
    const v1::CancelClosuresRequest& request, std::string* waiting_for) {
  using Response = v1::CancelClosuresResponse;
  if (absl::Status refused = FunctionsRefusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (static_cast<std::size_t>(request.closures_size()) > kCancelMax)
    return Refuse<Response>(absl::InvalidArgumentError(absl::StrCat(
        "too many closures in one call: max=", kCancelMax, " got=", request.closures_size())));
  if (std::string store = WaitingForStore(); !store.empty()) {
    *waiting_for = std::move(store);
    return std::nullopt;
  }
  IntervalSet open;
  if (request.all()) {
    for (const std::uint64_t c : functions_->open()) open.Add(c);
  }
  for (const std::uint64_t c : request.closures()) {
    if (functions_->open().contains(c)) open.Add(c);
  }
  if (book_ && !open.empty()) {
    Event("state", absl::StrCat("cancelled by its client: ",
                                open.size() == 1 ? absl::StrCat("closure ", *open.First())
                                                 : absl::StrCat(open.size(), " closures")));
    v1::FunctionsNote note;
    if (!CancelFunctions(open, &note)) return std::nullopt;
    Pump();
  }
  CheckClosing();
  if (!closing_.empty()) {
    *waiting_for = ClosingText();
    return std::nullopt;
  }
  Response response;
  response.set_cancelled(true);
  return response;
}

Job::Answer<v1::ReleaseResultsResponse> Job::ReleaseResults(
    const v1::ReleaseResultsRequest& request) {
  using Response = v1::ReleaseResultsResponse;
  if (absl::Status refused = FunctionsRefusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (auto released = client::FromProto(request.released()); !released.ok())
    return Refuse<Response>(released.status());
  ReleaseFunctions(request.released());
  if (!Persist(Record())) return std::nullopt;
  return absl::StatusOr<Response>(Response());
}

Job::Answer<v1::FinishJobResponse> Job::Finish(const v1::FinishJobRequest& request,
                                               std::string* waiting_for) {
  using Response = v1::FinishJobResponse;
  Response response;
  response.set_finishing(true);
  if (functions_ && functions_->finish()) return response;  // a repeat, also after the end
  response.clear_finishing();
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait) {
    *response.mutable_error() = *std::move(error);
    return response;
  }
  *waiting_for = wait ? ClosingText() : !book_ ? "the job to start" : Unjoined(false);
  if (waiting_for->empty()) *waiting_for = WaitingForStore();
  if (!waiting_for->empty()) return std::nullopt;
  v1::FunctionsNote note;
  note.set_finish(true);
  NoteFunctions(note);
  Event("state", absl::StrCat("finished by its client after ", functions_->scheduled(),
                              functions_->scheduled() == 1 ? " closure" : " closures"));
  if (!Persist(Record())) return std::nullopt;
  response.set_finishing(true);
  Pump();
  return response;
}

std::string Job::WaitingForFunction() const {
  std::set<std::string> there;
  for (const auto& [task, worker] : workers_) {
    if (Usable(worker)) there.insert(worker.functions.begin(), worker.functions.end());
  }
  for (const std::uint64_t c : functions_->open()) {
    if (book_->current().contains(ClosureId(c))) continue;
    const FunctionQueue::ScheduledClosure* entry = functions_->Find(c);
    if (entry != nullptr && !there.contains(entry->function))
      return absl::StrCat("workers: no connected worker has function `", entry->function, "`");
  }
  return "";
}

}  // namespace evergrad::coordinator
