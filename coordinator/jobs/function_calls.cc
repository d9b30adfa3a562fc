#include "coordinator/jobs/function_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kCancelMax = 65536;  // largest number of closures in one call

template <class Response>
std::optional<absl::StatusOr<Response>> Refuse(absl::Status status) {
  return absl::StatusOr<Response>(std::move(status));
}

bool IsFunctionName(absl::string_view name) {
  return !name.empty() && name.size() <= client::kFunctionNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

FunctionCalls::FunctionCalls(const JobPart& part, FunctionClosures* closures,
                             const CheckpointRounds* rounds, Hooks hooks)
    : JobPart(part), closures_(closures), rounds_(rounds), hooks_(std::move(hooks)) {}

// ---------------------------------------------------------------- what the calls share

absl::Status FunctionCalls::CallRefusal(const v1::ClosureCall& call) const {
  EG_RETURN_IF_ERROR(hooks_.refusal());
  if (call.client() == 0 || call.call() == 0 || call.answered_below() > call.call())
    return absl::InvalidArgumentError(
        absl::StrCat("invalid call number: client=", call.client(), " call=", call.call()));
  return absl::OkStatus();
}

std::optional<v1::RaisedError> FunctionCalls::TellError(const v1::ClosureCall& call, bool* wait) {
  if (const v1::RaisedError* told = closures_->queue().Raised(call)) return *told;
  if (closures_->queue().error() == nullptr) return std::nullopt;
  closures_->CheckClosing();
  *wait = closures_->closing() || !host_->StoreTrouble().empty();
  if (*wait) return std::nullopt;
  v1::FunctionsNote note;
  *note.mutable_raised()->mutable_error() = *closures_->queue().error();
  *note.mutable_raised()->mutable_call() = call;
  closures_->Note(note);
  if (!job_.Persist(Record())) *wait = true;
  return note.raised().error();
}

void FunctionCalls::Release(const v1::IntervalSet& released) {
  if (released.bounds_size() == 0) return;
  // A waiting call runs this code repeatedly, so a note is made only if it changes the queue.
  if (const auto set = client::FromProto(released);
      !set.ok() || !closures_->queue().WouldRelease(*set))
    return;
  v1::FunctionsNote note;
  *note.mutable_released() = released;
  closures_->Note(note);
}

std::string FunctionCalls::JobWait(const std::string& text) const {
  const std::string why = hooks_.waiting_for();
  return why.empty() ? text : absl::StrCat(text, "; waiting for ", why);
}

std::string FunctionCalls::Unjoined(bool durable) {
  closures_->CheckClosing();
  if (const std::size_t open = closures_->queue().open().size(); open > 0)
    return JobWait(absl::StrCat(open, open == 1 ? " closure" : " closures", " to end"));
  if (closures_->closing()) return closures_->ClosingText();
  if (!book_) return durable ? "the job to start" : "";
  if (!durable || closures_->AllSaved()) return "";
  closures_->WantRound();
  return absl::StrCat(
      "a checkpoint of the closures",
      rounds_->status().trouble().empty() ? "" : absl::StrCat(": ", rounds_->status().trouble()));
}

// ---------------------------------------------------------------- schedule

absl::Status FunctionCalls::ScheduleRefusal(const v1::ScheduleClosureRequest& request) const {
  EG_RETURN_IF_ERROR(CallRefusal(request.call()));
  if (closures_->queue().Answered(request.call()))
    return absl::InvalidArgumentError("the client repeats a call that it has acknowledged");
  EG_RETURN_IF_ERROR(client::FromProto(request.released()).status());
  if (!IsFunctionName(request.function()))
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("invalid function name: want=1 to ", client::kFunctionNameBytesMax,
                     " visible characters got=", client::CleanText(request.function(), 200))));
  if (request.arguments().size() > client::kArgumentBytesMax)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("the arguments of a closure are too large: bytes=", request.arguments().size(),
                     " max=", client::kArgumentBytesMax)));
  return absl::OkStatus();
}

