// The calls of functions jobs: schedule, join, done, fetch, cancel, release, finish. One mechanism
// for the seven: the job answers at once, or is asked again whenever something has changed, in the
// order of the calls; at the latest after wait_ms the caller hears what is waited for and calls
// again.
#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

template <class Request, class = void>
struct Waits : std::false_type {};
template <class Request>
struct Waits<Request, std::void_t<decltype(std::declval<Request>().wait_ms())>> : std::true_type {};

// Answered when it goes: no caller waits for a coordinator that has ended.
struct Call {
  std::shared_ptr<transport::UnaryResponder> responder;
  bool answered = false;
  ~Call() {
    if (!answered) responder->Answer(absl::UnavailableError("the coordinator is stopping"));
  }
  void Answer(absl::StatusOr<std::string> response) {
    answered = true;
    responder->Answer(std::move(response));
  }
};

}  // namespace

bool ControlPlane::OnClosureCall(const std::string& method, const std::string& bytes,
                                 const Responder& responder) {
  const auto serve = [&](auto request, auto ask) {
    using Request = decltype(request);
    using Response = typename std::decay_t<decltype(ask(
        std::declval<Job&>(), request,
        static_cast<std::string*>(nullptr)))>::value_type::value_type;
    const auto call = std::make_shared<Call>();  // shared with what waits for the store
    call->responder = responder;
    if (!request.ParseFromString(bytes)) {
      malformed_total_.Add();
      call->Answer(absl::InvalidArgumentError(
          absl::StrCat("malformed request: method=", method, " bytes=", bytes.size())));
      return;
    }
    const auto shared =
        std::make_shared<const Request>(std::move(request));  // the attempts read it
    auto attempt = [this, call, shared, ask](bool late) {
      std::string waiting_for = "the coordinator to start";
      if (term_known_) {
        Job* job = shared->job().empty() ? nullptr : FindJob(shared->job());
        if (job == nullptr) {
          call->Answer(shared->job().empty()
                           ? UserError(absl::InvalidArgumentError(
                                 "a closure's call without a job: want=name or uid"))
                           : NoSuchJob(shared->job()));
          return true;
        }
        job->EndTurn();  // what an answer may show is committed first
        auto answer = ask(*job, *shared, &waiting_for);
        if (answer && !answer->ok()) {
          call->Answer(answer->status());
          return true;
        }
        if (answer) {
          WhenDurable(
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
    closure_calls_.push_back({Now() + std::min(wait, options_.wait_max), std::move(attempt)});
  };
  if (method == client::kScheduleClosure) {
    serve(v1::ScheduleClosureRequest(),
          [](Job& job, const auto& request, std::string* waiting_for) {
            return job.Schedule(request, waiting_for);
          });
  } else if (method == client::kJoinClosures) {
    serve(v1::JoinClosuresRequest(), [](Job& job, const auto& request, std::string* waiting_for) {
      return job.Join(request, waiting_for);
    });
  } else if (method == client::kClosuresDone) {
    serve(v1::ClosuresDoneRequest(),
          [](Job& job, const auto& request, std::string*) { return job.ClosuresDone(request); });
  } else if (method == client::kFetchResult) {
    serve(v1::FetchResultRequest(), [](Job& job, const auto& request, std::string* waiting_for) {
      return job.FetchResult(request, waiting_for);
    });
  } else if (method == client::kCancelClosures) {
    serve(v1::CancelClosuresRequest(), [](Job& job, const auto& request, std::string* waiting_for) {
      return job.CancelClosures(request, waiting_for);
    });
  } else if (method == client::kReleaseResults) {
    serve(v1::ReleaseResultsRequest(),
          [](Job& job, const auto& request, std::string*) { return job.ReleaseResults(request); });
  } else if (method == client::kFinishJob) {
    serve(v1::FinishJobRequest(), [](Job& job, const auto& request, std::string* waiting_for) {
      return job.Finish(request, waiting_for);
    });
  } else {
    return false;
  }
  return true;
}

void ControlPlane::CheckClosureCalls() {
  if (closure_calls_.empty()) return;
  const MonoTime now = Now();
  std::vector<ClosureCall> calls;
  calls.swap(closure_calls_);
  for (ClosureCall& call : calls) {
    if (!call.attempt(now >= call.deadline)) closure_calls_.push_back(std::move(call));
  }
}

}  // namespace evergrad::coordinator
