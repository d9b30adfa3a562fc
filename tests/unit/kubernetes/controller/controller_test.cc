// Tests lives of objects as transcripts of the calls that the controller makes.
#include "kubernetes/controller/controller.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/unit/kubernetes/controller/controller_fixture.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Brings the object `name` to a job that runs.
void MakeRunning(Stage* stage, const std::string& name) {
  stage->Create(name);
  stage->Round();
  stage->coordinator.job(stage->coordinator.jobs.jobs_size() - 1).set_state("RUNNING");
  stage->After(seconds(1));
  REQUIRE(TextOf(stage->StatusOf(name), "state") == "RUNNING");
}

TEST_CASE("an object becomes a job, and its status follows the job to its end") {
  Stage stage;
  stage.Create("mlp");
  CHECK(stage.Round() == Transcript{"list", "finalizers mlp [evergrad.dev/cancel-job]",
                                    "status mlp QUEUED Submitting", "submit kubernetes/mlp-uid-1"});
  CHECK(stage.coordinator.submissions[0].source_name() == "trainingjob/ns/mlp");
  CHECK_THAT(stage.coordinator.submissions[0].yaml(), Catch::Contains("name: mlp"));
  CHECK(stage.next <= stage.clock.Now());  // the jobs are listed at once
  CHECK(stage.Round() ==
        Transcript{"list", "status mlp QUEUED JobSubmitted", "event mlp Submitted"});
  CHECK(stage.next == stage.clock.Now() + seconds(1) - std::chrono::microseconds(2));
  stage.coordinator.job().set_state("RUNNING");
  CHECK(stage.Round() == Transcript{});
  CHECK(stage.After(seconds(1)) ==
        Transcript{"list", "status mlp RUNNING JobSubmitted", "event mlp Running"});
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.coordinator.metrics = {{"accuracy", 0.5}, {"auc", 0.25}, {"loss", 7}};
  CHECK(stage.After(seconds(1)) ==
        Transcript{"list", "get 1", "status mlp SUCCEEDED JobSubmitted", "event mlp Succeeded"});
  CHECK(TextOf(stage.StatusOf("mlp"), "metric") == "auc=0.25");
  CHECK(Only(stage.During(seconds(60)), "list").size() >= 30);
  CHECK(stage.transcript.size() <= 1);
  CHECK(stage.metrics.submissions.value() == 1);
  CHECK(stage.metrics.status_writes.value() == 4);
  CHECK(stage.metrics.events.value() == 3);
  CHECK(stage.metrics.api_errors.value() == 0);
  CHECK(stage.metrics.objects.value() == 1);
  CHECK(stage.metrics.objects_open.value() == 0);
  CHECK(stage.metrics.coordinator_reachable.value() == 1);
  CHECK(stage.readiness.Missing().empty());
}

TEST_CASE("the versions that the watch repeats cause no calls") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.Deliver("mlp");
  CHECK(stage.Round() == Transcript{});
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.After(seconds(1));
  stage.Deliver("mlp");
  CHECK(stage.Round() == Transcript{});
}

TEST_CASE("an Event has exactly these members") {
  Stage stage;
  stage.Create("mlp");
  stage.Round();
  stage.Round();
  REQUIRE(stage.api.events.size() == 1);
  CHECK(stage.api.events[0].dump(1) ==
        Json({{"apiVersion", "v1"},
              {"kind", "Event"},
              {"metadata", {{"name", "mlp.mlp-uid-.1.submitted"}, {"namespace", "ns"}}},
              {"involvedObject",
               {{"apiVersion", "evergrad.dev/v1alpha1"},
                {"kind", "TrainingJob"},
                {"name", "mlp"},
                {"namespace", "ns"},
                {"uid", "mlp-uid-1"},
                {"resourceVersion", stage.api.objects["mlp"].resource_version}}},
              {"reason", "Submitted"},
              {"message", "The coordinator has accepted the job: job_uid=0000000000000001"},
              {"type", "Normal"},
              {"source", {{"component", "evergrad-operator"}}},
              {"firstTimestamp", "1970-01-01T00:01:50Z"},
              {"lastTimestamp", "1970-01-01T00:01:50Z"},
              {"count", 1}})
            .dump(1));
}

