// One object of the kind TrainingJob, as the API server stores it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kubernetes/api/json_text.h"

namespace evergrad::kubernetes {

struct JobObject {
  std::string name;
  std::string uid;  // differs from the uid of a former object of this name
  // Changes with each change of the object. Two versions can only be compared for equality.
  std::string resource_version;
  std::int64_t generation = 0;  // rises with each change of the spec
  bool deleting = false;        // the object is deleted once it has no finalizers
  std::vector<std::string> finalizers;
  Json spec;    // as the user wrote it; null if absent
  Json status;  // as the operator wrote it last; null if absent

  bool HasFinalizer(absl::string_view finalizer) const;
};

// Returns InvalidArgument if the object lacks a name, a uid or a resource version. Other members
// may have any type.
absl::StatusOr<JobObject> ParseJobObject(const Json& json);

}  // namespace evergrad::kubernetes
