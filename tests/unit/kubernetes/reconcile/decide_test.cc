// Tests the decisions about one object as tables of situations.
#include "kubernetes/reconcile/decide.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/unit/kubernetes/reconcile/decide_fixture.h"

namespace evergrad::kubernetes {
namespace {

// The conditions of an object without a job, after Accepted and UpToDate.
const std::string kNoJob = " Running-NoJob Finished-NoJob Succeeded-NoJob Failed-NoJob";
const std::string kQueued = "QUEUED g1 Accepted?Submitting UpToDate+SpecSubmitted" + kNoJob;
const std::string kAnswers = " CoordinatorReachable+CoordinatorAnswers";
const std::string kSilent = " CoordinatorReachable-CoordinatorUnreachable";
const std::string kRunning =
    "RUNNING g1 Accepted+JobSubmitted UpToDate+SpecSubmitted Running+JobRunning "
    "Finished-JobNotFinished Succeeded-JobNotFinished Failed-JobNotFinished";

// Returns an object whose status was written without a job.
JobObject Recorded() {
  JobObject object = MakeObject();
  object.status = StatusAfter(object, MakeFacts());
  return object;
}

// Returns an object whose status was written with its job in this state.
JobObject WithJob(const std::string& state) {
  JobObject object = Recorded();
  const v1::JobStatus job = MakeJob(state);
  Facts facts = MakeFacts();
  facts.job = &job;
  object.status = StatusAfter(object, facts);
  return object;
}

TEST_CASE("a new object gets the finalizer, then its record, and is submitted after both") {
  JobObject object = MakeObject();
  object.finalizers = {"other/one"};
  CHECK(Shown(Decide(object, MakeFacts())) == "add finalizer | none");
  object.finalizers.emplace_back(kFinalizer);
  CHECK(Shown(Decide(object, MakeFacts())) == "none | " + kQueued + kAnswers);
  object.status = StatusAfter(object, MakeFacts());
  CHECK(Shown(Decide(object, MakeFacts())) == "submit | " + kQueued + kAnswers);
  CHECK(Decide(object, MakeFacts()).status == object.status);
}

TEST_CASE("nothing is submitted before the jobs are known, or before the next try is due") {
  Facts facts = MakeFacts();
  facts.jobs_known = false;
  CHECK(Shown(Decide(Recorded(), facts)) == "none | " + kQueued + kAnswers);
  facts = MakeFacts();
  facts.may_submit = false;
  CHECK(Shown(Decide(Recorded(), facts)) == "none | " + kQueued + kAnswers);
}

TEST_CASE("a coordinator that does not answer is reported, and no more") {
  Facts facts = MakeFacts();
  facts.jobs_known = false;
  facts.trouble = "no route\nto host";
  const Decision queued = Decide(Recorded(), facts);
  CHECK(Shown(queued) == "none | QUEUED g1 Accepted?CoordinatorUnreachable UpToDate+SpecSubmitted" +
                             kNoJob + kSilent);
  CHECK(queued.status["message"] == "no route\\nto host");
  const v1::JobStatus job = MakeJob("RUNNING");
  facts.job = &job;  // of the last list
  CHECK(Shown(Decide(WithJob("RUNNING"), facts)) == "none | " + kRunning + kSilent);
  facts.job = nullptr;  // of a process that has seen no list yet
  CHECK(Shown(Decide(WithJob("RUNNING"), facts)) == "none | " + kRunning + kSilent);
}

TEST_CASE("a process that has not asked the coordinator yet changes no status of a job") {
  Facts facts = MakeFacts();
  facts.jobs_known = false;
  facts.trouble = "no route";
  JobObject object = WithJob("RUNNING");
  object.status = StatusAfter(object, facts);
  facts.trouble = "";
  CHECK(Decide(object, facts).status == object.status);  // CoordinatorReachable stays false
  facts.jobs_known = true;
  const v1::JobStatus job = MakeJob("RUNNING");
  facts.job = &job;
  CHECK(Shown(Decide(object, facts)) == "none | " + kRunning + kAnswers);
}

TEST_CASE("a refusal that is final makes the object invalid, also without a finalizer") {
  Facts facts = MakeFacts();
  facts.refusal = Refusal{"InvalidSpec", "spec.model: expected a mapping", false};
  const std::string shown =
      "none | INVALID g0 Accepted-InvalidSpec UpToDate+SpecSubmitted" + kNoJob + kAnswers;
  CHECK(Shown(Decide(Recorded(), facts)) == shown);
  JobObject fresh = MakeObject();
  fresh.finalizers.clear();
  const Decision decision = Decide(fresh, facts);
  CHECK(Shown(decision) == shown);
  CHECK(decision.status["message"] == "spec.model: expected a mapping");
  fresh.status = decision.status;
  CHECK(Decide(fresh, facts).status == decision.status);
}

TEST_CASE("a refusal that may end leaves the object queued, and it is submitted again when due") {
  Facts facts = MakeFacts();
  facts.refusal = Refusal{"NameInUse", "the name belongs to another job", true};
  const std::string status =
      "QUEUED g1 Accepted-NameInUse UpToDate+SpecSubmitted" + kNoJob + kAnswers;
  JobObject object = Recorded();
  CHECK(Shown(Decide(object, facts)) == "submit | " + status);
  facts.may_submit = false;
  CHECK(Shown(Decide(object, facts)) == "none | " + status);
  CHECK(Decide(object, facts).status["message"] == "the name belongs to another job");
}

TEST_CASE("the status follows the job through its states") {
  const struct {
    const char *state, *conditions;
  } cases[] = {
      {"QUEUED",
       "Running-JobQueued Finished-JobNotFinished Succeeded-JobNotFinished "
       "Failed-JobNotFinished"},
      {"STARTING",
       "Running-JobStarting Finished-JobNotFinished Succeeded-JobNotFinished "
       "Failed-JobNotFinished"},
      {"RUNNING",
       "Running+JobRunning Finished-JobNotFinished Succeeded-JobNotFinished "
       "Failed-JobNotFinished"},
      {"SUCCEEDED",
       "Running-JobSucceeded Finished+JobSucceeded Succeeded+JobSucceeded "
       "Failed-JobSucceeded"},
      {"FAILED", "Running-JobFailed Finished+JobFailed Succeeded-JobFailed Failed+JobFailed"},
      {"CANCELLED",
       "Running-JobCancelled Finished+JobCancelled Succeeded-JobCancelled "
       "Failed-JobCancelled"}};
  for (const auto& one : cases) {
    const v1::JobStatus job = MakeJob(one.state);
    Facts facts = MakeFacts();
    facts.job = &job;
    const std::string shown = "none | " + std::string(one.state) +
                              " g1 Accepted+JobSubmitted UpToDate+SpecSubmitted " + one.conditions +
                              kAnswers;
    CHECK(Shown(Decide(Recorded(), facts)) == shown);
    // The same holds for an object that has lost its finalizer, which is added again if necessary.
    JobObject bare = Recorded();
    bare.finalizers.clear();
    CHECK(Shown(Decide(bare, facts)) ==
          (HasEnded(job) ? shown : "add finalizer" + shown.substr(4)));
  }
}

TEST_CASE("the status of a job has its progress, and only finite losses") {
  v1::JobStatus job = MakeJob("RUNNING");
  job.set_steps_done(7);
  job.set_steps_total(100);
  job.set_loss(0.123456);
  job.set_workers_serving(3);
  job.set_runs_folder("/runs/mlp");
  job.set_waiting_for("waits for\na worker");
  Facts facts = MakeFacts();
  facts.job = &job;
  facts.metric = "accuracy=0.5";
  Json status = Decide(Recorded(), facts).status;
  status.erase("conditions");
  CHECK(status == Json{{"state", "RUNNING"},
                       {"jobUid", "0000000000000abc"},
                       {"step", 7},
                       {"steps", 100},
                       {"loss", "0.1235"},
                       {"metric", "accuracy=0.5"},
                       {"workers", 3},
                       {"message", "waits for\\na worker"},
                       {"runsFolder", "/runs/mlp"},
                       {"submittedGeneration", 1},
                       {"observedGeneration", 1}});
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    job.set_loss(loss);
    CHECK_FALSE(Decide(Recorded(), facts).status.contains("loss"));
  }
  job.set_loss(1);
  job.set_steps_done(0);
  facts.metric = "";
  job.set_waiting_for("");
  status = Decide(Recorded(), facts).status;
  for (const char* absent : {"loss", "metric", "message"}) CHECK_FALSE(status.contains(absent));
}

TEST_CASE("a job that has failed gives its first cause, limited and escaped") {
  v1::JobStatus job = MakeJob("FAILED");
  job.mutable_first_cause()->set_origin_text("worker/0");
  job.mutable_first_cause()->set_message("no file\nx" + std::string(10'000, 'x'));
  Facts facts = MakeFacts();
  facts.job = &job;
  const Json status = Decide(Recorded(), facts).status;
  const std::string message = TextOf(status, "message");
  CHECK_THAT(message, Catch::StartsWith("worker/0: no file\\nxxx"));
  CHECK(message.size() < 4100);
  CHECK(TextOf(FindCondition(status, "Failed"), "message") == message);
}

TEST_CASE("a spec that is changed after the submission is reported, and not submitted") {
  const v1::JobStatus job = MakeJob("RUNNING");
  Facts facts = MakeFacts();
  facts.job = &job;
  const std::string changed =
      absl::StrReplaceAll(kRunning, {{"UpToDate+SpecSubmitted", "UpToDate-SpecChanged"}});
  JobObject object = WithJob("RUNNING");
  object.generation = 2;
  CHECK(Shown(Decide(object, facts)) == "none | " + changed + kAnswers);
  // Also if the change came before the first status of the job.
  JobObject early = Recorded();
  early.generation = 2;
  CHECK(Shown(Decide(early, facts)) == "none | " + changed + kAnswers);
  // A status that somebody has removed names no generation.
  early.status = Json();
  CHECK(Shown(Decide(early, facts)) ==
        "none | " + absl::StrReplaceAll(kRunning, {{" g1 ", " g2 "}}) + kAnswers);
}

TEST_CASE("a spec that is changed before the submission is recorded anew, and then submitted") {
  JobObject object = Recorded();
  object.generation = 2;
  const std::string status = absl::StrReplaceAll(kQueued, {{" g1 ", " g2 "}}) + kAnswers;
  CHECK(Shown(Decide(object, MakeFacts())) == "none | " + status);
  object.status = StatusAfter(object, MakeFacts());
  CHECK(Shown(Decide(object, MakeFacts())) == "submit | " + status);
}

// Found by reading: the record was overwritten while a job of the former generation
// could exist, and the object then claimed that this job had the new spec.
TEST_CASE("the record of a generation stays while a job of that generation may exist") {
  JobObject object = Recorded();
  object.generation = 2;
  for (const bool jobs_known : {false, true}) {
    for (const bool settled : {false, true}) {
      if (jobs_known && settled) continue;
      Facts facts = MakeFacts();
      facts.jobs_known = jobs_known;
      facts.settled = settled;
      CHECK(Shown(Decide(object, facts)) == "none | " + kQueued + kAnswers);
      facts.refusal = Refusal{"InvalidSpec", "wrong", false};
      CHECK(Shown(Decide(object, facts)) == "none | " + kQueued + kAnswers);
    }
  }
}

TEST_CASE("a job that the coordinator has forgotten is reported once, and not submitted again") {
  const std::string unknown =
      "UNKNOWN g1 Accepted+JobSubmitted UpToDate+SpecSubmitted Running-JobUnknown "
      "Finished+JobUnknown Succeeded?JobUnknown Failed?JobUnknown" +
      kAnswers;
  JobObject object = WithJob("RUNNING");
  const Decision decision = Decide(object, MakeFacts());
  CHECK(Shown(decision) == "none | " + unknown);
  CHECK(decision.status["jobUid"] == "0000000000000abc");
  CHECK(decision.status["workers"] == 0);
  CHECK_THAT(
      TextOf(decision.status, "message"),
      Catch::Contains(
          "does not know the job any more, so its result is not known: job_uid=0000000000000abc"));
  object.status = decision.status;
  CHECK(Decide(object, MakeFacts()).status == decision.status);
  CHECK(Decide(object, MakeFacts()).step == Step::kNone);
}

TEST_CASE("the result of a job that has ended stays after the coordinator has forgotten the job") {
  for (const char* state : {"SUCCEEDED", "FAILED", "CANCELLED"}) {
    const JobObject object = WithJob(state);
    for (const bool jobs_known : {false, true}) {
      Facts facts = MakeFacts();
      facts.jobs_known = jobs_known;
      const Decision decision = Decide(object, facts);
      CHECK(decision.step == Step::kNone);
      CHECK(decision.status == object.status);
    }
  }
}

// kubectl wait ignores conditions of an older generation, and UpToDate stayed True.
TEST_CASE("an edit after the end is shown, also if the coordinator has forgotten the job") {
  JobObject object = WithJob("SUCCEEDED");
  object.generation = 2;
  Facts facts = MakeFacts();
  const Json status = Decide(object, facts).status;
  CHECK(TextOf(status, "state") == "SUCCEEDED");
  CHECK(IntegerOf(status, "submittedGeneration") == 1);
  CHECK(IntegerOf(status, "observedGeneration") == 2);
  CHECK(TextOf(FindCondition(status, "UpToDate"), "reason") == "SpecChanged");
  for (const Json& condition : Member(status, "conditions"))
    CHECK(IntegerOf(condition, "observedGeneration") == 2);
  object.status = status;
  CHECK(Decide(object, facts).status == status);
}

// Each outage of the coordinator changed the status of every object twice.
TEST_CASE("an outage of the coordinator does not change an object whose job has ended") {
  const JobObject object = WithJob("SUCCEEDED");
  Facts facts = MakeFacts();
  facts.trouble = "no route";
  facts.jobs_known = false;
  CHECK(Decide(object, facts).status == object.status);
  const v1::JobStatus job = MakeJob("SUCCEEDED");
  facts.job = &job;
  CHECK(TextOf(FindCondition(Decide(object, facts).status, "CoordinatorReachable"), "status") ==
        "True");
}

TEST_CASE("each deleted object goes once it is certain that its job has ended") {
  struct Situation {
    const char* name;
    JobObject object;
    const char* job;  // its state; "" for no job
    bool jobs_known = true, settled = true;
    const char* trouble = "";
    const char* step;
  };
  JobObject bare = WithJob("RUNNING");
  bare.finalizers = {"other/one"};
  const std::vector<Situation> situations = {
      {"without the finalizer", bare, "RUNNING", true, true, "", "none"},
      {"without the finalizer and a job", bare, "", true, true, "", "none"},
      {"running", WithJob("RUNNING"), "RUNNING", true, true, "", "cancel"},
      {"running, in an old list", WithJob("RUNNING"), "RUNNING", false, true, "", "cancel"},
      {"running, of an object without a status", MakeObject(), "RUNNING", true, true, "", "cancel"},
      {"running, and the coordinator is silent", WithJob("RUNNING"), "RUNNING", false, true,
       "no route", "none"},
      {"ended", WithJob("RUNNING"), "CANCELLED", true, true, "", "remove finalizer"},
      {"ended, in an old list", WithJob("RUNNING"), "SUCCEEDED", false, true, "no route",
       "remove finalizer"},
      {"never submitted", Recorded(), "", true, true, "", "remove finalizer"},
      {"never recorded", MakeObject(), "", true, true, "", "remove finalizer"},
      {"perhaps submitted", Recorded(), "", false, true, "", "none"},
      {"perhaps submitted, silent", Recorded(), "", false, true, "no route", "none"},
      {"perhaps submitted by a former process", Recorded(), "", true, false, "", "none"},
      {"ended before, and forgotten", WithJob("FAILED"), "", false, false, "no route",
       "remove finalizer"},
      {"running before, and forgotten", WithJob("RUNNING"), "", true, true, "", "remove finalizer"},
      {"running before, and the jobs are not known", WithJob("RUNNING"), "", false, true, "",
       "none"},
  };
  for (const Situation& one : situations) {
    CAPTURE(one.name);
    JobObject object = one.object;
    object.deleting = true;
    const v1::JobStatus job = MakeJob(one.job);
    Facts facts = MakeFacts();
    facts.jobs_known = one.jobs_known;
    facts.settled = one.settled;
    facts.trouble = one.trouble;
    if (*one.job != '\0') facts.job = &job;
    const std::string shown = Shown(Decide(object, facts));
    CHECK(shown.substr(0, shown.find(" | ")) == one.step);
  }
}

TEST_CASE("a deleted object says that it waits for its job") {
  JobObject object = WithJob("RUNNING");
  object.deleting = true;
  const v1::JobStatus job = MakeJob("RUNNING");
  Facts facts = MakeFacts();
  facts.job = &job;
  CHECK_THAT(TextOf(Decide(object, facts).status, "message"),
             Catch::StartsWith("The object is being deleted"));
}

TEST_CASE("a decision is stable: once its status is written, the same facts give the same status") {
  const v1::JobStatus running = MakeJob("RUNNING"), ended = MakeJob("SUCCEEDED");
  for (const v1::JobStatus* job : {(const v1::JobStatus*)nullptr, &running, &ended}) {
    for (int bits = 0; bits < 64; ++bits) {
      CAPTURE(bits);
      Facts facts = MakeFacts();
      facts.job = job;
      facts.jobs_known = (bits & 1) != 0;
      facts.settled = (bits & 2) != 0;
      if ((bits & 4) != 0) facts.trouble = "no route";
      if ((bits & 8) != 0) facts.refusal = Refusal{"R", "m", (bits & 16) != 0};
      for (JobObject object : {MakeObject(), Recorded(), WithJob("RUNNING"), WithJob("FAILED")}) {
        object.deleting = (bits & 32) != 0;
        object.status = StatusAfter(object, facts);
        facts.now = "2027-01-01T00:00:00Z";
        CHECK(Decide(object, facts).status == object.status);
        facts.now = kTestNow;
      }
    }
  }
}

TEST_CASE("progress is not urgent, and everything that users wait for is") {
  v1::JobStatus job = MakeJob("RUNNING");
  Facts facts = MakeFacts();
  facts.job = &job;
  const Json before = Decide(Recorded(), facts).status;
  job.set_steps_done(10);
  job.set_loss(1);
  job.set_workers_serving(2);
  job.set_waiting_for("waits");
  facts.metric = "auc=1";
  CHECK_FALSE(IsUrgent(before, Decide(Recorded(), facts).status));
  CHECK_FALSE(IsUrgent(before, before));
  CHECK(IsUrgent(Json(), before));
  job.set_state("SUCCEEDED");
  CHECK(IsUrgent(before, Decide(Recorded(), facts).status));
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"state", "X"}, {"jobUid", "X"}, {"submittedGeneration", 2}, {"conditions", nullptr}}) {
    Json after = before;
    after[key] = value;
    CHECK(IsUrgent(before, after));
  }
  facts.trouble = "no route";
  facts.jobs_known = false;
  job = MakeJob("RUNNING");
  CHECK(IsUrgent(before, Decide(Recorded(), facts).status));
}

