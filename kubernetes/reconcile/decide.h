// Decides what happens to one object next: the step, and the status that the object should have.
// Pure; the controller (kubernetes/controller) carries the decisions out.
//
// An object takes this way:
//
//   1. It gets the finalizer kFinalizer. From then on the API server keeps a deleted object until
//      the operator has cancelled its job.
//   2. Its status names the generation that will be submitted (submittedGeneration). This record
//      survives a crash between the submission and the next status.
//   3. It is submitted under a request id that contains its uid. While the coordinator knows a job
//      with this request id, it makes no other job, so each step may be repeated at any time.
//   4. Its status follows its job.
//   5. When the object is deleted, its job is cancelled. Once the job has ended, the finalizer
//   goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "evergrad/v1/api.pb.h"
#include "kubernetes/api/job_object.h"

namespace evergrad::kubernetes {

inline constexpr char kFinalizer[] = "evergrad.dev/cancel-job";

// Returns SubmitJobRequest.request_id of the object's submissions.
std::string RequestId(const JobObject& object);

// Returns whether a job in this state has ended.
bool HasEnded(const v1::JobStatus& job);

// The reasons of the condition Accepted for a spec that was not accepted.
inline constexpr char kInvalidSpec[] = "InvalidSpec";  // the operator has found mistakes
inline constexpr char kRefused[] = "Refused";          // the coordinator refuses the spec
inline constexpr char kNameInUse[] = "NameInUse";      // a job that has not ended has the name
inline constexpr char kQueueFull[] = "QueueFull";      // the coordinator accepts no job now

// The reason why the object's spec was not accepted.
struct Refusal {
  std::string reason;  // one of the reasons above
  std::string message;
  bool again = false;  // the same spec may be accepted later, so it is submitted again
};

// The knowledge of the controller about one object.
struct Facts {
  // Whether `job` is known: the list of jobs is newer than the last submission of the object.
  bool jobs_known = false;
  const v1::JobStatus* job = nullptr;  // the object's job; null if there is none
  std::string metric;                  // the newest results of the job's evaluation, for people
  std::string trouble;  // why the coordinator has not answered for a while; "" if it has
  // For the present generation: the mistakes of the spec, or the answer to the last submission.
  std::optional<Refusal> refusal;
  bool may_submit = true;  // false until the next try is due
  // Whether the list of jobs is so new that it has the job of each submission by an earlier
  // process: none can have been on its way to the coordinator any more.
  bool settled = true;
  std::string now;  // RFC 3339, UTC
};

enum class Step {
  kNone,
  kAddFinalizer,
  kRemoveFinalizer,
  kSubmit,
  kCancel,
};
struct Decision {
  Step step = Step::kNone;  // taken after the status has been written
  Json status;              // the status that the object should have
};
Decision Decide(const JobObject& object, const Facts& facts);

// Returns whether the change of the status is more than progress (steps, losses, messages of
// conditions). Such a change is written at once.
bool IsUrgent(const Json& before, const Json& after);

// An Event to report for a change of the status.
struct Report {
  std::string reason;  // "Submitted"
  std::string message;
  bool warning = false;
  std::string key = {};  // distinguishes reports with the same reason about one generation
};
std::vector<Report> ReportsOf(const Json& before, const Json& after);

}  // namespace evergrad::kubernetes
