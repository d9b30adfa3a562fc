// The types of jobs (spec.type) and the properties that follow from a job's type alone.
//
// Everything here is constant and may be read by any thread.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace evergrad::config {

struct JobSpec;
template <class T>
struct Table;

struct JobType {
  const char* name = "";
  // Whether the job trains the model of its file on the data of its file.
  bool trains_model = false;
  // Whether a client schedules the closures, so that no plan states the number of closures or of
  // their updates.
  bool scheduled_by_client = false;
  // Whether only daemons that were started with --failpoints accept the job.
  bool for_tests_only = false;

  // --- used by the parser
  const Table<JobSpec>& (*table)() = nullptr;  // the keys of `spec`
  // Appends the reference of the keys that only this type has. The pointer is nullptr for the type
  // training, because the reference is a job of that type.
  void (*explain)(std::string* out) = nullptr;
};

// Returns all types. The first type is the type of a job that does not state a type.
absl::Span<const JobType* const> JobTypes();
// Returns the type of a parsed job.
const JobType& TypeOf(const JobSpec& spec);

}  // namespace evergrad::config
