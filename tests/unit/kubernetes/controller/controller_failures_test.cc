// Tests the controller with an API server and a coordinator that fail, hang or refuse.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kubernetes/controller/controller.h"
#include "kubernetes/controller/object_watch.h"
#include "tests/unit/kubernetes/controller/controller_fixture.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("after a conflict the object waits for its newer version") {
  Stage stage;
  stage.Create("mlp");
  stage.api.before = [&](const std::string& call) {
    // Somebody else changes the object before the status is written.
    if (call == "status mlp QUEUED Submitting" && stage.api.objects.at("mlp").generation == 1)
      stage.api.Edit("mlp", ValidSpec());
    return absl::OkStatus();
  };
  CHECK(stage.Round() == Transcript{"list", "finalizers mlp [evergrad.dev/cancel-job]",
                                    "status mlp QUEUED Submitting"});
  CHECK(stage.metrics.conflicts.value() == 1);
  CHECK(stage.metrics.api_errors.value() == 0);
  CHECK(stage.After(milliseconds(100)) == Transcript{});
  stage.Deliver("mlp");
  CHECK(stage.Round() == Transcript{"status mlp QUEUED Submitting", "submit kubernetes/mlp-uid-1"});
  CHECK(IntegerOf(stage.StatusOf("mlp"), "submittedGeneration") == 2);
}

TEST_CASE("a conflict without a newer version is tried again after 500 ms") {
  Stage stage;
  stage.Create("mlp");
  stage.api.before = [](const std::string& call) {
    return absl::StartsWith(call, "status") ? absl::AbortedError("conflict") : absl::OkStatus();
  };
  stage.Round();
  const Transcript calls = stage.During(seconds(10));
  CHECK(Only(calls, "status").size() <= 20);
  CHECK(Only(calls, "status").size() >= 10);
  CHECK(Only(calls, "submit").empty());
}

// The times of calls to the API server, as the distance from the end of the one before.
struct Pauses {
  explicit Pauses(Stage* stage, seconds cost) {
    stage->api.before = [this, stage, cost](const std::string&) {
      pauses.push_back(stage->clock.Now() - last);
      stage->clock.Advance(cost);
      last = stage->clock.Now();
      return absl::UnavailableError("no route to host");
    };
  }
  std::vector<MonoTime> pauses;
  MonoTime last{0};
};

TEST_CASE("an API server that does not answer gets one request in each pause, over all objects") {
  Stage stage;
  for (int i = 0; i < 50; ++i) stage.Create(absl::StrCat("job-", i));
  Pauses seen(&stage, seconds(10));
  const Transcript calls = stage.During(seconds(1200));
  REQUIRE(seen.pauses.size() >= 15);
  for (std::size_t i = 1; i < seen.pauses.size(); ++i) {
    CAPTURE(i);
    CHECK(seen.pauses[i] >= PauseAfter(static_cast<int>(i)));
  }
  CHECK(seen.pauses.size() <= 40);
  // Each request is about another object.
  const Transcript asked = Only(calls, "finalizers");
  CHECK(std::set<std::string>(asked.begin(), asked.end()).size() == asked.size());
  // Once the server answers, all objects are handled soon.
  stage.api.before = nullptr;
  stage.During(seconds(40));
  CHECK(stage.coordinator.jobs.jobs_size() == 50);
}

// Found by reading: the object whose request failed was always the first after the pause, so no
// other object was handled any more.
TEST_CASE("an object whose requests always fail does not keep the others from their turn") {
  Stage stage;
  for (const char* name : {"a", "b", "c"}) stage.Create(name);
  const std::string broken = GENERATE("a", "b", "c");
  stage.api.before = [&](const std::string& call) {
    return absl::StartsWith(call, "status " + broken) ? absl::UnavailableError("internal error")
                                                      : absl::OkStatus();
  };
  stage.During(seconds(60));
  CHECK(stage.coordinator.jobs.jobs_size() == 2);
  std::size_t tries = 0;
  for (int i = 0; i < 10; ++i) {
    for (int job = 0; job < 2; ++job)
      stage.coordinator.job(job).set_steps_done(static_cast<std::uint64_t>(i + 1));
    tries += Only(stage.During(seconds(30)), "status " + broken).size();
  }
  CHECK(tries >= 8);
  CHECK(tries <= 12);
  for (const char* name : {"a", "b", "c"})
    if (name != broken) CHECK(IntegerOf(stage.StatusOf(name), "step") == 10);
}