std::string FunctionCalls::ScheduleWait(const v1::ScheduleClosureRequest& request) {
  if (!book_) return "the job to start";
  if (std::string store = host_->WaitingForStore(); !store.empty()) return store;
  Release(request.released());
  if (closures_->queue().full())
    return absl::StrCat("space in the queue: queue_limit=", id_.spec.functions.queue_limit);
  if (!closures_->FreeCapacity(request.arguments().size()))
    return absl::StrCat(
        "memory for the arguments, which becomes free when a checkpoint contains earlier closures: "
        "argument_bytes_max=",
        closures_->queue().argument_bytes_max());
  return "";
}

FunctionCalls::Answer<v1::ScheduleClosureResponse> FunctionCalls::Schedule(
    const v1::ScheduleClosureRequest& request, std::string* waiting_for) {
  using Response = v1::ScheduleClosureResponse;
  const FunctionQueue& queue = closures_->queue();
  Response response;
  // A repeated call is answered even if the job is ending.
  if (const auto again = queue.Scheduled(request.call())) {
    response.set_scheduled(true);
    response.set_closure(*again);
    return response;
  }
  if (absl::Status refused = ScheduleRefusal(request); !refused.ok())
    return Refuse<Response>(std::move(refused));
  bool wait = false;
  if (auto error = TellError(request.call(), &wait)) {
    if (wait) return std::nullopt;
    *response.mutable_error() = *std::move(error);
    return response;
  }
  if (wait) {
    *waiting_for = closures_->ClosingText();
    return std::nullopt;
  }
  if (queue.finish())
    return Refuse<Response>(UserError(absl::FailedPreconditionError(
        absl::StrCat("the job is finishing and accepts no closures: job=", id_.spec.name))));
  if (std::string why = ScheduleWait(request); !why.empty()) {
    *waiting_for = std::move(why);
    return std::nullopt;
  }
  if (queue.next() >= plan_->closures())
    return Refuse<Response>(WithRetryable(
        absl::ResourceExhaustedError(absl::StrCat(
            "the job has reached the largest number of closures: max=", plan_->closures())),
        false));
  v1::FunctionsNote note;
  v1::FunctionScheduled* one = note.add_scheduled();
  one->set_closure(queue.next());
  one->set_function(request.function());
  one->set_arguments(request.arguments());
  *one->mutable_call() = request.call();
  closures_->Note(note);
  book_->SetNewLimit(queue.next());
  if (!job_.Persist(Record())) return std::nullopt;
  response.set_scheduled(true);
  response.set_closure(one->closure());
  job_.Pump();
  return response;
}

// ---------------------------------------------------------------- the other calls

FunctionCalls::Answer<v1::JoinClosuresResponse> FunctionCalls::Join(
    const v1::JoinClosuresRequest& request, std::string* waiting_for) {
  using Response = v1::JoinClosuresResponse;
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (auto released = client::FromProto(request.released()); !released.ok())
    return Refuse<Response>(released.status());
  Release(request.released());
  Response response;
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait) {
    *response.mutable_error() = *std::move(error);
    return response;
  }
  if (request.durable() && !rounds_->on())
    return Refuse<Response>(UserError(absl::FailedPreconditionError(absl::StrCat(
        "join(durable) needs checkpoints, and the job has none: job=", id_.spec.name))));
  *waiting_for = wait ? closures_->ClosingText() : Unjoined(request.durable());
  if (!waiting_for->empty()) return std::nullopt;
  response.set_joined(true);
  return response;
}

FunctionCalls::Answer<v1::ClosuresDoneResponse> FunctionCalls::ClosuresDone(
    const v1::ClosuresDoneRequest& request) {
  using Response = v1::ClosuresDoneResponse;
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  Response response;
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait)
    *response.mutable_error() = *std::move(error);
  response.set_done(!wait && !response.has_error() && Unjoined(false).empty());
  response.set_scheduled(closures_->queue().scheduled());
  response.set_succeeded(closures_->queue().succeeded());
  response.set_failed(closures_->queue().failed());
  response.set_cancelled(closures_->queue().cancelled());
  return response;
}

