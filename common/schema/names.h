// Rules for the names of the parts of a job. Pure.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace evergrad::config {

inline constexpr std::size_t kNameBytesMax = 64;

// Returns whether `name` is a lower-case DNS label: letters, digits and inner dashes, at most 63
// characters.
bool IsDnsLabel(absl::string_view name);
// Returns whether `name` is a valid name of a layer, an input or a field. Such a name becomes part
// of a variable's name ("dense1/kernel").
bool IsPartName(absl::string_view name);

}  // namespace evergrad::config
