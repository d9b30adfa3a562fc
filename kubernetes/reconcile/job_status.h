// The status of an object that has, or had, a job. Pure.
#pragma once

#include <string>
#include <vector>

#include "evergrad/v1/api.pb.h"
#include "kubernetes/reconcile/conditions.h"
#include "kubernetes/reconcile/decide.h"

namespace evergrad::kubernetes {

// Limits the text of a user or a peer to what fits into a condition.
std::string Shortened(absl::string_view text);

// Adds state, jobUid, step, steps, loss, metric, workers, message and runsFolder to `status`.
void FillJobFields(const JobObject& object, const Facts& facts, Json* status);

// Returns the conditions Accepted, Running, Finished, Succeeded and Failed of an object whose job
// is `job`.
std::vector<Condition> ConditionsOfJob(const v1::JobStatus& job);
// The same for an object whose job the coordinator no longer knows.
std::vector<Condition> ConditionsOfUnknownJob(const std::string& job_uid);
// The same for an object without a job.
std::vector<Condition> ConditionsWithoutJob(const Condition& accepted);

}  // namespace evergrad::kubernetes