TEST_CASE("a request that the API server refuses is repeated less and less often") {
  Stage stage;
  stage.Create("mlp");
  stage.api.before = [](const std::string&) { return absl::InvalidArgumentError("invalid"); };
  stage.Round();
  CHECK(Only(stage.During(seconds(60)), "finalizers").size() <= 9);
  const std::size_t later = Only(stage.During(seconds(300)), "finalizers").size();
  CHECK(later >= 9);
  CHECK(later <= 11);
  CHECK(stage.metrics.api_errors.value() >= 10);
  // A newer version is tried at once.
  stage.api.before = nullptr;
  stage.Deliver("mlp");
  CHECK(Only(stage.Round(), "submit").size() == 1);
}

// A wrong role cost one request and one line of the log for each object.
TEST_CASE("a right that is missing concerns all objects, and is reported once") {
  Stage stage;
  for (int i = 0; i < 50; ++i) stage.Create(absl::StrCat("o", i));
  stage.api.before = [](const std::string&) { return absl::PermissionDeniedError("forbidden"); };
  CHECK(Only(stage.Round(), "finalizers").size() == 1);
  CHECK(Only(stage.During(seconds(10)), "finalizers").size() <= 10);
  const std::vector<std::string> log = stage.Log();
  CHECK(std::count_if(log.begin(), log.end(), [](const std::string& line) {
          return line.find("forbidden") != std::string::npos;
        }) == 1);
  CHECK(stage.metrics.objects_failing.value() > 0);
}

// Found by reading: a coordinator that hangs cost one timeout for each object in each round.
TEST_CASE("a coordinator that hangs costs one timeout in each round, and not one for each object") {
  Stage stage;
  for (int i = 0; i < 50; ++i) stage.Create(absl::StrCat("job-", i));
  stage.coordinator.submit_error = absl::DeadlineExceededError("no answer");
  CHECK(Only(stage.Round(), "submit").size() == 1);
  for (int i = 0; i < 10; ++i) CHECK(Only(stage.After(seconds(1)), "submit").size() <= 1);
  stage.coordinator.submit_error = absl::OkStatus();
  stage.During(seconds(40));
  CHECK(stage.coordinator.jobs.jobs_size() == 50);

  for (int i = 0; i < 50; ++i) stage.coordinator.job(i).set_epoch(1);
  stage.coordinator.get_error = absl::DeadlineExceededError("no answer");
  CHECK(Only(stage.After(seconds(1)), "get").size() == 1);
  stage.coordinator.get_error = absl::OkStatus();
  stage.coordinator.cancel_error = absl::DeadlineExceededError("no answer");
  for (int i = 0; i < 50; ++i) {
    stage.api.Delete(absl::StrCat("job-", i));
    stage.Deliver(absl::StrCat("job-", i));
  }
  CHECK(Only(stage.After(seconds(1)), "cancel").size() == 1);
  stage.coordinator.cancel_error = absl::OkStatus();
  CHECK(Only(stage.During(seconds(2)), "cancel").size() >= 49);
}

TEST_CASE("after a silent list nothing is submitted, and after the next list everything is") {
  Stage stage;
  stage.coordinator.list_error = absl::UnavailableError("no route to host");
  stage.Create("mlp");
  CHECK(Only(stage.During(seconds(20)), "submit").empty());
  CHECK(TextOf(FindCondition(stage.StatusOf("mlp"), "Accepted"), "reason") ==
        "CoordinatorUnreachable");
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "QUEUED");
  stage.coordinator.list_error = absl::OkStatus();
  CHECK(Only(stage.During(seconds(3)), "submit").size() == 1);
}

