#include "coordinator/service/work_times.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;

struct Fixture {
  metrics::Registry registry;
  WorkTimes times{registry};
  const JobUid job{1}, other{2};
  const TaskId worker{1};
  const std::string labels = absl::StrCat("{job=\"mnist\",job_uid=\"", JobUidString(JobUid(1)));

  void Grant(std::uint64_t n, milliseconds now, bool training = true) {
    times.OnGrant(worker, job, "mnist", {1, n}, training, now);
  }
  void Done(std::uint64_t n, milliseconds now, bool holds) {
    times.OnDone(worker, job, {1, n}, now);
    times.OnMessageOf(worker, job, holds, now);
  }
  bool Has(const std::string& name, const std::string& value) const {
    return registry.PrometheusText().find(absl::StrCat(name, labels, "\"} ", value, "\n")) !=
           std::string::npos;
  }
  bool HasClosures(const std::string& count, const std::string& sum) const {
    return Has("evergrad_coordinator_closure_seconds_count", count) &&
           Has("evergrad_coordinator_closure_seconds_sum", sum);
  }
  bool HasWaits(const std::string& count, const std::string& sum) const {
    return Has("evergrad_coordinator_grant_wait_seconds_count", count) &&
           Has("evergrad_coordinator_grant_wait_seconds_sum", sum);
  }
};

TEST_CASE_METHOD(Fixture, "a closure that was granted ahead begins with the end of the previous") {
  Grant(1, milliseconds(1000));
  Grant(2, milliseconds(1000));
  Done(1, milliseconds(3000), true);
  CHECK(HasClosures("1", "2"));
  Done(2, milliseconds(3500), false);
  CHECK(HasClosures("2", "2.5"));
  Done(2, milliseconds(3600), false);  // a repeated Done
  CHECK(HasClosures("2", "2.5"));
}

TEST_CASE_METHOD(Fixture, "a worker waits from its last work to the next grant") {
  Grant(1, milliseconds(1000));
  CHECK(HasWaits("0", "0"));  // before the first grant the worker had no job to wait for
  Grant(2, milliseconds(1000));
  CHECK(HasWaits("1", "0"));  // the second grant came before the first closure ended
  Done(1, milliseconds(2000), true);
  Done(2, milliseconds(3000), false);
  times.OnMessageOf(worker, job, false, milliseconds(5000));  // this message does not end the wait
  // The grant of an evaluation closure ends the wait.
  Grant(3, milliseconds(7000), /*training=*/false);
  CHECK(HasWaits("2", "4"));
  Done(3, milliseconds(8000), false);
  CHECK(HasClosures("2", "2"));  // evaluation closures are not counted here
}

TEST_CASE_METHOD(Fixture, "work that ends without Done has no duration") {
  Grant(1, milliseconds(1000));
  // The worker gives the attempt back.
  times.OnMessageOf(worker, job, false, milliseconds(2000));
  Grant(2, milliseconds(2500));
  CHECK(HasWaits("1", "0.5"));
  Done(1, milliseconds(3000), true);
  CHECK(HasClosures("0", "0"));
}

TEST_CASE_METHOD(Fixture, "the histograms of an ended job are not shown") {
  Grant(1, milliseconds(1000));
  times.OnGrant(TaskId{2}, other, "other", {1, 9}, true, milliseconds(1000));
  times.EndJob(job);
  CHECK_FALSE(HasClosures("0", "0"));
  CHECK_THAT(registry.PrometheusText(), Catch::Contains("closure_seconds_count{job=\"other\""));
  Done(1, milliseconds(2000), false);  // a message of an ended job changes nothing
  CHECK_THAT(registry.PrometheusText(), !Catch::Contains("mnist"));
}

TEST_CASE_METHOD(Fixture, "a worker that changes its job, or begins anew, has waited for nothing") {
  Grant(1, milliseconds(1000));
  Done(1, milliseconds(2000), false);
  times.OnGrant(worker, other, "other", {1, 5}, true, milliseconds(9000));
  CHECK(HasWaits("0", "0"));
  times.ForgetWorker(worker);
  Grant(2, milliseconds(20000));
  CHECK(HasWaits("0", "0"));
}

}  // namespace
}  // namespace evergrad::coordinator