std::string Reported(const Json& before, const Json& after) {
  std::string text;
  for (const struct Report& report : ReportsOf(before, after))
    text += (text.empty() ? "" : " ") + report.reason + (report.warning ? "!" : "");
  return text;
}

TEST_CASE("each change of a status that people wait for is reported once") {
  const Json queued = Recorded().status, running = WithJob("RUNNING").status;
  CHECK(Reported(Json(), queued) == "");
  CHECK(Reported(queued, WithJob("QUEUED").status) == "Submitted");
  CHECK(Reported(queued, running) == "Submitted Running");
  CHECK(Reported(running, running) == "");
  CHECK(Reported(running, WithJob("SUCCEEDED").status) == "Succeeded");
  CHECK(Reported(running, WithJob("FAILED").status) == "Failed!");
  CHECK(Reported(running, WithJob("CANCELLED").status) == "Cancelled!");
  CHECK(Reported(queued, WithJob("SUCCEEDED").status) == "Submitted Succeeded");
  CHECK(Reported(running, StatusAfter(WithJob("RUNNING"), MakeFacts())) == "Unknown!");

  Facts refused = MakeFacts();
  refused.refusal = Refusal{"NameInUse", "m", true};
  const Json in_use = StatusAfter(Recorded(), refused);
  CHECK(Reported(queued, in_use) == "Refused!");
  CHECK(Reported(in_use, in_use) == "");
  CHECK(Reported(in_use, running) == "Submitted Running");
  refused.refusal = Refusal{"InvalidSpec", "m", false};
  CHECK(Reported(in_use, StatusAfter(Recorded(), refused)) == "Refused!");

  JobObject changed = WithJob("RUNNING");
  changed.generation = 2;
  const v1::JobStatus job = MakeJob("RUNNING");
  Facts facts = MakeFacts();
  facts.job = &job;
  CHECK(Reported(running, StatusAfter(changed, facts)) == "SpecChanged!");
}

TEST_CASE("only the three last states have ended, and a request id contains the uid") {
  for (const char* state : {"SUCCEEDED", "FAILED", "CANCELLED"}) CHECK(HasEnded(MakeJob(state)));
  for (const char* state : {"QUEUED", "STARTING", "RUNNING", "", "OTHER", "succeeded"})
    CHECK_FALSE(HasEnded(MakeJob(state)));
  CHECK(RequestId(MakeObject()) == "kubernetes/u-1");
}

}  // namespace
}  // namespace evergrad::kubernetes
