// Finds the name that a user may have meant. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad {

// Returns the candidate nearest to `name`, or "" if none is near. A candidate is near if it begins
// with `name`, or if it differs from `name` in at most a third of the characters of `name` (one
// difference is always allowed). Upper and lower case count as equal, and so do `-` and `_`.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace evergrad
