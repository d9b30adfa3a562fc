// Tests the calls to the coordinator over a transport within the process.
#include "kubernetes/controller/coordinator_calls.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/control.h"
#include "tests/support/inproc/inproc_transport.h"

namespace evergrad::kubernetes {
namespace {

// A coordinator that keeps the newest request, and gives one answer.
struct Coordinator {
  Coordinator() : transport(transport::MakeInprocTransport(nullptr)) {
    transport::ServerOptions options;
    options.listen = "127.0.0.1:0";
    transport::Handlers handlers;
    handlers.unary = [this](const transport::PeerInfo&, absl::string_view called, std::string bytes,
                            std::unique_ptr<transport::UnaryResponder> responder) {
      MutexLock lock(&mu);
      method = std::string(called);
      request = std::move(bytes);
      responder->Answer(answer);
    };
    auto listening = transport->Listen(options, std::move(handlers));
    REQUIRE(listening.ok());
    server = *std::move(listening);
    auto made = MakeCoordinatorCalls(transport.get(), server->address(), {});
    REQUIRE(made.ok());
    calls = *std::move(made);
  }
  void AnswerWith(absl::StatusOr<std::string> next) {
    MutexLock lock(&mu);
    answer = std::move(next);
  }
  template <class Request>
  Request Received() {
    MutexLock lock(&mu);
    CHECK(method == client::ControlMethod<Request>());
    Request message;
    CHECK(message.ParseFromString(request));
    return message;
  }

  const std::unique_ptr<transport::Transport> transport;
  Mutex mu;
  std::string method ABSL_GUARDED_BY(mu), request ABSL_GUARDED_BY(mu);
  absl::StatusOr<std::string> answer ABSL_GUARDED_BY(mu) = std::string();
  std::unique_ptr<transport::Server> server;
  std::unique_ptr<CoordinatorCalls> calls;
};

TEST_CASE("each call has the method and the request of the service Control") {
  Coordinator coordinator;
  v1::ListJobsResponse list;
  list.add_jobs()->set_job_uid(7);
  coordinator.AnswerWith(list.SerializeAsString());
  const auto jobs = coordinator.calls->ListJobs();
  REQUIRE(jobs.ok());
  CHECK(jobs->jobs(0).job_uid() == 7);
  coordinator.Received<v1::ListJobsRequest>();

  v1::GetJobResponse one;
  one.mutable_job()->set_name("mlp");
  coordinator.AnswerWith(one.SerializeAsString());
  const auto job = coordinator.calls->GetJob(0xabc);
  REQUIRE(job.ok());
  CHECK(job->name() == "mlp");
  const auto get = coordinator.Received<v1::GetJobRequest>();
  CHECK(get.job() == "0000000000000abc");
  CHECK(get.events_after() == ~0ull);
  CHECK(get.wait_ms() == 0);

  v1::SubmitJobResponse submitted;
  submitted.set_job_uid(9);
  coordinator.AnswerWith(submitted.SerializeAsString());
  v1::SubmitJobRequest submission;
  submission.set_request_id("kubernetes/u-1");
  const auto response = coordinator.calls->SubmitJob(submission);
  REQUIRE(response.ok());
  CHECK(response->job_uid() == 9);
  CHECK(coordinator.Received<v1::SubmitJobRequest>().request_id() == "kubernetes/u-1");

  coordinator.AnswerWith(std::string());
  CHECK(coordinator.calls->CancelJob(0xabc).ok());
  CHECK(coordinator.Received<v1::CancelJobRequest>().job() == "0000000000000abc");
}

TEST_CASE("an error of the coordinator is an answer, and an unreadable answer is none") {
  Coordinator coordinator;
  coordinator.AnswerWith(UserError(absl::AlreadyExistsError("in use")));
  const absl::Status refused = coordinator.calls->SubmitJob({}).status();
  CHECK(refused.code() == absl::StatusCode::kAlreadyExists);
  CHECK(BlameOf(refused) == Blame::kUser);
  CHECK(IsAnswer(refused));
  coordinator.AnswerWith(std::string("\xff\xff"));
  const absl::Status unreadable = coordinator.calls->ListJobs().status();
  CHECK_FALSE(unreadable.ok());
  CHECK_FALSE(IsAnswer(unreadable));
  coordinator.server->Shutdown();
  CHECK_FALSE(IsAnswer(coordinator.calls->ListJobs().status()));
}

}  // namespace
}  // namespace evergrad::kubernetes