// Found by reading: the API server refused the Event of a long name that was cut after a dash.
TEST_CASE("the name of an Event of an object with a long name has no empty part") {
  Stage stage;
  stage.Create(std::string(190, 'a') + "---------" + "-.bbb", Json("no spec"));
  stage.Round();
  REQUIRE(stage.api.events.size() == 1);
  CHECK_THAT(stage.api.events[0]["metadata"]["name"].get<std::string>(),
             Catch::StartsWith(std::string(190, 'a') + "."));
}

TEST_CASE("an object whose spec is wrong is never submitted, and waits for a change") {
  Stage stage;
  Json wrong = ValidSpec();
  wrong["optimizer"]["type"] = "sdg";
  stage.Create("mlp", wrong);
  CHECK(stage.Round() == Transcript{"list", "status mlp INVALID InvalidSpec", "event mlp Refused"});
  CHECK_THAT(TextOf(stage.StatusOf("mlp"), "message"), Catch::StartsWith("spec.optimizer.type: "));
  CHECK(stage.metrics.refusals.value() == 1);
  CHECK(stage.metrics.objects_invalid.value() == 1);
  CHECK(stage.During(seconds(20)).size() == Only(stage.During(seconds(20)), "list").size());
  stage.api.Edit("mlp", ValidSpec());
  stage.Deliver("mlp");
  const Transcript calls = stage.Round();
  CHECK(calls.back() == "submit kubernetes/mlp-uid-1");
  stage.Round();
  CHECK(IntegerOf(stage.StatusOf("mlp"), "submittedGeneration") == 2);
  CHECK(stage.metrics.objects_invalid.value() == 0);
  CHECK(stage.metrics.objects_open.value() == 1);
}

// Found by reading: the coordinator's refusals have no origin, and the controller took them for
// calls without an answer. Their objects stayed QUEUED for ever.
TEST_CASE("a refusal of the coordinator without an origin reaches the status") {
  Stage stage;
  stage.coordinator.submit_error =
      UserError(absl::InvalidArgumentError("mlp:3:5: unknown layer\nsecond line"));
  stage.Create("mlp");
  Transcript calls = stage.Round();
  CHECK(Only(calls, "submit").size() == 1);
  CHECK(calls.back() == "event mlp Refused");
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "INVALID");
  CHECK(TextOf(stage.StatusOf("mlp"), "message") == "mlp:3:5: unknown layer\\nsecond line");
  CHECK(Only(stage.During(seconds(60)), "submit").empty());
  CHECK(stage.metrics.refusals.value() == 1);
  CHECK(stage.metrics.coordinator_errors.value() == 0);
}

TEST_CASE("a name in use is tried again, less and less often, until it is free") {
  Stage stage;
  stage.coordinator.submit_error =
      UserError(absl::AlreadyExistsError("the name belongs to a job that has not ended"));
  stage.Create("mlp");
  stage.Round();
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "QUEUED");
  CHECK(TextOf(FindCondition(stage.StatusOf("mlp"), "Accepted"), "reason") == "NameInUse");
  const std::size_t first = Only(stage.During(seconds(60)), "submit").size();
  CHECK(first >= 5);
  CHECK(first <= 12);
  const std::size_t later = Only(stage.During(seconds(300)), "submit").size();
  CHECK(later >= 8);
  CHECK(later <= 12);
  CHECK(stage.metrics.refusals.value() == 0);  // the spec is right
  CHECK(stage.api.events.size() == 1);
  stage.coordinator.submit_error = absl::OkStatus();
  stage.During(seconds(32));
  CHECK_FALSE(TextOf(stage.StatusOf("mlp"), "jobUid").empty());
  CHECK(stage.coordinator.jobs.jobs_size() == 1);
}

// Found by reading: such an object became idle, and was never submitted.
TEST_CASE("a submission without an answer is tried again, although the list stays empty") {
  for (const absl::Status& error :
       {absl::DeadlineExceededError("no answer"), absl::UnavailableError("no connection"),
        absl::InternalError("unreadable answer")}) {
    CAPTURE(error.message());
    Stage stage;
    stage.coordinator.submit_error = error;
    stage.Create("mlp");
    stage.Round();
    CHECK(TextOf(FindCondition(stage.StatusOf("mlp"), "Accepted"), "reason") == "Submitting");
    CHECK(Only(stage.During(seconds(10)), "submit").size() >= 3);
    CHECK(stage.metrics.refusals.value() == 0);
    stage.coordinator.submit_error = absl::OkStatus();
    stage.During(seconds(32));
    CHECK_FALSE(TextOf(stage.StatusOf("mlp"), "jobUid").empty());
  }
}

