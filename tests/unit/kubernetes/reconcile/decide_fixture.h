// Objects, facts and jobs of the tests of decisions, and decisions as one line of text.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "kubernetes/reconcile/conditions.h"
#include "kubernetes/reconcile/decide.h"

namespace evergrad::kubernetes {

inline constexpr char kTestNow[] = "2026-11-27T10:00:00Z";

// Returns an object of generation 1 with the finalizer, and without a status.
inline JobObject MakeObject() {
  JobObject object;
  object.name = "mlp";
  object.uid = "u-1";
  object.resource_version = "1";
  object.generation = 1;
  object.finalizers = {kFinalizer};
  return object;
}

// Returns facts of a coordinator that answers and does not know the object.
inline Facts MakeFacts() {
  Facts facts;
  facts.jobs_known = true;
  facts.now = kTestNow;
  return facts;
}

inline v1::JobStatus MakeJob(const std::string& state) {
  v1::JobStatus job;
  job.set_job_uid(0xabc);
  job.set_name("mlp");
  job.set_state(state);
  job.set_request_id("kubernetes/u-1");
  return job;
}

// Returns the status that the object has once this decision has been written.
inline Json StatusAfter(const JobObject& object, const Facts& facts) {
  return Decide(object, facts).status;
}

inline std::string ShownStatus(const Json& status) {
  if (status.is_null()) return "none";
  std::string text =
      absl::StrCat(TextOf(status, "state"), " g", IntegerOf(status, "submittedGeneration"));
  for (const Json& one : Member(status, "conditions")) {
    const std::string truth = TextOf(one, "status");
    absl::StrAppend(&text, " ", TextOf(one, "type"),
                    truth == "True"    ? "+"
                    : truth == "False" ? "-"
                                       : "?",
                    TextOf(one, "reason"));
  }
  return text;
}

// Returns "submit | QUEUED g1 Accepted?Submitting …".
inline std::string Shown(const Decision& decision) {
  static const char* const kSteps[] = {"none", "add finalizer", "remove finalizer", "submit",
                                       "cancel"};
  return absl::StrCat(kSteps[static_cast<int>(decision.step)], " | ", ShownStatus(decision.status));
}

}  // namespace evergrad::kubernetes
