// Tests the client against a coordinator that the test imitates, over the in-process transport. The
// subjects are the numbers of calls, repeated calls, errors and releases.
#include <catch2/catch.hpp>

#include <deque>
#include <functional>
#include <map>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/closures/cluster_coordinator.h"
#include "evergrad/v1/api.pb.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::closures {
namespace {

class Coordinator {
 public:
  using Handler = std::function<absl::StatusOr<std::string>(const std::string& bytes)>;
  explicit Coordinator(transport::Transport* transport) : transport_(transport) { Listen(); }
  void Listen() {
    transport::ServerOptions options;
    options.listen = "coordinator";
    transport::Handlers handlers;
    handlers.unary = [this](const transport::PeerInfo&, absl::string_view method,
                            std::string request,
                            std::unique_ptr<transport::UnaryResponder> responder) {
      Handler handler;
      {
        MutexLock lock(&mu_);
        handler = handlers_[std::string(method)];
        ++calls_[std::string(method)];
      }
      responder->Answer(handler ? handler(request) : absl::UnimplementedError(method));
    };
    auto server = transport_->Listen(options, std::move(handlers));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }
  void Down() { server_.reset(); }
  template <class Request, class Response>
  void On(std::function<absl::StatusOr<Response>(const Request&)> handler) {
    MutexLock lock(&mu_);
    handlers_[client::ControlMethod<Request, Response>()] =
        [handler](const std::string& bytes) -> absl::StatusOr<std::string> {
      Request request;
      if (!request.ParseFromString(bytes)) return absl::InvalidArgumentError("bytes");
      const absl::StatusOr<Response> response = handler(request);
      if (!response.ok()) return response.status();
      return response->SerializeAsString();
    };
  }
  int calls(const std::string& method) {
    MutexLock lock(&mu_);
    return calls_[method];
  }

 private:
  transport::Transport* const transport_;
  std::unique_ptr<transport::Server> server_;
  Mutex mu_;
  std::map<std::string, Handler> handlers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);
};

struct Stage {
  std::unique_ptr<transport::Transport> transport = transport::MakeInprocTransport(nullptr);
  Coordinator coordinator{transport.get()};
  std::unique_ptr<ClusterCoordinator> cluster = Make(std::chrono::seconds(20));
  std::unique_ptr<ClusterCoordinator> Make(std::chrono::milliseconds unreachable_max) {
    ClusterCoordinator::Options options;
    options.coordinator_address = "coordinator";
    options.job = "line";
    options.unreachable_max = unreachable_max;
    options.transport = transport.get();
    auto made = ClusterCoordinator::Connect(options);
    REQUIRE(made.ok());
    return *std::move(made);
  }
};

v1::RaisedError Error() {
  v1::RaisedError error;
  error.set_closure(8);
  error.set_function("fit");
  *error.mutable_cause() =
      client::ToErrorDetail(UserError(absl::OutOfRangeError("no such point")), "worker/1");
  return error;
}

TEST_CASE(
    "a Schedule without an answer is repeated with its number, and so is one that waits for "
    "capacity") {
  Stage stage;
  std::vector<v1::ScheduleClosureRequest> seen;
  stage.coordinator.On<v1::ScheduleClosureRequest, v1::ScheduleClosureResponse>(
      [&](const v1::ScheduleClosureRequest& request)
          -> absl::StatusOr<v1::ScheduleClosureResponse> {
        seen.push_back(request);
        v1::ScheduleClosureResponse response;
        if (seen.size() == 1) return absl::UnavailableError("restarting");
        if (seen.size() == 2) {
          response.set_waiting_for("room");
          return response;
        }
        response.set_scheduled(true);
        response.set_closure(40 + seen.size());
        return response;
      });
  const auto value = stage.cluster->Schedule("fit", "xy");
  REQUIRE(value.ok());
  CHECK(value->closure() == 43);
  REQUIRE(seen.size() == 3);
  for (const auto& request : seen) {
    CHECK(request.job() == "line");
    CHECK(request.function() == "fit");
    CHECK(request.arguments() == "xy");
    CHECK(request.call().client() == seen[0].call().client());
    CHECK(request.call().client() != 0);
    CHECK(request.call().call() == 1);
    CHECK(request.call().answered_below() == 1);
  }
  REQUIRE(stage.cluster->Schedule("fit", "").ok());
  CHECK(seen[3].call().call() == 2);
  CHECK(seen[3].call().answered_below() == 2);  // the first call will not be repeated
}