TEST_CASE("a submission whose answer was lost is found in the list, and not repeated") {
  Stage stage;
  stage.Create("mlp");
  stage.api.after = [&](const std::string& call) {
    if (call != "status mlp QUEUED Submitting") return;
    // The coordinator makes the job, and the answer is lost.
    v1::JobStatus& made = *stage.coordinator.jobs.add_jobs();
    made.set_job_uid(5);
    made.set_state("RUNNING");
    made.set_request_id("kubernetes/mlp-uid-1");
    made.set_owner("operator");
  };
  stage.coordinator.submit_error = absl::DeadlineExceededError("no answer");
  CHECK(Only(stage.Round(), "submit").size() == 1);
  CHECK(Only(stage.During(seconds(30)), "submit").empty());
  CHECK(TextOf(stage.StatusOf("mlp"), "jobUid") == "0000000000000005");
}

TEST_CASE("progress is written at most once in each pause, and a change of the state at once") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  std::size_t writes = 0;
  for (int second = 0; second < 30; ++second) {
    v1::JobStatus& job = stage.coordinator.job();
    job.set_steps_done(job.steps_done() + 1);
    writes += Only(stage.After(seconds(1)), "status").size();
  }
  CHECK(writes >= 5);
  CHECK(writes <= 6);
  // The last progress before a pause is written after it, although nothing changes any more.
  const std::uint64_t done = stage.coordinator.job().steps_done();
  stage.During(seconds(6));
  CHECK(IntegerOf(stage.StatusOf("mlp"), "step") == static_cast<std::int64_t>(done));
  stage.coordinator.job().set_state("FAILED");
  CHECK(Only(stage.After(seconds(1)), "status").size() == 1);
}

TEST_CASE("results of evaluations are fetched once for each epoch, and once at the end") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.coordinator.job().set_epoch(1);
  CHECK(Only(stage.During(seconds(10)), "get").size() == 1);
  stage.coordinator.metrics = {{"auc", 0.5}};
  stage.coordinator.job().set_epoch(2);
  CHECK(Only(stage.During(seconds(10)), "get").size() == 1);
  CHECK(TextOf(stage.StatusOf("mlp"), "metric") == "auc=0.5");
  // Found by reading: after a failure at the end the object was idle, and the last results missing.
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.coordinator.metrics = {{"auc", 0.75}};
  stage.coordinator.get_error = absl::UnavailableError("no connection");
  stage.During(seconds(3));
  CHECK(TextOf(stage.StatusOf("mlp"), "metric") == "auc=0.5");
  stage.coordinator.get_error = absl::OkStatus();
  CHECK(Only(stage.During(seconds(20)), "get").size() == 1);
  CHECK(TextOf(stage.StatusOf("mlp"), "metric") == "auc=0.75");
}

TEST_CASE("an answer that refuses the results of a job is not asked for again") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.coordinator.get_error = absl::PermissionDeniedError("not yours");
  stage.coordinator.job().set_state("SUCCEEDED");
  CHECK(Only(stage.During(seconds(20)), "get").size() == 1);
}

TEST_CASE("a deleted object goes after its job, and the cancellation is repeated each 5 s") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.api.Delete("mlp");
  stage.Deliver("mlp");
  CHECK(stage.Round() == Transcript{"cancel 1", "event mlp Cancelling"});
  const Transcript waiting = stage.During(seconds(21));
  CHECK(Only(waiting, "cancel").size() == 4);
  CHECK(Only(waiting, "status").size() == 1);  // "The object is being deleted"
  CHECK(Only(waiting, "finalizers").empty());
  stage.coordinator.job().set_state("CANCELLED");
  const Transcript end = stage.During(seconds(2));
  CHECK(Only(end, "finalizers") == Transcript{"finalizers mlp []"});
  CHECK(Only(end, "cancel").empty());
  CHECK(stage.api.objects.empty());
  stage.Deliver("mlp");
  stage.Round();
  CHECK(stage.metrics.objects.value() == 0);
  CHECK(stage.metrics.cancellations.value() == 5);
}

