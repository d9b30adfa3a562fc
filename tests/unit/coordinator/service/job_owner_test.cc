// Tests who may change the jobs of a coordinator with TLS, and the audit log of these calls.
#include <google/protobuf/message.h>
#include <catch2/catch.hpp>

#include <regex>

#include "absl/strings/str_cat.h"
#include "certified_transport.h"
#include "common/base/status.h"
#include "coordinator/service/control_calls.h"
#include "task_fixture.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

using Lines = std::vector<std::string>;

// A coordinator with TLS, whose calls come from the user that the test has set.
struct Cluster {
  Cluster() : Cluster(std::make_unique<CertifiedTransport>()) {}

  // The calls that follow come from this user.
  void As(const std::string& task) { certificates.CertifyCalls(task); }
  std::string Submit(const std::string& name) {
    const auto submitted = c.Submit(TestCluster::CountingYaml(name));
    REQUIRE(submitted.ok());
    return absl::StrCat(name, "/", JobUidString(JobUid(submitted->job_uid())));
  }
  absl::Status Cancel(const std::string& job) {
    v1::CancelJobRequest request;
    request.set_job(job);
    return c.Call<v1::CancelJobResponse>(request).status();
  }
  std::string OwnerOf(const std::string& job) {
    v1::GetJobRequest request;
    request.set_job(job);
    const auto status = c.Call<v1::GetJobResponse>(request);
    REQUIRE(status.ok());
    return status->job().owner();
  }
  // Returns the lines of the audit log, without the addresses.
  Lines Audit() const {
    Lines lines;
    for (const log::Line& line : c.logger.Read(0, 0, "", 1000)) {
      if (line.text.rfind("audit: ", 0) == 0)
        lines.push_back(
            std::regex_replace(line.text.substr(7), std::regex("action=| peer=\\S+"), ""));
    }
    return lines;
  }

  CertifiedTransport& certificates;
  TestCluster c;

 private:
  explicit Cluster(std::unique_ptr<CertifiedTransport> made)
      : certificates(*made), c({}, nullptr, std::move(made), LogOptions()) {}
  static log::Options LogOptions() {
    log::Options options;
    options.file = "/dev/null";
    return options;
  }
};

template <class Response, class Request>
absl::Status CallOf(TestCluster& c, const std::string& job) {
  Request request;
  request.set_job(job);
  return c.Call<Response>(request).status();
}

}  // namespace

TEST_CASE("a job belongs to the user who submitted it, and only this user and admins change it") {
  Cluster stage;
  stage.As("user/alice");
  const std::string job = stage.Submit("mnist");
  stage.As("user/bob");
  CHECK(stage.OwnerOf("mnist") == "user/alice");  // every user may look
  const absl::Status refused = stage.Cancel("mnist");
  CHECK(absl::IsPermissionDenied(refused));
  CHECK(BlameOf(refused) == Blame::kUser);
  CHECK(refused.message() == absl::StrCat("the job belongs to another user: job=", job,
                                          " owner=user/alice caller=user/bob"));
  CHECK(stage.Submit("other") != job);
  for (const char* other : {"user", "user/alic", "user/alice2", "operator/alice", "operator"}) {
    CAPTURE(other);
    stage.As(other);
    CHECK(absl::IsPermissionDenied(stage.Cancel("mnist")));
  }
  stage.As("viewer/alice");
  CHECK(absl::IsPermissionDenied(stage.Cancel("mnist")));
  CHECK(stage.OwnerOf("other") == "user/bob");
  stage.As("user/alice");
  CHECK(stage.Cancel("mnist").ok());
  stage.As("admin/carol");
  CHECK(stage.Cancel("other").ok());
}

TEST_CASE("a certificate without a name is an owner like any other") {
  Cluster stage;
  stage.As("user");
  stage.Submit("shared");
  stage.As("user/alice");
  CHECK(absl::IsPermissionDenied(stage.Cancel("shared")));
  stage.As("user");
  CHECK(stage.Cancel("shared").ok());
  stage.As("operator/ctl");
  stage.Submit("object");
  CHECK(stage.OwnerOf("object") == "operator/ctl");
  CHECK(stage.Cancel("object").ok());
}

TEST_CASE("everybody changes a job without an owner, and without TLS every job") {
  Cluster stage;
  stage.As("");
  stage.Submit("open");
  stage.As("user/alice");
  CHECK(stage.OwnerOf("open").empty());
  CHECK(stage.Cancel("open").ok());
  stage.Submit("closed");
  stage.As("");
  CHECK(stage.Cancel("closed").ok());
}

