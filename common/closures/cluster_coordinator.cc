#include "common/closures/cluster_coordinator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/interval_set.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/random/philox.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::closures {
namespace {

using std::chrono::milliseconds;

// The longest time for which the coordinator may hold one call. After this time it answers with the
// reason why the caller must wait, and the client repeats the call.
constexpr milliseconds kWait{5000};
constexpr milliseconds kAnswerWithin{5000};  // additional time until the answer arrives here
constexpr milliseconds kBackoffMin{20}, kBackoffMax{1000};
constexpr milliseconds kGoodbye{500};  // longest wait of the destructor, which releases results
constexpr std::uint64_t kMessageBytesMax = 4ull << 20;

// Collects handles whose last copy has been destroyed. The client may have been destroyed before
// the handles.
struct Releases {
  Mutex mu;
  IntervalSet closures ABSL_GUARDED_BY(mu);
};

absl::Status Told(const v1::RaisedError& error) {
  const absl::Status cause = client::FromErrorDetail(error.cause());
  const absl::Status named(
      cause.code(), absl::StrCat("a closure failed: closure=", error.closure(),
                                 " function=", error.function(), " cause=", cause.message()));
  return WithRetryable(BlameOf(cause) == Blame::kUser ? UserError(named) : named, false);
}

}  // namespace

struct RemoteValue::State {
  std::uint64_t closure = 0;
  std::shared_ptr<Releases> releases;  // shared by all handles and their client
  ~State() {
    MutexLock lock(&releases->mu);
    releases->closures.Add(closure);
  }
};

std::uint64_t RemoteValue::closure() const { return state_->closure; }

struct ClusterCoordinator::Impl {
  Options options;
  std::unique_ptr<transport::Transport> own_transport;
  std::unique_ptr<transport::Channel> channel;  // destroyed before the transport
  const RealClock clock{};
  runtime::WaitableEvent never;  // never set; a pause waits for it with a timeout
  const std::uint64_t client = random::EntropyFromOs() | 1;
  std::shared_ptr<Releases> releases = std::make_shared<Releases>();
  Mutex mu;
  std::uint64_t next_call ABSL_GUARDED_BY(mu) = 1;
  std::set<std::uint64_t> unanswered ABSL_GUARDED_BY(mu);

  // The number of one call, which is the same in all repeats of the call.
  class Numbered {
   public:
    explicit Numbered(Impl* impl) : impl_(impl) {
      MutexLock lock(&impl_->mu);
      number_ = impl_->next_call++;
      impl_->unanswered.insert(number_);
    }
    ~Numbered() {
      MutexLock lock(&impl_->mu);
      impl_->unanswered.erase(number_);
    }
    void Fill(v1::ClosureCall* call) const {
      MutexLock lock(&impl_->mu);
      call->set_client(impl_->client);
      call->set_call(number_);
      call->set_answered_below(*impl_->unanswered.begin());
    }

   private:
    Impl* const impl_;
    std::uint64_t number_ = 0;
  };

  // Repeats the call while no coordinator answers, for at most unreachable_max.
  template <class Response, class Request>
  absl::StatusOr<Response> Call(const Request& request, milliseconds deadline) {
    const MonoTime begun = clock.Now();
    for (milliseconds backoff = kBackoffMin;; backoff = std::min(backoff * 2, kBackoffMax)) {
      absl::StatusOr<Response> response =
          client::CallControl<Response>(*channel, request, deadline);
      if (response.ok() || !IsRetryable(response.status())) return response;
      const auto silent = clock.Now() - begun;
      if (silent >= options.unreachable_max) {
        return absl::UnavailableError(absl::StrCat(
            "no coordinator answers: address=", options.coordinator_address,
            " seconds=", std::chrono::duration_cast<std::chrono::seconds>(silent).count(),
            " cause=", response.status().message()));
      }
      never.WaitFor(backoff);
    }
  }
  template <class Response, class Request>
  absl::StatusOr<Response> Call(const Request& request) {
    return Call<Response>(request, kWait + kAnswerWithin);
  }