TEST_CASE("other finalizers of an object stay") {
  Stage stage;
  stage.api.Create("mlp", ValidSpec()).finalizers = {"other/one"};
  stage.Deliver("mlp");
  CHECK(Only(stage.Round(), "finalizers") ==
        Transcript{"finalizers mlp [other/one evergrad.dev/cancel-job]"});
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.During(seconds(2));
  stage.api.Delete("mlp");
  stage.Deliver("mlp");
  CHECK(Only(stage.Round(), "finalizers") == Transcript{"finalizers mlp [other/one]"});
  CHECK(stage.During(seconds(20)).size() <= 20);
}

TEST_CASE("a job that the coordinator has forgotten has an unknown end, and is not made again") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.coordinator.jobs.clear_jobs();
  CHECK(stage.After(seconds(1)) ==
        Transcript{"list", "status mlp UNKNOWN JobSubmitted", "event mlp Unknown"});
  CHECK(Only(stage.During(seconds(60)), "submit").empty());
}

TEST_CASE("a job of another owner with the same request id is not the object's job") {
  Stage stage;
  v1::JobStatus& foreign = *stage.coordinator.jobs.add_jobs();
  foreign.set_job_uid(9);
  foreign.set_state("RUNNING");
  foreign.set_request_id("kubernetes/mlp-uid-1");
  foreign.set_owner("user/eve");
  stage.Create("mlp");
  CHECK(Only(stage.Round(), "submit").size() == 1);
  stage.Round();
  CHECK(TextOf(stage.StatusOf("mlp"), "jobUid") == "0000000000000002");
}

TEST_CASE("an object that is made again under its name gets a job of its own") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.coordinator.job().set_state("SUCCEEDED");
  stage.After(seconds(1));
  stage.Create("mlp");  // the watch has seen only the newer object
  CHECK(Only(stage.Round(), "submit") == Transcript{"submit kubernetes/mlp-uid-2"});
  stage.Round();
  CHECK(TextOf(stage.StatusOf("mlp"), "jobUid") == "0000000000000002");
}

TEST_CASE("a change of the spec is not submitted, and is reported") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.api.Edit("mlp", ValidSpec());
  stage.Deliver("mlp");
  CHECK(stage.Round() == Transcript{"status mlp RUNNING JobSubmitted", "event mlp SpecChanged"});
  CHECK(IntegerOf(stage.StatusOf("mlp"), "submittedGeneration") == 1);
}

TEST_CASE("a new process continues: it submits nothing twice and writes no equal status") {
  Stage stage;
  MakeRunning(&stage, "a");
  MakeRunning(&stage, "b");
  stage.coordinator.job(1).set_state("SUCCEEDED");
  stage.coordinator.metrics = {{"auc", 0.5}};
  stage.During(seconds(6));
  stage.Restart();
  stage.coordinator.get_error = absl::UnavailableError("no connection");
  Transcript calls = stage.During(seconds(3));
  stage.coordinator.get_error = absl::OkStatus();
  const Transcript rest = stage.During(seconds(10));
  calls.insert(calls.end(), rest.begin(), rest.end());
  CHECK(Only(calls, "submit").empty());
  CHECK(Only(calls, "status").empty());
  CHECK(Only(calls, "event").empty());
  CHECK(Only(calls, "finalizers").empty());
}

TEST_CASE("a new process removes no finalizer while a former submission may be on its way") {
  Stage stage;
  stage.coordinator.submit_error = absl::UnavailableError("the process dies");
  stage.Create("mlp");
  stage.Round();
  stage.api.Delete("mlp");
  stage.Restart();
  CHECK(Only(stage.During(seconds(9)), "finalizers").empty());
  // The submission arrives in the last moment, after a list of jobs.
  v1::JobStatus& made = *stage.coordinator.jobs.add_jobs();
  made.set_job_uid(5);
  made.set_state("RUNNING");
  made.set_request_id("kubernetes/mlp-uid-1");
  made.set_owner("operator");
  const Transcript calls = stage.During(seconds(10));
  CHECK(Only(calls, "finalizers").empty());
  CHECK(Only(calls, "cancel").size() >= 2);
}

