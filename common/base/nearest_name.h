// Finds the name that a user may have meant. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad {

// Returns the candidate nearest to `name`, or "" if none is near. A candidate is near if `name` is
// the beginning of it, or if at most a third of the characters of `name` (at least one) differ.
// Upper and lower case are equal, and so are `-` and `_`.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace evergrad