  // Returns the released handles, for the next call. If a call fails, the next call contains the
  // same handles again.
  v1::IntervalSet TakeReleases() {
    MutexLock lock(&releases->mu);
    return client::ToProto(std::exchange(releases->closures, IntervalSet()));
  }
  void PutBack(const v1::IntervalSet& taken) {
    const auto set = client::FromProto(taken);
    MutexLock lock(&releases->mu);
    releases->closures.UnionWith(*set);
  }

  // Join and Finish repeat the request until `reached` is true or an error occurs.
  template <class Response, class Request>
  absl::Status WaitUntil(Request request, bool (Response::*reached)() const) {
    request.set_job(options.job);
    request.set_wait_ms(static_cast<std::uint32_t>(kWait.count()));
    const Numbered number(this);
    for (;;) {
      number.Fill(request.mutable_call());
      EG_ASSIGN_OR_RETURN(const Response response, Call<Response>(request));
      if (response.has_error()) return Told(response.error());
      if ((response.*reached)()) return absl::OkStatus();
    }
  }

  absl::Status Cancel(v1::CancelClosuresRequest request) {
    request.set_job(options.job);
    request.set_wait_ms(static_cast<std::uint32_t>(kWait.count()));
    for (;;) {
      EG_ASSIGN_OR_RETURN(const v1::CancelClosuresResponse response,
                          Call<v1::CancelClosuresResponse>(request));
      if (response.cancelled()) return absl::OkStatus();
    }
  }
};

ClusterCoordinator::ClusterCoordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ClusterCoordinator::~ClusterCoordinator() {
  v1::ReleaseResultsRequest request;
  request.set_job(impl_->options.job);
  *request.mutable_released() = impl_->TakeReleases();
  if (request.released().bounds_size() == 0) return;
  // A failure is ignored, because the coordinator itself bounds the memory of results that are
  // never released.
  const auto unheard =
      client::CallControl<v1::ReleaseResultsResponse>(*impl_->channel, request, kGoodbye);
  (void)unheard;
}

absl::StatusOr<std::unique_ptr<ClusterCoordinator>> ClusterCoordinator::Connect(Options options) {
  if (options.coordinator_address.empty())
    return UserError(absl::InvalidArgumentError("Options.coordinator_address is empty"));
  if (options.job.empty())
    return UserError(
        absl::InvalidArgumentError("Options.job is empty: expected the name or uid of a job"));
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  transport::Transport* transport = impl->options.transport;
  if (transport == nullptr) {
    impl->own_transport = transport::MakeGrpcTransport(nullptr);
    transport = impl->own_transport.get();
  }
  transport::ChannelOptions channel;
  channel.tls = impl->options.tls;
  channel.peer_task = "coordinator";
  channel.check_host = true;
  channel.message_bytes_max = kMessageBytesMax;
  EG_ASSIGN_OR_RETURN(impl->channel,
                      transport->Dial({impl->options.coordinator_address, ""}, channel));
  return std::unique_ptr<ClusterCoordinator>(new ClusterCoordinator(std::move(impl)));
}

absl::StatusOr<RemoteValue> ClusterCoordinator::Schedule(absl::string_view function,
                                                         absl::string_view arguments) {
  v1::ScheduleClosureRequest request;
  request.set_job(impl_->options.job);
  request.set_function(std::string(function));
  request.set_arguments(std::string(arguments));
  request.set_wait_ms(static_cast<std::uint32_t>(kWait.count()));
  *request.mutable_released() = impl_->TakeReleases();
  const Impl::Numbered number(impl_.get());
  for (;;) {
    number.Fill(request.mutable_call());
    auto response = impl_->Call<v1::ScheduleClosureResponse>(request);
    if (!response.ok() || response->has_error()) {
      impl_->PutBack(request.released());
      return response.ok() ? Told(response->error()) : response.status();
    }
    if (!response->scheduled()) continue;
    auto state = std::make_shared<RemoteValue::State>();
    state->closure = response->closure();
    state->releases = impl_->releases;
    return RemoteValue(std::move(state));
  }
}

