#include "kubernetes/controller/controller.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "kubernetes/controller/object_watch.h"
#include "kubernetes/reconcile/conditions.h"
#include "kubernetes/reconcile/job_status.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kStepsAtOnce = 6;  // an object needs at most 4 steps until its job runs
constexpr std::size_t kEventNameMax = 200;
constexpr seconds kCancelEvery(5);
constexpr milliseconds kQueuePause(2000);
constexpr std::uint64_t kEpochOfEnd = ~0ull;  // Held::metric_epoch once the job has ended

// Returns whether the coordinator may accept the same submission later.
bool MaySucceedLater(const absl::Status& status) {
  return !absl::IsInvalidArgument(status) &&
         !(absl::IsFailedPrecondition(status) && BlameOf(status) == Blame::kUser);
}

// Returns "accuracy=0.8712, auc=0.9".
std::string MetricText(const v1::EpochRow& row) {
  std::string text;
  const auto add = [&](const std::string& name, double value) {
    if (std::isfinite(value))
      absl::StrAppendFormat(&text, "%s%s=%.4g", text.empty() ? "" : ", ", name, value);
  };
  if (row.eval_accuracy() != 0) add("accuracy", row.eval_accuracy());
  for (const auto& [name, value] :
       std::map<std::string, double>(row.metrics().begin(), row.metrics().end()))
    if (name != "accuracy" && name != "loss") add(name, value);
  return text;
}

// The name of an Event is the same at every try, so a repeat makes no second Event.
std::string EventName(const JobObject& object, const std::string& reason) {
  std::string name = object.name.substr(0, kEventNameMax);
  // Each part of a name must end with a letter or a digit.
  while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
  return absl::StrCat(name, ".", object.uid.substr(0, 8), ".", object.generation, ".",
                      absl::AsciiStrToLower(reason));
}

// Returns an Event of core/v1.
Json EventOf(const JobObject& object, const struct Report& report, const std::string& name_space,
             const std::string& now) {
  return {{"apiVersion", "v1"},
          {"kind", "Event"},
          {"metadata",
           {{"name", EventName(object, report.key.empty() ? report.reason : report.key)},
            {"namespace", name_space}}},
          {"involvedObject",
           {{"apiVersion", "evergrad.dev/v1alpha1"},
            {"kind", "TrainingJob"},
            {"name", object.name},
            {"namespace", name_space},
            {"uid", object.uid},
            {"resourceVersion", object.resource_version}}},
          {"reason", report.reason},
          {"message", report.message.substr(0, 1000)},
          {"type", report.warning ? "Warning" : "Normal"},
          {"source", {{"component", "evergrad-operator"}}},
          {"firstTimestamp", now},
          {"lastTimestamp", now},
          {"count", 1}};
}

}  // namespace

