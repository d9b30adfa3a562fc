#include "kubernetes/reconcile/job_status.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/escape.h"
#include "common/base/ids.h"

namespace evergrad::kubernetes {
namespace {

constexpr std::size_t kMessageCharactersMax = 4000;

Truth TruthOf(bool value) { return value ? Truth::kTrue : Truth::kFalse; }

// Returns "JobSucceeded" for "SUCCEEDED".
std::string ReasonOf(const std::string& state) {
  std::string word = absl::AsciiStrToLower(state);
  if (!word.empty()) word[0] = absl::ascii_toupper(static_cast<unsigned char>(word[0]));
  return absl::StrCat("Job", word);
}

std::string MessageOf(const v1::JobStatus& job) {
  if (job.state() == "FAILED" && !job.first_cause().message().empty())
    return Shortened(absl::StrCat(job.first_cause().origin_text(),
                                  job.first_cause().origin_text().empty() ? "" : ": ",
                                  job.first_cause().message()));
  return Shortened(job.waiting_for());
}

}  // namespace

std::string Shortened(absl::string_view text) { return Quoted(text, kMessageCharactersMax); }

void FillJobFields(const JobObject& object, const Facts& facts, Json* status) {
  const v1::JobStatus& job = *facts.job;
  Json& s = *status;
  s["state"] = job.state();
  s["jobUid"] = JobUidString(JobUid(job.job_uid()));
  s["step"] = job.steps_done();
  s["steps"] = job.steps_total();
  if (job.steps_done() > 0 && std::isfinite(job.loss()))
    s["loss"] = absl::StrFormat("%.4g", job.loss());
  if (!facts.metric.empty()) s["metric"] = Shortened(facts.metric);
  s["workers"] = job.workers_serving();
  std::string message = MessageOf(job);
  if (object.deleting && !HasEnded(job))
    message =
        "The object is being deleted: its job is cancelled, and the object goes once the job "
        "has ended.";
  if (!message.empty()) s["message"] = message;
  if (!job.runs_folder().empty()) s["runsFolder"] = Shortened(job.runs_folder());
}

// A condition always has a message, for people who look at nothing else.
std::vector<Condition> ConditionsOfJob(const v1::JobStatus& job) {
  const std::string& state = job.state();
  const std::string reason = ReasonOf(state);
  const std::string message = MessageOf(job);
  const std::string in_state = absl::StrCat("The job is ", state, ".");
  const std::string or_state = message.empty() ? in_state : message;
  const bool ended = HasEnded(job);
  const bool failed = state == "FAILED";
  return {
      {"Accepted", Truth::kTrue, "JobSubmitted",
       absl::StrCat("The coordinator has accepted the job: job_uid=",
                    JobUidString(JobUid(job.job_uid())))},
      {"Running", TruthOf(state == "RUNNING"), reason, ended ? in_state : or_state},
      {"Finished", TruthOf(ended), ended ? reason : "JobNotFinished", in_state},
      {"Succeeded", TruthOf(state == "SUCCEEDED"), ended ? reason : "JobNotFinished", in_state},
      {"Failed", TruthOf(failed), ended ? reason : "JobNotFinished", failed ? or_state : in_state}};
}

std::vector<Condition> ConditionsOfUnknownJob(const std::string& job_uid) {
  const std::string message = absl::StrCat(
      "The coordinator does not know the job any more, so its result is not known: job_uid=",
      job_uid,
      ". The job was deleted (psctl job delete), or it has ended and the coordinator has forgotten "
      "it for newer jobs (--jobs-kept-max), or the coordinator has lost its journal. The runs "
      "folder has the result of a job that has ended. The object is not submitted again");
  return {{"Accepted", Truth::kTrue, "JobSubmitted", "The coordinator had accepted the job."},
          {"Running", Truth::kFalse, "JobUnknown", message},
          {"Finished", Truth::kTrue, "JobUnknown", message},
          {"Succeeded", Truth::kUnknown, "JobUnknown", message},
          {"Failed", Truth::kUnknown, "JobUnknown", message}};
}

std::vector<Condition> ConditionsWithoutJob(const Condition& accepted) {
  std::vector<Condition> conditions = {accepted};
  for (const char* type : {"Running", "Finished", "Succeeded", "Failed"})
    conditions.push_back({type, Truth::kFalse, "NoJob", "The object has no job yet."});
  return conditions;
}

}  // namespace evergrad::kubernetes