TEST_CASE("a coordinator that is silent for 5 s is reported once, and its return, too") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.coordinator.list_error = absl::UnavailableError("no route to host");
  CHECK(Only(stage.During(seconds(4)), "status").empty());
  CHECK(stage.readiness.Missing().size() == 1);
  CHECK(Only(stage.During(seconds(60)), "status").size() == 1);
  const auto reachable = [&] {
    return TextOf(FindCondition(stage.StatusOf("mlp"), "CoordinatorReachable"), "status");
  };
  CHECK(reachable() == "False");
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "RUNNING");
  CHECK(stage.metrics.coordinator_reachable.value() == 0);
  // A new process does not claim that the coordinator answers.
  stage.Restart();
  CHECK(Only(stage.During(seconds(20)), "status").empty());
  stage.coordinator.list_error = absl::OkStatus();
  CHECK(Only(stage.During(seconds(5)), "status").size() == 1);
  CHECK(reachable() == "True");
}

// Objects above the limit stayed ignored when places became free.
TEST_CASE("objects above the limit are ignored until there is a place, and the log says so") {
  ControllerOptions options;
  options.objects_max = 2;
  Stage stage(options);
  for (const char* name : {"a", "b", "c", "d"}) stage.Create(name);
  CHECK(Only(stage.Round(), "submit").size() == 2);
  stage.Deliver("c");
  stage.Round();
  CHECK(stage.metrics.objects.value() == 2);
  const std::vector<std::string> log = stage.Log();
  CHECK(std::count(log.begin(), log.end(),
                   "too many TrainingJobs, further ones are ignored: max=2") == 1);
  CHECK(stage.metrics.objects_ignored.value() == 2);
  CHECK(stage.wishes == 0);
  stage.api.objects.erase("a");
  stage.Deliver("a");
  stage.Round();
  CHECK(stage.wishes == 1);
  stage.Deliver("c");
  CHECK(Only(stage.Round(), "submit").size() == 1);
}

TEST_CASE("objects that may have jobs are served first when there are too many") {
  ControllerOptions options;
  options.objects_max = 1;
  Stage stage(options);
  stage.Create("a");
  stage.Create("b");
  stage.api.objects["b"].finalizers = {kFinalizer};
  stage.Deliver("b");
  CHECK(Only(stage.Round(), "submit") == Transcript{"submit kubernetes/b-uid-2"});
}

// A full queue counted as a refusal of the spec, and a refusal by the coordinator was QUEUED.
TEST_CASE("a full queue is a wait, and a refusal that may end makes the object invalid") {
  Stage stage;
  stage.Create("mlp");
  stage.coordinator.submit_error = absl::ResourceExhaustedError("too many jobs queued: limit=64");
  stage.Round();
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "QUEUED");
  const Json& accepted = FindCondition(stage.StatusOf("mlp"), "Accepted");
  CHECK(TextOf(accepted, "reason") == "QueueFull");
  CHECK(TextOf(accepted, "status") == "Unknown");
  CHECK(stage.metrics.refusals.value() == 0);
  stage.coordinator.submit_error = absl::PermissionDeniedError("the folder is not allowed");
  stage.clock.Advance(std::chrono::seconds(3));
  stage.Round();
  CHECK(TextOf(stage.StatusOf("mlp"), "state") == "INVALID");
  CHECK(stage.metrics.refusals.value() == 1);
  CHECK(stage.metrics.objects_invalid.value() == 1);
}

// The job was not named if the object was made again before the operator saw its removal.
TEST_CASE("the log names the job of an object that was replaced under its name") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.api.objects["mlp"].uid = "another";
  stage.Deliver("mlp");
  stage.Round();
  const std::vector<std::string> log = stage.Log();
  CHECK(std::count(log.begin(), log.end(),
                   "an object was removed without its finalizer, its job continues: object=mlp "
                   "job_uid=0000000000000001") == 1);
}

TEST_CASE("the log names the job of an object that was removed by force") {
  Stage stage;
  MakeRunning(&stage, "mlp");
  stage.api.objects.erase("mlp");
  stage.Deliver("mlp");
  stage.Round();
  CHECK(stage.Log().back() ==
        "an object was removed without its finalizer, its job continues: object=mlp "
        "job_uid=0000000000000001");
}

}  // namespace
}  // namespace evergrad::kubernetes