Controller::Controller(ControllerOptions options, Parts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      started_(parts_.clock->Now()),
      table_(options_.objects_max, {&jobs_, parts_.logger, parts_.metrics, parts_.wish_for_list}) {}

MonoTime Controller::Round(ObjectFeed::Changes changes) {
  table_.Take(std::move(changes));
  if (parts_.clock->Now() >= next_poll_) PollJobs();
  // An object whose requests always fail must not take the turn of the others after each pause, and
  // many objects must not delay the news of the others.
  std::map<std::string, Held>& objects = table_.objects();
  auto next = objects.upper_bound(begin_after_);
  std::string handled;
  for (std::size_t i = 0; i < objects.size(); ++i, ++next) {
    if (i > 0 && parts_.clock->Now() >= round_ends_) {
      begin_after_ = handled;
      break;
    }
    if (next == objects.end()) next = objects.begin();
    handled = next->first;
    Handle(&next->second);
  }
  table_.Count();
  return next_poll_;
}

void Controller::PollJobs() {
  const MonoTime asked = parts_.clock->Now();
  absl::StatusOr<v1::ListJobsResponse> list = parts_.coordinator->ListJobs();
  const MonoTime now = parts_.clock->Now();
  next_poll_ = round_ends_ = now + options_.poll;
  const bool was_reachable = jobs_.reachable();
  if (list.ok()) {
    coordinator_silent_ = false;
    jobs_.Take(*list, options_.owner, asked);
    if (!was_reachable) {
      parts_.logger->Info("the coordinator answers");
      table_.ForgetIdleness();
    }
    parts_.ready.Meet();
  } else {
    parts_.metrics->coordinator_errors.Add();
    const bool had_trouble = !jobs_.Trouble(now).empty();
    jobs_.Fail(list.status(), now);
    if (was_reachable || (!had_trouble && !jobs_.Trouble(now).empty()))
      parts_.logger->Warning(
          absl::StrCat("the coordinator does not answer, trying again: ", list.status().message()));
    table_.ForgetIdleness();
    parts_.ready.Fail(list.status().message());
  }
  parts_.metrics->coordinator_reachable.Set(list.ok() ? 1 : 0);
}

void Controller::Handle(Held* held) {
  const v1::JobStatus* const job = jobs_.Find(RequestId(held->object));
  const std::uint64_t revision = job == nullptr ? ~0ull : job->revision();
  if (held->idle && revision == held->seen_revision) return;
  held->seen_revision = revision;
  held->idle = false;
  for (int step = 0; step < kStepsAtOnce; ++step) {
    const MonoTime now = parts_.clock->Now();
    if (now < held->not_before || now < api_not_before_ || !Advance(held)) return;
  }
}

bool Controller::Advance(Held* held) {
  const Facts facts = FactsOf(held);
  const Decision decision = Decide(held->object, facts);
  // A cancellation needs no record. It must not wait for an API server that refuses the status.
  if (decision.step == Step::kCancel) Cancel(held, *facts.job);
  if (decision.status != held->object.status) {
    const MonoTime now = parts_.clock->Now();
    if (IsUrgent(held->object.status, decision.status) || now >= held->next_progress)
      return WriteStatus(held, decision.status);
  }
  switch (decision.step) {
    case Step::kNone: held->idle = HasNothingToDo(*held, facts, decision); return false;
    case Step::kAddFinalizer: {
      std::vector<std::string> finalizers = held->object.finalizers;
      finalizers.emplace_back(kFinalizer);
      return SetFinalizers(held, std::move(finalizers));
    }
    case Step::kRemoveFinalizer: {
      std::vector<std::string> finalizers = held->object.finalizers;
      std::erase(finalizers, kFinalizer);
      return SetFinalizers(held, std::move(finalizers));
    }
    case Step::kSubmit: return Submit(held);
    case Step::kCancel: return false;
  }
  return false;
}

// Progress that is not written yet, and a submission that is due later, keep an object busy.
bool Controller::HasNothingToDo(const Held& held, const Facts& facts, const Decision& decision) {
  if (decision.status != held.object.status || !facts.jobs_known || !facts.settled) return false;
  if (facts.job != nullptr) return HasEnded(*facts.job) && held.metric_epoch == kEpochOfEnd;
  return held.object.deleting || !TextOf(held.object.status, "jobUid").empty() ||
         (facts.refusal && !facts.refusal->again);
}

Facts Controller::FactsOf(Held* held) {
  const MonoTime now = parts_.clock->Now();
  Facts facts;
  facts.jobs_known = jobs_.IsNewerThan(held->submitted);
  facts.job = jobs_.Find(RequestId(held->object));
  facts.trouble = jobs_.Trouble(now);
  // An older list may lack a job that such a submission has made since.
  facts.settled = jobs_.IsNewerThan(started_ + kCallMax);
  facts.now = Now();
  if (facts.job != nullptr) {
    UpdateMetric(held, *facts.job);
    // A process that has just begun has not fetched the results yet.
    facts.metric = held->metric.empty() ? TextOf(held->object.status, "metric") : held->metric;
    held->prepared = -1;
    held->submission.reset();
    held->refusal.reset();
  } else if (TextOf(held->object.status, "jobUid").empty() && !held->object.deleting) {
    Prepare(held);
    facts.refusal = held->refusal;
    facts.may_submit = now >= held->next_submission && !coordinator_silent_;
  }
  return facts;
}

// Makes the submission of the object's present generation, unless it is made already.
void Controller::Prepare(Held* held) {
  if (held->prepared == held->object.generation) return;
  held->prepared = held->object.generation;
  held->refusal.reset();
  held->refused = 0;
  held->next_submission = MonoTime(0);
  held->submission = PrepareSubmission(held->object, options_.environment);
  if (held->submission->mistakes.empty()) return;
  parts_.metrics->refusals.Add();
  parts_.logger->Warning(absl::StrCat("the spec of an object is wrong: object=", held->object.name,
                                      " generation=", held->object.generation, ": ",
                                      held->submission->mistakes));
  held->refusal = Refusal{kInvalidSpec, held->submission->mistakes, /*again=*/false};
}

// The list of jobs has no results of evaluations, so they are fetched when an epoch has begun or
// the job has ended.
void Controller::UpdateMetric(Held* held, const v1::JobStatus& job) {
  const std::uint64_t epoch = HasEnded(job) ? kEpochOfEnd : job.epoch();
  // A new process need not fetch the results that its predecessor has written.
  const Json& status = held->object.status;
  if (epoch == kEpochOfEnd && held->metric_epoch == 0 && !TextOf(status, "metric").empty() &&
      TextOf(FindCondition(status, "Finished"), "status") == "True")
    held->metric_epoch = kEpochOfEnd;
  if (held->metric_epoch == epoch || !jobs_.reachable() || coordinator_silent_) return;
  absl::StatusOr<v1::JobStatus> whole = parts_.coordinator->GetJob(job.job_uid());
  if (!whole.ok()) {
    parts_.metrics->coordinator_errors.Add();
    coordinator_silent_ = !IsAnswer(whole.status());
    if (IsAnswer(whole.status())) held->metric_epoch = epoch;
    return;
  }
  held->metric_epoch = epoch;
  for (const v1::EpochRow& row : whole->epoch_rows())
    if (std::string text = MetricText(row); !text.empty()) held->metric = std::move(text);
}

bool Controller::WriteStatus(Held* held, const Json& status) {
  const Json before = held->object.status;
  absl::StatusOr<JobObject> changed = parts_.api->SetStatus(held->object, status);
  if (!changed.ok()) {
    Fail(held, "write the status", changed.status());
    return false;
  }
  parts_.metrics->status_writes.Add();
  held->Take(*std::move(changed));
  api_failures_ = 0;
  if (IsUrgent(held->object.status, status)) {
    Fail(held, "write the status",
         absl::InternalError("the API server has stored another status; is the definition of "
                             "TrainingJob that of this version (--print-crd)?"));
    return false;
  }
  held->failures = 0;
  held->next_progress = parts_.clock->Now() + options_.status_every;
  for (const struct Report& report : ReportsOf(before, status)) Report(held->object, report);
  return true;
}

bool Controller::SetFinalizers(Held* held, std::vector<std::string> finalizers) {
  absl::StatusOr<JobObject> changed = parts_.api->SetFinalizers(held->object, finalizers);
  if (!changed.ok()) {
    Fail(held, "change the finalizers", changed.status());
    return false;
  }
  const bool gone = changed->deleting && changed->finalizers.empty();
  held->Take(*std::move(changed));
  held->failures = api_failures_ = 0;
  return !gone;
}

bool Controller::Submit(Held* held) {
  v1::SubmitJobRequest request;
  request.set_yaml(held->submission->yaml);
  request.set_source_name(
      absl::StrCat("trainingjob/", options_.name_space, "/", held->object.name));
  request.set_request_id(RequestId(held->object));
  const absl::StatusOr<v1::SubmitJobResponse> response = parts_.coordinator->SubmitJob(request);
  held->submitted = parts_.clock->Now();
  next_poll_ = held->submitted;  // the next list decides, whatever the answer was
  if (response.ok()) {
    parts_.metrics->submissions.Add();
    held->refused = 0;
    held->refusal.reset();
    parts_.logger->Info(absl::StrCat("submitted: object=", held->object.name,
                                     " generation=", held->object.generation,
                                     " job_uid=", JobUidString(JobUid(response->job_uid()))));
    return false;
  }
  TakeRefusal(held, response.status());
  return true;
}

void Controller::TakeRefusal(Held* held, const absl::Status& status) {
  const bool queue_full = absl::IsResourceExhausted(status);
  // A place in the queue becomes free at any time, and the next submission gets it.
  const milliseconds pause = queue_full ? kQueuePause : PauseAfter(++held->refused);
  held->next_submission = parts_.clock->Now() + std::max(options_.poll, pause);
  if (!IsAnswer(status)) {
    // The call may have been carried out, and nobody has refused the spec.
    parts_.metrics->coordinator_errors.Add();
    coordinator_silent_ = true;
    return;
  }
  const char* const reason = queue_full                      ? kQueueFull
                             : absl::IsAlreadyExists(status) ? kNameInUse
                                                             : kRefused;
  if (!held->refusal || held->refusal->reason != reason) {
    if (reason == kRefused) parts_.metrics->refusals.Add();
    parts_.logger->Warning(absl::StrCat(
        "the coordinator does not accept an object: object=", held->object.name,
        " generation=", held->object.generation, " reason=", reason, ": ", status.message()));
  }
  held->refusal = Refusal{reason, std::string(status.message()), MaySucceedLater(status)};
}

void Controller::Cancel(Held* held, const v1::JobStatus& job) {
  if (parts_.clock->Now() < held->next_cancel || coordinator_silent_) return;
  const absl::Status status = parts_.coordinator->CancelJob(job.job_uid());
  // The job's end arrives with a list of jobs. If it takes long, the call is repeated.
  held->next_cancel = parts_.clock->Now() + kCancelEvery;
  if (!status.ok()) {
    parts_.metrics->coordinator_errors.Add();
    coordinator_silent_ = !IsAnswer(status);
    parts_.logger->Warning(absl::StrCat("cannot cancel the job of a deleted object: object=",
                                        held->object.name, ": ", status.message()));
    return;
  }
  parts_.metrics->cancellations.Add();
  parts_.logger->Info(
      absl::StrCat("cancelled, because the object is deleted: object=", held->object.name,
                   " job_uid=", JobUidString(JobUid(job.job_uid()))));
  Report(held->object, {"Cancelling", "The object is deleted, so its job is cancelled.", false});
  next_poll_ = parts_.clock->Now();
}

void Controller::Report(const JobObject& object, const struct Report& report) {
  if (parts_.clock->Now() < api_not_before_) return;
  const absl::Status status =
      parts_.api->CreateEvent(EventOf(object, report, options_.name_space, Now()));
  if (status.ok()) {
    parts_.metrics->events.Add();
  } else if (!absl::IsAlreadyExists(status)) {
    // An Event is for people only, so it is not tried again.
    parts_.metrics->api_errors.Add();
    if (IsRetryable(status)) PauseApi();
    parts_.logger->Warning(absl::StrCat("cannot create an Event: object=", object.name,
                                        " reason=", report.reason, ": ", status.message()));
  }
}

void Controller::Fail(Held* held, absl::string_view what, const absl::Status& status) {
  const MonoTime now = parts_.clock->Now();
  if (absl::IsAborted(status) || absl::IsNotFound(status)) {
    // The watch brings the newer version, or reports that the object is gone. The pause is for a
    // watch that is late.
    parts_.metrics->conflicts.Add();
    held->not_before = now + milliseconds(500);
    return;
  }
  parts_.metrics->api_errors.Add();
  held->not_before = now + PauseAfter(++held->failures);
  // A token or a role that is wrong concerns all objects, too.
  const bool all =
      IsRetryable(status) || absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
  if (all) {
    PauseApi();
    begin_after_ = held->object.name;
  }
  if (all ? api_failures_ == 1 : held->failures == 1)
    parts_.logger->Warning(absl::StrCat("cannot ", what, " of an object, trying again: object=",
                                        held->object.name, ": ", status.message()));
}

// A server that does not answer must not cost a timeout for each object.
void Controller::PauseApi() { api_not_before_ = parts_.clock->Now() + PauseAfter(++api_failures_); }

std::string Controller::Now() const {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMillis(parts_.clock->WallMillis()),
                          absl::UTCTimeZone());
}

}  // namespace evergrad::kubernetes
