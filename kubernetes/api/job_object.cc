#include "kubernetes/api/job_object.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::kubernetes {

bool JobObject::HasFinalizer(absl::string_view finalizer) const {
  return std::find(finalizers.begin(), finalizers.end(), finalizer) != finalizers.end();
}

absl::StatusOr<JobObject> ParseJobObject(const Json& json) {
  const Json& metadata = Member(json, "metadata");
  JobObject object;
  object.name = TextOf(metadata, "name");
  object.uid = TextOf(metadata, "uid");
  object.resource_version = TextOf(metadata, "resourceVersion");
  const std::pair<const char*, const std::string&> needed[] = {
      {"name", object.name}, {"uid", object.uid}, {"resourceVersion", object.resource_version}};
  for (const auto& [key, text] : needed)
    if (text.empty())
      return absl::InvalidArgumentError(absl::StrCat("the object has no text metadata.", key));
  object.generation = IntegerOf(metadata, "generation");
  object.deleting = !Member(metadata, "deletionTimestamp").is_null();
  const Json& finalizers = Member(metadata, "finalizers");
  if (finalizers.is_array()) {
    for (const Json& one : finalizers)
      if (one.is_string()) object.finalizers.push_back(one.get<std::string>());
  }
  object.spec = Member(json, "spec");
  object.status = Member(json, "status");
  return object;
}

}  // namespace evergrad::kubernetes