// Found by reading: a restart overwrote the record, and the status named the wrong generation.
TEST_CASE("the record of a submission survives a restart, an edit and a silent coordinator") {
  Stage stage;
  stage.Create("mlp");
  CHECK(Only(stage.Round(), "submit").size() == 1);
  // The process dies before it has seen the job. The user changes the spec.
  stage.api.Edit("mlp", ValidSpec());
  stage.coordinator.list_error = absl::UnavailableError("no route to host");
  stage.Restart();
  stage.During(seconds(20));
  CHECK(IntegerOf(stage.StatusOf("mlp"), "submittedGeneration") == 1);
  stage.coordinator.list_error = absl::OkStatus();
  stage.During(seconds(3));
  CHECK(IntegerOf(stage.StatusOf("mlp"), "submittedGeneration") == 1);
  CHECK(TextOf(FindCondition(stage.StatusOf("mlp"), "UpToDate"), "status") == "False");
  CHECK(stage.coordinator.submissions.size() == 1);
}

TEST_CASE("an Event that the API server does not take costs one request, and is forgotten") {
  Stage stage;
  stage.api.before = [&](const std::string& call) {
    return absl::StartsWith(call, "event") ? absl::UnavailableError("no route to host")
                                           : absl::OkStatus();
  };
  stage.Create("mlp");
  stage.Round();
  stage.coordinator.job().set_state("RUNNING");
  // The job is accepted and runs: two Events are due.
  CHECK(Only(stage.Round(), "event") == Transcript{"event mlp Submitted"});
  CHECK(Only(stage.During(seconds(30)), "event").empty());
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "RUNNING");
  CHECK(stage.metrics.api_errors.value() == 1);
  CHECK(stage.metrics.events.value() == 0);
}

TEST_CASE("a cancellation that is refused is repeated, and the log says why") {
  Stage stage;
  stage.Create("mlp");
  stage.Round();
  stage.Round();
  stage.coordinator.cancel_error = absl::PermissionDeniedError("not yours");
  stage.api.Delete("mlp");
  stage.Deliver("mlp");
  stage.Round();
  CHECK(Only(stage.During(seconds(20)), "cancel").size() == 4);
  CHECK(stage.metrics.cancellations.value() == 0);
  CHECK(stage.Log().back() == "cannot cancel the job of a deleted object: object=mlp: not yours");
}

// Found by reading: the job of a deleted object ran on while its status could not be written.
TEST_CASE("the job of a deleted object is cancelled although its status is refused") {
  Stage stage;
  stage.Create("mlp");
  stage.Round();
  stage.Round();
  stage.api.before = [](const std::string& call) {
    return absl::StartsWith(call, "status") ? absl::InvalidArgumentError("invalid")
                                            : absl::OkStatus();
  };
  stage.api.Delete("mlp");
  stage.Deliver("mlp");
  CHECK(Only(stage.Round(), "cancel").size() == 1);
  stage.coordinator.job().set_state("CANCELLED");
  stage.During(seconds(3));
  CHECK(stage.api.objects.empty());
}

// Found by reading: such an object cost six requests in each round.
TEST_CASE("an API server that stores another state is asked less and less often, and reported") {
  Stage stage;
  stage.Create("mlp");
  stage.api.after = [&](const std::string& call) {
    if (absl::StartsWith(call, "status")) stage.api.objects.at("mlp").status.erase("state");
  };
  CHECK(Only(stage.Round(), "status").size() == 1);
  CHECK(Only(stage.During(seconds(60)), "status").size() <= 9);
  CHECK_THAT(stage.Log().back(), Catch::Contains("the API server has stored another status"));
}

TEST_CASE("an API server that drops a member of the status gets no request in each round") {
  Stage stage;
  stage.api.after = [&](const std::string& call) {
    if (absl::StartsWith(call, "status")) stage.api.objects.at("mlp").status.erase("runsFolder");
  };
  stage.Create("mlp");
  stage.Round();
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.During(seconds(5));
  stage.Deliver("mlp");
  CHECK(Only(stage.During(seconds(60)), "status").size() <= 13);
}

}  // namespace
}  // namespace evergrad::kubernetes
