// Finds the name that a user may have meant. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad {

// Returns the candidate nearest to `name`, or "" if none is near enough for a suggestion: a third
// of its characters may differ, at least one. Upper and lower case are equal, and so are `-` and
// `_`. A name that begins a candidate is near.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace evergrad