TEST_CASE("the calls of functions jobs and the deletion of a job require the owner or an admin") {
  Cluster stage;
  stage.As("user/alice");
  stage.Submit("mnist");
  using Call = absl::Status (*)(TestCluster&, const std::string&);
  const std::pair<const char*, Call> calls[] = {
      {"DeleteJob", CallOf<v1::DeleteJobResponse, v1::DeleteJobRequest>},
      {"ScheduleClosure", CallOf<v1::ScheduleClosureResponse, v1::ScheduleClosureRequest>},
      {"JoinClosures", CallOf<v1::JoinClosuresResponse, v1::JoinClosuresRequest>},
      {"ClosuresDone", CallOf<v1::ClosuresDoneResponse, v1::ClosuresDoneRequest>},
      {"FetchResult", CallOf<v1::FetchResultResponse, v1::FetchResultRequest>},
      {"CancelClosures", CallOf<v1::CancelClosuresResponse, v1::CancelClosuresRequest>},
      {"ReleaseResults", CallOf<v1::ReleaseResultsResponse, v1::ReleaseResultsRequest>},
      {"FinishJob", CallOf<v1::FinishJobResponse, v1::FinishJobRequest>},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    // This job has not ended and is no functions job, so the handlers refuse permitted callers for
    // another reason.
    for (const char* permitted : {"user/alice", "admin", "admin/carol"}) {
      stage.As(permitted);
      CHECK(absl::IsFailedPrecondition(call(stage.c, "mnist")));
    }
    for (const char* other : {"user/bob", "user", "operator/ctl", "viewer", "worker/0"}) {
      CAPTURE(other);
      stage.As(other);
      CHECK(absl::IsPermissionDenied(call(stage.c, "mnist")));
    }
  }
}

TEST_CASE("the rows that are for the owner only refuse every other user, and no other row does") {
  Cluster stage;
  stage.As("user/alice");
  stage.Submit("mnist");
  stage.As("user/bob");
  const auto& service = client::ControlService();
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::Descriptor& type = *service.method(i)->input_type();
    const ControlCall* const call = FindCall(ControlCalls(), client::ControlPath(type));
    REQUIRE(call != nullptr);
    CAPTURE(call->method);
    const google::protobuf::FieldDescriptor* const job = type.FindFieldByName("job");
    if (job == nullptr) {
      CHECK_FALSE(call->owner_only);
      continue;
    }
    const std::unique_ptr<google::protobuf::Message> request(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
    request->GetReflection()->SetString(request.get(), job, "mnist");
    const absl::Status status =
        transport::UnaryAndWait(*stage.c.channel, call->method, request->SerializeAsString(),
                                std::chrono::seconds(15))
            .status();
    CHECK(absl::IsPermissionDenied(status) == call->owner_only);
  }
}

TEST_CASE("the audit log tells who changed a job or was refused, and no call that reads") {
  Cluster stage;
  stage.As("user/alice");
  const std::string job = stage.Submit("mnist");
  CHECK(stage.OwnerOf("mnist") == "user/alice");
  stage.As("user/bob");
  CHECK_FALSE(stage.Cancel("mnist").ok());
  CHECK_FALSE(stage.Cancel("no such job\n").ok());
  CHECK_FALSE(
      CallOf<v1::ScheduleClosureResponse, v1::ScheduleClosureRequest>(stage.c, "mnist").ok());
  v1::DrainTaskRequest drain;
  drain.set_task("worker/0");
  CHECK_FALSE(stage.c.Call<v1::DrainTaskResponse>(drain).ok());
  stage.As("admin/carol");
  CHECK_FALSE(stage.c.Call<v1::DrainTaskResponse>(drain).ok());
  CHECK(stage.Cancel("mnist").ok());
  stage.As("worker/3");
  CHECK_FALSE(stage.c.Call<v1::ListJobsResponse>(v1::ListJobsRequest()).ok());
  const std::string refusal =
      absl::StrCat("PERMISSION_DENIED: the job belongs to another user: job=", job,
                   " owner=user/alice caller=user/bob");
  const Lines lines = stage.Audit();
  REQUIRE(lines.size() == 8);
  CHECK(lines[0] == absl::StrCat("SubmitJob caller=user/alice object=", job, " result=ok"));
  CHECK(lines[1] == absl::StrCat("CancelJob caller=user/bob object=", job, " result=", refusal));
  CHECK_THAT(
      lines[2],
      Catch::StartsWith(R"(CancelJob caller=user/bob object="no such job\\n" result=NOT_FOUND: )"));
  CHECK(lines[3] ==
        absl::StrCat("ScheduleClosure caller=user/bob object=", job, " result=", refusal));
  CHECK(lines[4] ==
        "DrainTask caller=user/bob object=- result=PERMISSION_DENIED: certificate is for user/bob, "
        "expected admin");
  CHECK_THAT(lines[5],
             Catch::StartsWith("DrainTask caller=admin/carol object=worker/0 result=NOT_FOUND: "));
  CHECK(lines[6] == absl::StrCat("CancelJob caller=admin/carol object=", job, " result=ok"));
  CHECK(lines[7] ==
        "ListJobs caller=worker/3 object=- result=PERMISSION_DENIED: certificate is for worker/3, "
        "expected user or viewer or operator or admin");
}
