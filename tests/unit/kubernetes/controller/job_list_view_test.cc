// Tests the newest list of the coordinator's jobs, and the calls that fail.
#include "kubernetes/controller/job_list_view.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "common/base/status.h"
#include "kubernetes/controller/coordinator_calls.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

v1::ListJobsResponse ListOf(const std::vector<std::vector<std::string>>& jobs) {
  v1::ListJobsResponse list;
  for (const auto& one : jobs) {
    v1::JobStatus& job = *list.add_jobs();
    job.set_job_uid(static_cast<std::uint64_t>(list.jobs_size()));
    job.set_request_id(one[0]);
    job.set_owner(one[1]);
  }
  return list;
}

TEST_CASE("the newest job of the owner with a request id counts") {
  JobListView view;
  CHECK(view.Find("r") == nullptr);
  view.Take(ListOf({{"r", "operator"},
                    {"s", "operator"},
                    {"r", "operator"},
                    {"r", "user/eve"},
                    {"", "operator"},
                    {"t", ""}}),
            "operator", seconds(1));
  REQUIRE(view.Find("r") != nullptr);
  CHECK(view.Find("r")->job_uid() == 3);
  CHECK(view.Find("s")->job_uid() == 2);
  CHECK(view.Find("t") == nullptr);
  CHECK(view.Find("") == nullptr);
  view.Take(ListOf({{"t", ""}, {"r", "operator"}}), "", seconds(2));  // without TLS
  CHECK(view.Find("t")->job_uid() == 1);
  CHECK(view.Find("r") == nullptr);
  CHECK(view.Find("s") == nullptr);
}

TEST_CASE("a list is newer than the times before its request, while the coordinator answers") {
  JobListView view;
  CHECK_FALSE(view.IsNewerThan(MonoTime(-1)));
  CHECK_FALSE(view.reachable());
  view.Take({}, "", seconds(10));
  CHECK(view.reachable());
  CHECK(view.IsNewerThan(seconds(9)));
  CHECK_FALSE(view.IsNewerThan(seconds(10)));
  view.Fail(absl::UnavailableError("gone"), seconds(11));
  CHECK_FALSE(view.IsNewerThan(seconds(9)));
  CHECK_FALSE(view.reachable());
  view.Take({}, "", seconds(12));
  CHECK(view.IsNewerThan(seconds(11)));
}

TEST_CASE("after a failure the jobs of the last list stay") {
  JobListView view;
  view.Take(ListOf({{"r", ""}}), "", seconds(1));
  view.Fail(absl::UnavailableError("gone"), seconds(2));
  CHECK(view.Find("r") != nullptr);
}

TEST_CASE("trouble is a coordinator that has not answered for 5 s, with its newest error") {
  JobListView view;
  CHECK(view.Trouble(seconds(100)) == "");  // it has not been asked yet
  view.Fail(absl::UnavailableError("first"), seconds(100));
  CHECK(view.Trouble(seconds(100)) == "");
  CHECK(view.Trouble(seconds(105) - milliseconds(1)) == "");
  CHECK(view.Trouble(seconds(105)) == "first");
  view.Fail(absl::UnavailableError("second"), seconds(106));
  CHECK(view.Trouble(seconds(106)) == "second");
  view.Take({}, "", seconds(107));
  CHECK(view.Trouble(seconds(200)) == "");
  view.Fail(absl::UnavailableError("third"), seconds(201));
  CHECK(view.Trouble(seconds(205)) == "");
  CHECK(view.Trouble(seconds(206)) == "third");
}

TEST_CASE("an error is the coordinator's answer unless the call may have been lost") {
  for (const absl::Status& lost :
       {absl::UnavailableError("x"), absl::DeadlineExceededError("x"), absl::CancelledError("x"),
        absl::InternalError("x"), absl::UnknownError("x")}) {
    CHECK_FALSE(IsAnswer(lost));
    CHECK(IsAnswer(WithOrigin(lost, "coordinator")));
  }
  for (const absl::Status& answer :
       {absl::InvalidArgumentError("x"), absl::AlreadyExistsError("x"),
        absl::FailedPreconditionError("x"), absl::PermissionDeniedError("x"),
        absl::ResourceExhaustedError("x"), absl::NotFoundError("x"), absl::UnimplementedError("x"),
        absl::UnauthenticatedError("x")})
    CHECK(IsAnswer(answer));
}

}  // namespace
}  // namespace evergrad::kubernetes