absl::Status ClusterCoordinator::Join(bool durable) {
  v1::JoinClosuresRequest request;
  request.set_durable(durable);
  *request.mutable_released() = impl_->TakeReleases();
  const v1::IntervalSet released = request.released();
  absl::Status status = impl_->WaitUntil(std::move(request), &v1::JoinClosuresResponse::joined);
  if (!status.ok()) impl_->PutBack(released);
  return status;
}

absl::StatusOr<bool> ClusterCoordinator::Done() {
  v1::ClosuresDoneRequest request;
  request.set_job(impl_->options.job);
  const Impl::Numbered number(impl_.get());
  number.Fill(request.mutable_call());
  EG_ASSIGN_OR_RETURN(const v1::ClosuresDoneResponse response,
                      impl_->Call<v1::ClosuresDoneResponse>(request));
  if (response.has_error()) return Told(response.error());
  return response.done();
}

absl::StatusOr<std::string> ClusterCoordinator::Fetch(const RemoteValue& value) {
  if (!value.valid())
    return UserError(absl::InvalidArgumentError("the handle refers to no closure"));
  v1::FetchResultRequest request;
  request.set_job(impl_->options.job);
  request.set_closure(value.closure());
  request.set_wait_ms(static_cast<std::uint32_t>(kWait.count()));
  for (;;) {
    EG_ASSIGN_OR_RETURN(v1::FetchResultResponse response,
                        impl_->Call<v1::FetchResultResponse>(request));
    switch (response.state()) {
      case v1::RESULT_SUCCEEDED: return std::move(*response.mutable_result());
      case v1::RESULT_FAILED: {
        v1::RaisedError error;
        error.set_closure(value.closure());
        *error.mutable_cause() = response.cause();
        return Told(error);
      }
      case v1::RESULT_CANCELLED:
        return absl::CancelledError(
            absl::StrCat("the closure was cancelled: closure=", value.closure()));
      case v1::RESULT_GONE:
        return UserError(
            absl::NotFoundError(absl::StrCat("the result was discarded because newer results "
                                             "filled functions.result_bytes_max: closure=",
                                             value.closure())));
      default: break;  // the closure has not ended yet
    }
  }
}

absl::Status ClusterCoordinator::Cancel(const std::vector<RemoteValue>& values) {
  v1::CancelClosuresRequest request;
  for (const RemoteValue& value : values) {
    if (!value.valid())
      return UserError(absl::InvalidArgumentError("the handle refers to no closure"));
    request.add_closures(value.closure());
  }
  return impl_->Cancel(std::move(request));
}

absl::Status ClusterCoordinator::CancelAll() {
  v1::CancelClosuresRequest request;
  request.set_all(true);
  return impl_->Cancel(std::move(request));
}

absl::Status ClusterCoordinator::Finish() {
  EG_RETURN_IF_ERROR(impl_->WaitUntil(v1::FinishJobRequest(), &v1::FinishJobResponse::finishing));
  v1::GetJobRequest request;
  request.set_job(impl_->options.job);
  request.set_wait_ms(static_cast<std::uint32_t>(kWait.count()));
  request.set_events_after(~0ull);
  for (;;) {
    EG_ASSIGN_OR_RETURN(const v1::GetJobResponse response,
                        impl_->Call<v1::GetJobResponse>(request));
    const v1::JobStatus& job = response.job();
    if (job.state() == "SUCCEEDED") return absl::OkStatus();
    if (job.state() == "FAILED") return client::FromErrorDetail(job.first_cause());
    if (job.state() == "CANCELLED") return UserError(absl::CancelledError("the job was cancelled"));
    request.set_seen_revision(job.revision());
  }
}

}  // namespace evergrad::closures