TEST_CASE(
    "a reported error has the code, the blame and the message of its cause, and names the "
    "closure") {
  Stage stage;
  stage.coordinator.On<v1::ScheduleClosureRequest, v1::ScheduleClosureResponse>([&](const auto&) {
    v1::ScheduleClosureResponse response;
    *response.mutable_error() = Error();
    return response;
  });
  stage.coordinator.On<v1::JoinClosuresRequest, v1::JoinClosuresResponse>([&](const auto& request) {
    CHECK(request.durable());
    v1::JoinClosuresResponse response;
    *response.mutable_error() = Error();
    return response;
  });
  stage.coordinator.On<v1::ClosuresDoneRequest, v1::ClosuresDoneResponse>([&](const auto&) {
    v1::ClosuresDoneResponse response;
    *response.mutable_error() = Error();
    return response;
  });
  for (const absl::Status& status : {stage.cluster->Schedule("fit", "").status(),
                                     stage.cluster->Join(true), stage.cluster->Done().status()}) {
    CHECK(status.code() == absl::StatusCode::kOutOfRange);
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("a closure failed: closure=8 function=fit") &&
                   Catch::Contains("no such point"));
  }
}

TEST_CASE(
    "a result can be fetched repeatedly, and the error for a closure without one names the "
    "closure's end") {
  Stage stage;
  stage.coordinator.On<v1::ScheduleClosureRequest, v1::ScheduleClosureResponse>([&](const auto&) {
    v1::ScheduleClosureResponse response;
    response.set_scheduled(true);
    response.set_closure(3);
    return response;
  });
  v1::FetchResultResponse answer;
  int asked = 0;
  stage.coordinator.On<v1::FetchResultRequest, v1::FetchResultResponse>([&](const auto& request) {
    CHECK(request.closure() == 3);
    v1::FetchResultResponse not_yet;
    not_yet.set_state(v1::RESULT_WAITING);
    return ++asked % 2 == 1 ? not_yet : answer;
  });
  const auto value = stage.cluster->Schedule("fit", "");
  REQUIRE(value.ok());
  answer.set_state(v1::RESULT_SUCCEEDED);
  answer.set_result("bytes");
  CHECK(*stage.cluster->Fetch(*value) == "bytes");
  CHECK(*stage.cluster->Fetch(*value) == "bytes");
  CHECK(asked == 4);
  answer.set_state(v1::RESULT_CANCELLED);
  CHECK(stage.cluster->Fetch(*value).status().code() == absl::StatusCode::kCancelled);
  answer.set_state(v1::RESULT_GONE);
  CHECK(stage.cluster->Fetch(*value).status().code() == absl::StatusCode::kNotFound);
  answer.set_state(v1::RESULT_FAILED);
  *answer.mutable_cause() = Error().cause();
  CHECK(stage.cluster->Fetch(*value).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(stage.cluster->Fetch(RemoteValue()).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE(
    "a handle is released with the next call after its last copy is destroyed, and again if that "
    "call fails") {
  Stage stage;
  std::uint64_t next = 5;
  std::vector<std::string> released;
  bool refuse = false;
  stage.coordinator.On<v1::ScheduleClosureRequest, v1::ScheduleClosureResponse>(
      [&](const v1::ScheduleClosureRequest& request)
          -> absl::StatusOr<v1::ScheduleClosureResponse> {
        released.push_back(client::FromProto(request.released())->ToString());
        if (refuse) return UserError(absl::InvalidArgumentError("no"));
        v1::ScheduleClosureResponse response;
        response.set_scheduled(true);
        response.set_closure(next++);
        return response;
      });
  stage.coordinator.On<v1::ReleaseResultsRequest, v1::ReleaseResultsResponse>(
      [&](const v1::ReleaseResultsRequest& request) {
        released.push_back(client::FromProto(request.released())->ToString());
        return v1::ReleaseResultsResponse();
      });
  RemoteValue kept = *stage.cluster->Schedule("f", "");
  {
    const RemoteValue copy = kept;
    kept = *stage.cluster->Schedule("f", "");
  }  // Handle 5 and its copy were destroyed, so the client releases it.
  refuse = true;
  CHECK_FALSE(stage.cluster->Schedule("f", "").ok());
  refuse = false;
  CHECK(stage.cluster->Schedule("f", "").ok());  // Handle 7 has no owner and is released at once.
  kept = RemoteValue();
  stage.cluster.reset();
  CHECK(released == std::vector<std::string>{"", "", "5", "5", "6-7"});
}

TEST_CASE("a client waits for an unreachable coordinator, up to a limit") {
  Stage stage;
  stage.coordinator.On<v1::JoinClosuresRequest, v1::JoinClosuresResponse>([&](const auto&) {
    v1::JoinClosuresResponse response;
    response.set_joined(true);
    return response;
  });
  stage.coordinator.Down();
  const auto impatient = stage.Make(std::chrono::milliseconds(100));
  const absl::Status status = impatient->Join();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("no coordinator answers: address=coordinator"));
  stage.coordinator.Listen();
  CHECK(impatient->Join().ok());
  CHECK(stage.cluster->Join().ok());
}

TEST_CASE("invalid client options are refused") {
  ClusterCoordinator::Options options;
  CHECK(ClusterCoordinator::Connect(options).status().code() == absl::StatusCode::kInvalidArgument);
  options.coordinator_address = "127.0.0.1:1";
  CHECK(ClusterCoordinator::Connect(options).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace evergrad::closures
