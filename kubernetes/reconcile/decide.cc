#include "kubernetes/reconcile/decide.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kubernetes/reconcile/conditions.h"
#include "kubernetes/reconcile/job_status.h"

namespace evergrad::kubernetes {
namespace {

bool WasAccepted(const Json& status) { return !TextOf(status, "jobUid").empty(); }

// Returns whether the job of the object has ended, or is unknown, for all that the status says.
bool IsOver(const Json& status) {
  return TextOf(FindCondition(status, "Finished"), "status") == "True";
}

// The generation whose spec the operator has submitted, or is about to submit; 0 for none.
std::int64_t SubmittedGeneration(const JobObject& object) {
  return IntegerOf(object.status, "submittedGeneration");
}

Condition Reachable(const Facts& facts) {
  return facts.trouble.empty() ? Condition{"CoordinatorReachable", Truth::kTrue,
                                           "CoordinatorAnswers", "The coordinator answers."}
                               : Condition{"CoordinatorReachable", Truth::kFalse,
                                           "CoordinatorUnreachable", Shortened(facts.trouble)};
}

Condition UpToDate(const JobObject& object, std::int64_t submitted) {
  // The generation also rises when an object is deleted, so it says nothing about the spec then.
  const Json& before = FindCondition(object.status, "UpToDate");
  if (object.deleting && !before.is_null()) return ReadCondition(before);
  if (submitted == object.generation)
    return {"UpToDate", Truth::kTrue, "SpecSubmitted", "The job has the spec of the object."};
  return {"UpToDate", Truth::kFalse, "SpecChanged",
          absl::StrCat("The spec was changed after the job was submitted: submitted_generation=",
                       submitted, " generation=", object.generation,
                       ". A submitted job does not change. Delete the object and create it again "
                       "to train with the new spec")};
}

Condition NotAccepted(const Facts& facts) {
  if (facts.refusal)
    return {"Accepted", facts.refusal->reason == kQueueFull ? Truth::kUnknown : Truth::kFalse,
            facts.refusal->reason, Shortened(facts.refusal->message)};
  if (!facts.trouble.empty())
    return {"Accepted", Truth::kUnknown, "CoordinatorUnreachable", Shortened(facts.trouble)};
  return {"Accepted", Truth::kUnknown, "Submitting", "The job is being submitted."};
}

// Writes `conditions`, and the two conditions that every object has. An outage of the coordinator
// does not concern an object whose job has ended, so such an object keeps its condition. Otherwise
// each outage would change all objects.
void SetConditions(const JobObject& object, const Facts& facts, std::vector<Condition> conditions,
                   std::int64_t submitted, Json* status) {
  const bool over = std::any_of(conditions.begin(), conditions.end(), [](const Condition& one) {
    return one.type == "Finished" && one.truth == Truth::kTrue;
  });
  conditions.insert(conditions.begin() + 1, UpToDate(object, submitted));
  const Json& reachable = FindCondition(object.status, "CoordinatorReachable");
  const bool keep = over && !facts.trouble.empty() && !reachable.is_null();
  conditions.push_back(keep ? ReadCondition(reachable) : Reachable(facts));
  (*status)["submittedGeneration"] = submitted;
  (*status)["observedGeneration"] = object.generation;
  (*status)["conditions"] = ConditionsToJson(conditions, Member(object.status, "conditions"),
                                             object.generation, facts.now);
}

Json StatusOfJob(const JobObject& object, const Facts& facts) {
  Json status = Json::object();
  FillJobFields(object, facts, &status);
  const std::int64_t recorded = SubmittedGeneration(object);
  SetConditions(object, facts, ConditionsOfJob(*facts.job),
                recorded == 0 ? object.generation : recorded, &status);
  return status;
}

Json StatusOfUnknownJob(const JobObject& object, const Facts& facts) {
  Json status = object.status;
  status["state"] = "UNKNOWN";
  status["workers"] = 0;
  const std::vector<Condition> conditions =
      ConditionsOfUnknownJob(Shortened(TextOf(object.status, "jobUid")));
  status["message"] = conditions.back().message;
  SetConditions(object, facts, conditions, SubmittedGeneration(object), &status);
  return status;
}

// Returns the status of an object whose job has ended and is no longer listed: the result stays.
Json StatusOfEndedJob(const JobObject& object, const Facts& facts) {
  std::vector<Condition> kept;
  for (const Json& one : Member(object.status, "conditions")) {
    Condition condition = ReadCondition(one);
    if (condition.type != "UpToDate" && condition.type != "CoordinatorReachable")
      kept.push_back(std::move(condition));
  }
  Json status = object.status;
  SetConditions(object, facts, std::move(kept), SubmittedGeneration(object), &status);
  return status;
}

Json StatusWithoutJob(const JobObject& object, const Facts& facts) {
  Json status = Json::object();
  const Condition accepted = NotAccepted(facts);
  const bool wrong = accepted.reason == kInvalidSpec;
  status["state"] = wrong || accepted.reason == kRefused ? "INVALID" : "QUEUED";
  if (accepted.reason != "Submitting") status["message"] = accepted.message;
  SetConditions(object, facts, ConditionsWithoutJob(accepted), object.generation, &status);
  if (wrong) status.erase("submittedGeneration");
  return status;
}

// Returns the present status, with only the condition CoordinatorReachable brought up to date.
Json StatusWithTrouble(const JobObject& object, const Facts& facts) {
  Json status = object.status;
  const Json& conditions = Member(object.status, "conditions");
  const Condition reachable = Reachable(facts);
  // Without an answer and without trouble nothing is known about the coordinator yet.
  const bool known = facts.jobs_known || !facts.trouble.empty();
  if (!conditions.is_array() || !known) return status;
  Json changed = Json::array();
  for (const Json& one : conditions)
    changed.push_back(
        TextOf(one, "type") == reachable.type
            ? ConditionsToJson({reachable}, conditions, object.generation, facts.now)[0]
            : one);
  status["conditions"] = std::move(changed);
  return status;
}

Decision DecideDeletion(const JobObject& object, const Facts& facts) {
  if (!object.HasFinalizer(kFinalizer)) return {Step::kNone, object.status};
  if (facts.job != nullptr) {
    // A job that has ended stays ended, so an old list is good enough.
    if (HasEnded(*facts.job)) return {Step::kRemoveFinalizer, object.status};
    return {facts.trouble.empty() ? Step::kCancel : Step::kNone, StatusOfJob(object, facts)};
  }
  if (WasAccepted(object.status) && IsOver(object.status))
    return {Step::kRemoveFinalizer, object.status};
  if (!facts.jobs_known || !facts.settled) return {Step::kNone, StatusWithTrouble(object, facts)};
  return {Step::kRemoveFinalizer, object.status};
}

}  // namespace

std::string RequestId(const JobObject& object) { return absl::StrCat("kubernetes/", object.uid); }

bool HasEnded(const v1::JobStatus& job) {
  return job.state() == "SUCCEEDED" || job.state() == "FAILED" || job.state() == "CANCELLED";
}

Decision Decide(const JobObject& object, const Facts& facts) {
  if (object.deleting) return DecideDeletion(object, facts);
  if (facts.job != nullptr) {
    const bool needs_finalizer = !HasEnded(*facts.job) && !object.HasFinalizer(kFinalizer);
    return {needs_finalizer ? Step::kAddFinalizer : Step::kNone, StatusOfJob(object, facts)};
  }
  if (WasAccepted(object.status)) {
    if (IsOver(object.status)) return {Step::kNone, StatusOfEndedJob(object, facts)};
    if (!facts.jobs_known) return {Step::kNone, StatusWithTrouble(object, facts)};
    return {Step::kNone, StatusOfUnknownJob(object, facts)};
  }
  // Another generation was recorded, and its job may exist: it may be missing in the newest list,
  // or its submission may be on its way. Then the record must stay.
  const std::int64_t before = SubmittedGeneration(object);
  if (before != 0 && before != object.generation && (!facts.jobs_known || !facts.settled))
    return {Step::kNone, StatusWithTrouble(object, facts)};
  if (facts.refusal && !facts.refusal->again) return {Step::kNone, StatusWithoutJob(object, facts)};
  if (!object.HasFinalizer(kFinalizer)) return {Step::kAddFinalizer, object.status};
  Decision decision{Step::kNone, StatusWithoutJob(object, facts)};
  if (before == object.generation && facts.jobs_known && facts.may_submit)
    decision.step = Step::kSubmit;
  return decision;
}

bool IsUrgent(const Json& before, const Json& after) {
  for (const char* key : {"state", "jobUid"})
    if (TextOf(before, key) != TextOf(after, key)) return true;
  for (const char* key : {"submittedGeneration", "observedGeneration"})
    if (IntegerOf(before, key) != IntegerOf(after, key)) return true;
  return !SameConditions(before, after);
}

std::vector<Report> ReportsOf(const Json& before, const Json& after) {
  std::vector<Report> reports;
  const auto became = [&](const char* type, const char* truth) -> const Json* {
    const Json& now = FindCondition(after, type);
    if (TextOf(now, "status") != truth) return nullptr;
    const Json& old = FindCondition(before, type);
    return TextOf(old, "status") == truth && TextOf(old, "reason") == TextOf(now, "reason")
               ? nullptr
               : &now;
  };
  if (const Json* one = became("Accepted", "True"))
    reports.push_back({"Submitted", TextOf(*one, "message")});
  if (const Json* one = became("Accepted", "False"))
    reports.push_back({"Refused", TextOf(*one, "message"), true, TextOf(*one, "reason")});
  if (became("Running", "True") != nullptr) reports.push_back({"Running", "The job is running."});
  if (const Json* one = became("UpToDate", "False"))
    reports.push_back({"SpecChanged", TextOf(*one, "message"), true});
  if (became("Finished", "True") != nullptr) {
    const std::string state = TextOf(after, "state");
    if (state == "SUCCEEDED")
      reports.push_back({"Succeeded", "The job has succeeded."});
    else if (state == "CANCELLED")
      reports.push_back({"Cancelled", "The job was cancelled.", true});
    else if (state == "FAILED")
      reports.push_back({"Failed", TextOf(FindCondition(after, "Failed"), "message"), true});
    else
      reports.push_back({"Unknown", TextOf(after, "message"), true});
  }
  return reports;
}

}  // namespace evergrad::kubernetes
