#include "coordinator/service/closure_calls.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

template <class Request, class = void>
struct Waits : std::false_type {};
template <class Request>
struct Waits<Request, std::void_t<decltype(std::declval<Request>().wait_ms())>> : std::true_type {};

}  // namespace

// Calls `ask(calls, request, waiting_for)` now and after each change of the job, until `ask`
// answers or wait_ms has passed. Only the owner of the job and admins may call.
template <class Request, class Ask>
void ClosureCalls::AskJob(const Request& request, const Caller& caller, const Responder& responder,
                          Ask ask) {
  using Response = typename std::decay_t<decltype(ask(
      std::declval<FunctionCalls&>(), request,
      static_cast<std::string*>(nullptr)))>::value_type::value_type;
  // The call is shared with the callback that waits for the store.
  const auto call = std::make_shared<OpenCall>(responder);
  const auto shared = std::make_shared<const Request>(request);  // the attempts read it
  auto attempt = [this, call, shared, caller, ask](bool late) {
    std::string waiting_for = "the coordinator to start";
    if (parts_.life->term_known) {
      Job* job = shared->job().empty() ? nullptr : parts_.jobs->Find(shared->job());
      if (job == nullptr) {
        call->Answer(shared->job().empty() ? UserError(absl::InvalidArgumentError(
                                                 "a closure call names no job: want=name or uid"))
                                           : NoSuchJob(*parts_.life, shared->job()));
        return true;
      }
      // Every attempt is checked, because the name may stand for another job now.
      if (absl::Status allowed = CheckOwner(caller, *job); !allowed.ok()) {
        call->Answer(std::move(allowed));
        return true;
      }
      job->EndTurn();  // commits the changes that an answer may show
      const absl::StatusOr<FunctionCalls*> calls = job->function_calls();
      if (!calls.ok()) {
        call->Answer(calls.status());
        return true;
      }
      auto answer = ask(**calls, *shared, &waiting_for);
      if (answer && !answer->ok()) {
        call->Answer(answer->status());
        return true;
      }
      if (answer) {
        parts_.gate->WhenDurable(
            [call, response = (*answer)->SerializeAsString()] { call->Answer(response); });
        return true;
      }
    }
    if (!late) return false;
    Response response;
    if constexpr (Waits<Request>::value) response.set_waiting_for(waiting_for);
    call->Answer(response.SerializeAsString());
    return true;
  };
  if (attempt(false)) return;
  std::chrono::milliseconds wait{0};
  if constexpr (Waits<Request>::value) wait = std::chrono::milliseconds(shared->wait_ms());
  if (wait.count() == 0) {
    attempt(true);
    return;
  }
  waiting_.Add(parts_.clock->Now() + std::min(wait, parts_.options->wait_max), std::move(attempt));
}

void ClosureCalls::Serve(const v1::ScheduleClosureRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder,
         [](FunctionCalls& calls, const auto& asked, std::string* waiting_for) {
           return calls.Schedule(asked, waiting_for);
         });
}

void ClosureCalls::Serve(const v1::JoinClosuresRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder,
         [](FunctionCalls& calls, const auto& asked, std::string* waiting_for) {
           return calls.Join(asked, waiting_for);
         });
}

void ClosureCalls::Serve(const v1::ClosuresDoneRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder, [](FunctionCalls& calls, const auto& asked, std::string*) {
    return calls.ClosuresDone(asked);
  });
}

void ClosureCalls::Serve(const v1::FetchResultRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder,
         [](FunctionCalls& calls, const auto& asked, std::string* waiting_for) {
           return calls.FetchResult(asked, waiting_for);
         });
}

void ClosureCalls::Serve(const v1::CancelClosuresRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder,
         [](FunctionCalls& calls, const auto& asked, std::string* waiting_for) {
           return calls.CancelClosures(asked, waiting_for);
         });
}

void ClosureCalls::Serve(const v1::ReleaseResultsRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder, [](FunctionCalls& calls, const auto& asked, std::string*) {
    return calls.ReleaseResults(asked);
  });
}

void ClosureCalls::Serve(const v1::FinishJobRequest& request, const Caller& caller,
                         const Responder& responder) {
  AskJob(request, caller, responder,
         [](FunctionCalls& calls, const auto& asked, std::string* waiting_for) {
           return calls.Finish(asked, waiting_for);
         });
}

}  // namespace evergrad::coordinator