FunctionCalls::Answer<v1::FetchResultResponse> FunctionCalls::FetchResult(
    const v1::FetchResultRequest& request, std::string* waiting_for) {
  using Response = v1::FetchResultResponse;
  const FunctionQueue& queue = closures_->queue();
  Response response;
  const std::uint64_t c = request.closure();
  if (const std::string* result = queue.Result(c)) {
    response.set_state(v1::RESULT_SUCCEEDED);
    response.set_result(*result);
    return response;
  }
  if (const v1::RaisedError* failure = queue.Failure(c)) {
    response.set_state(v1::RESULT_FAILED);
    *response.mutable_cause() = failure->cause();
    return response;
  }
  if (absl::Status refused = hooks_.refusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (c >= queue.next())
    return Refuse<Response>(UserError(
        absl::NotFoundError(absl::StrCat("no such closure: closure=", c, " next=", queue.next()))));
  if (queue.open().contains(c)) {
    *waiting_for = JobWait(absl::StrCat("closure ", c, " to end"));
    return std::nullopt;
  }
  response.set_state(book_ && book_->durable().succeeded.Contains(c) ? v1::RESULT_GONE
                                                                     : v1::RESULT_CANCELLED);
  return response;
}

FunctionCalls::Answer<v1::CancelClosuresResponse> FunctionCalls::CancelClosures(
    const v1::CancelClosuresRequest& request, std::string* waiting_for) {
  using Response = v1::CancelClosuresResponse;
  if (absl::Status refused = hooks_.refusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (static_cast<std::size_t>(request.closures_size()) > kCancelMax)
    return Refuse<Response>(absl::InvalidArgumentError(absl::StrCat(
        "too many closures in one call: max=", kCancelMax, " got=", request.closures_size())));
  if (std::string store = host_->WaitingForStore(); !store.empty()) {
    *waiting_for = std::move(store);
    return std::nullopt;
  }
  IntervalSet open;
  if (request.all()) {
    for (const std::uint64_t c : closures_->queue().open()) open.Add(c);
  }
  for (const std::uint64_t c : request.closures()) {
    if (closures_->queue().open().contains(c)) open.Add(c);
  }
  if (book_ && !open.empty()) {
    job_.Event("state", absl::StrCat("the client cancelled ",
                                     open.size() == 1 ? absl::StrCat("closure ", *open.First())
                                                      : absl::StrCat(open.size(), " closures")));
    v1::FunctionsNote note;
    if (!closures_->Cancel(open, &note)) return std::nullopt;
    job_.Pump();
  }
  closures_->CheckClosing();
  if (closures_->closing()) {
    *waiting_for = closures_->ClosingText();
    return std::nullopt;
  }
  Response response;
  response.set_cancelled(true);
  return response;
}

FunctionCalls::Answer<v1::ReleaseResultsResponse> FunctionCalls::ReleaseResults(
    const v1::ReleaseResultsRequest& request) {
  using Response = v1::ReleaseResultsResponse;
  if (absl::Status refused = hooks_.refusal(); !refused.ok())
    return Refuse<Response>(std::move(refused));
  if (auto released = client::FromProto(request.released()); !released.ok())
    return Refuse<Response>(released.status());
  Release(request.released());
  if (!job_.Persist(Record())) return std::nullopt;
  return absl::StatusOr<Response>(Response());
}

FunctionCalls::Answer<v1::FinishJobResponse> FunctionCalls::Finish(
    const v1::FinishJobRequest& request, std::string* waiting_for) {
  using Response = v1::FinishJobResponse;
  const FunctionQueue& queue = closures_->queue();
  Response response;
  if (queue.finish()) {  // a repeated call, also after the end of the job
    response.set_finishing(true);
    return response;
  }
  if (absl::Status refused = CallRefusal(request.call()); !refused.ok())
    return Refuse<Response>(std::move(refused));
  bool wait = false;
  if (auto error = TellError(request.call(), &wait); error && !wait) {
    *response.mutable_error() = *std::move(error);
    return response;
  }
  *waiting_for = wait ? closures_->ClosingText() : !book_ ? "the job to start" : Unjoined(false);
  if (waiting_for->empty()) *waiting_for = host_->WaitingForStore();
  if (!waiting_for->empty()) return std::nullopt;
  v1::FunctionsNote note;
  note.set_finish(true);
  closures_->Note(note);
  job_.Event("state", absl::StrCat("the client finished the job after ", queue.scheduled(),
                                   queue.scheduled() == 1 ? " closure" : " closures"));
  if (!job_.Persist(Record())) return std::nullopt;
  response.set_finishing(true);
  job_.Pump();
  return response;
}

}  // namespace evergrad::coordinator
