// Tests the threads of the operator with an API server and a coordinator that a test plays.
#include "kubernetes/operator.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "common/base/mutex.h"
#include "kubernetes/reconcile/conditions.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::seconds;

// An API server with one object. A watch lasts until the interruption.
class OneObject final : public Api {
 public:
  explicit OneObject(http::Interruption* interruption) : interruption_(*interruption) {
    object_.name = "mlp";
    object_.uid = "u-1";
    object_.generation = 1;
    object_.resource_version = "1";
    object_.spec = *ParseJson(R"({"type": "functions",
        "functions": {"variables": [{"name": "slope", "shape": [2]}]},
        "optimizer": {"type": "sgd", "learning_rate": 0.05}})");
  }
  absl::StatusOr<JobList> List() override {
    MutexLock lock(&mu_);
    JobList list;
    list.objects = {object_};
    list.resource_version = "1";
    return list;
  }
  absl::Status Watch(const std::string&, const WatchReader::OnEvent&) override {
    while (interruption_.Wait(std::chrono::hours(1))) {
    }
    return absl::CancelledError("interrupted");
  }
  absl::StatusOr<JobObject> SetFinalizers(const JobObject&,
                                          const std::vector<std::string>& finalizers) override {
    MutexLock lock(&mu_);
    object_.finalizers = finalizers;
    return object_;
  }
  absl::StatusOr<JobObject> SetStatus(const JobObject&, const Json& status) override {
    MutexLock lock(&mu_);
    object_.status = status;
    if (TextOf(status, "state") == "SUCCEEDED") succeeded_.Set();
    return object_;
  }
  absl::Status CreateEvent(const Json&) override { return absl::OkStatus(); }

  bool AwaitSuccess() { return succeeded_.WaitFor(seconds(60)); }

 private:
  http::Interruption& interruption_;
  Mutex mu_;
  JobObject object_ ABSL_GUARDED_BY(mu_);
  runtime::WaitableEvent succeeded_;
};

// A coordinator whose jobs succeed between two lists. Only one thread calls it.
class FastCoordinator final : public CoordinatorCalls {
 public:
  absl::StatusOr<v1::ListJobsResponse> ListJobs() override {
    const v1::ListJobsResponse list = list_;
    if (list_.jobs_size() > 0) list_.mutable_jobs(0)->set_state("SUCCEEDED");
    return list;
  }
  absl::StatusOr<v1::JobStatus> GetJob(std::uint64_t) override { return v1::JobStatus(); }
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request) override {
    v1::JobStatus& job = *list_.add_jobs();
    job.set_job_uid(1);
    job.set_state("RUNNING");
    job.set_request_id(request.request_id());
    return v1::SubmitJobResponse();
  }
  absl::Status CancelJob(std::uint64_t) override { return absl::OkStatus(); }
  int submitted() const { return list_.jobs_size(); }

 private:
  v1::ListJobsResponse list_;
};

TEST_CASE("the threads bring an object to its end, and end themselves at once") {
  const RealClock clock;
  http::Interruption interruption;
  OneObject api(&interruption);
  FastCoordinator coordinator;
  metrics::Registry registry;
  OperatorMetrics metrics{registry};
  log::Options log_options;
  log_options.file = "/dev/null";
  log::Logger logger(log_options);
  health::Readiness readiness;
  ControllerOptions options;
  options.name_space = "ns";
  options.poll = std::chrono::milliseconds(10);
  const auto run = [&] {
    return Operator(options, {.api = &api,
                              .coordinator = &coordinator,
                              .interruption = &interruption,
                              .clock = &clock,
                              .logger = &logger,
                              .metrics = &metrics,
                              .api_ready = readiness.Add("api_server", "begins"),
                              .coordinator_ready = readiness.Add("coordinator", "begins")});
  };
  {
    const Operator running = run();
    REQUIRE(api.AwaitSuccess());
  }
  CHECK(readiness.Missing().empty());
  CHECK(coordinator.submitted() == 1);
  CHECK(metrics.watches.value() == 1);
  CHECK(metrics.submissions.value() == 1);
  // An operator that is interrupted before it begins ends, too.
  { const Operator late = run(); }
}

}  // namespace
}  // namespace evergrad::kubernetes
