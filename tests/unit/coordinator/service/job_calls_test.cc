// Tests calls about jobs and closures that users make and that cannot be answered at once.
#include "coordinator/service/job_calls.h"

#include "common/base/status.h"
#include "coordinator/service/closure_calls.h"
#include "service_stage.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage : ServiceStage {
  // Makes a call of a user with the certificate `task`, or without TLS.
  template <class Calls, class Request>
  std::shared_ptr<CallReply> Call(Calls& to, const Request& request, const std::string& task = "") {
    auto reply = std::make_shared<CallReply>();
    if constexpr (requires { to.Serve(request, Caller(), reply); })
      to.Serve(request, Caller{task, "here"}, reply);
    else
      to.Serve(request, reply);
    Run();
    return reply;
  }
  JobCalls calls{parts, host.get(), &supervisor};
  ClosureCalls closures{parts};
};

v1::CancelJobRequest Cancel(const std::string& job) {
  v1::CancelJobRequest request;
  request.set_job(job);
  return request;
}

}  // namespace

TEST_CASE("a cancel that arrives before the term is known is served afterwards") {
  Stage stage;
  Job* const job = stage.Submit(11, "a");
  stage.life.term_known = false;
  const auto early = stage.Call(stage.calls, Cancel("a"));
  CHECK_FALSE(early->answered);
  stage.life.term_known = true;
  stage.calls.ServeEarly();
  stage.Run();
  REQUIRE(early->answered);
  v1::CancelJobResponse response;
  REQUIRE(response.ParseFromString(early->bytes));
  CHECK(stage.jobs.PlaceInQueue(job->uid()) == std::nullopt);
}

TEST_CASE("a cancel of another user is refused, and a cancel that waits keeps its job") {
  Stage stage;
  Job* const alices = stage.Submit(11, "a", "user/alice");
  stage.life.term_known = false;
  CHECK(absl::IsPermissionDenied(stage.Call(stage.calls, Cancel("a"), "user/bob")->status));
  const auto early = stage.Call(stage.calls, Cancel("a"), "user/alice");
  // Before the term is known, the name passes to a job of another user.
  Job* const bobs = stage.Submit(12, "a", "user/bob");
  stage.life.term_known = true;
  stage.calls.ServeEarly();
  stage.Run();
  CHECK(early->answered);
  CHECK(early->status.ok());
  CHECK(JobStateName(alices->state()) == "CANCELLED");
  CHECK(JobStateName(bobs->state()) != "CANCELLED");
}

TEST_CASE("a job cannot have a name that looks like the uid of a job") {
  Stage stage;
  v1::SubmitJobRequest request;
  const auto submit = [&](const std::string& name) {
    request.set_yaml(
        "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " + name +
        "}\nspec:\n  type: counting\n  counting: {examples: 64, shards: 4}\n  data: {batch_size: "
        "4, shuffle: {seed: 7}}\n  training: {epochs: 2, steps_per_closure: 2}\n");
    return stage.Call(stage.calls, request, "user/bob")->status;
  };
  const absl::Status refused = submit("abcdefabcdefabcd");
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(BlameOf(refused) == Blame::kUser);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("16 hexadecimal digits"));
  CHECK(stage.jobs.size() == 0);
  for (const char* name : {"abcdefabcdefabc", "abcdefabcdefabcde", "abcdefabcdefabcg"})
    CHECK(submit(name).ok());
}

TEST_CASE("a closure call that waits is refused when its name passes to the job of another user") {
  Stage stage;
  stage.Submit(11, "a", "user/alice");
  stage.life.term_known = false;
  v1::JoinClosuresRequest join;
  join.set_job("a");
  join.set_wait_ms(300);
  const auto reply = stage.Call(stage.closures, join, "user/alice");
  CHECK_FALSE(reply->answered);
  stage.Submit(12, "a", "user/bob");
  stage.life.term_known = true;
  stage.closures.Check();
  CHECK(absl::IsPermissionDenied(reply->status));
}

TEST_CASE("a cancel must name a known job") {
  Stage stage;
  stage.Submit(11, "a");
  CHECK(absl::IsInvalidArgument(stage.Call(stage.calls, Cancel(""))->status));
  CHECK(absl::IsNotFound(stage.Call(stage.calls, Cancel("b"))->status));
}

TEST_CASE("GetJob waits for a change of the job for a limited time") {
  Stage stage;
  stage.life.window_open = true;
  Job* const job = stage.Submit(11, "a");
  stage.Run();
  v1::GetJobRequest request;
  request.set_job("a");
  request.set_seen_revision(job->revision());
  request.set_wait_ms(500);
  const auto waits = stage.Call(stage.calls, request), late = stage.Call(stage.calls, request);
  stage.calls.Check();
  CHECK_FALSE(waits->answered);
  stage.clock.Advance(std::chrono::milliseconds(500));
  stage.calls.Check();
  CHECK(waits->answered);
  CHECK(late->answered);
  v1::GetJobResponse response;
  REQUIRE(response.ParseFromString(waits->bytes));
  CHECK(response.job().name() == "a");
  CHECK(response.job().waiting_for() == "tasks to register");
}

TEST_CASE("a stopping coordinator answers every waiting call") {
  Stage stage;
  Job* const job = stage.Submit(11, "a");
  v1::GetJobRequest request;
  request.set_job("a");
  request.set_seen_revision(job->revision());
  request.set_wait_ms(500);
  const auto waits = stage.Call(stage.calls, request);
  stage.life.term_known = false;
  const auto early = stage.Call(stage.calls, Cancel("a"));
  v1::JoinClosuresRequest join;
  join.set_job("a");
  join.set_wait_ms(500);
  const auto joins = stage.Call(stage.closures, join);
  CHECK_FALSE((waits->answered || early->answered || joins->answered));
  stage.calls.Stop();
  stage.closures.Stop();
  CHECK(absl::IsUnavailable(waits->status));
  CHECK(absl::IsUnavailable(early->status));
  CHECK(absl::IsUnavailable(joins->status));
}

TEST_CASE("a closure call is answered with the reason for its wait at its deadline") {
  Stage stage;
  stage.Submit(11, "a");
  stage.life.term_known = false;
  v1::JoinClosuresRequest join;
  join.set_job("a");
  join.set_wait_ms(300);
  const auto reply = stage.Call(stage.closures, join);
  stage.closures.Check();
  CHECK_FALSE(reply->answered);
  stage.clock.Advance(std::chrono::milliseconds(300));
  stage.closures.Check();
  v1::JoinClosuresResponse response;
  REQUIRE(response.ParseFromString(reply->bytes));
  CHECK(response.waiting_for() == "the coordinator to start");
  join.clear_job();
  stage.life.term_known = true;
  CHECK(absl::IsInvalidArgument(stage.Call(stage.closures, join)->status));
}
