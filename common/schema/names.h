// Rules for the names of the parts of a job. Pure.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace evergrad::config {

inline constexpr std::size_t kNameBytesMax = 64;

// A lower-case DNS label: letters, digits and inner dashes, at most 63.
bool IsDnsLabel(absl::string_view name);
// A valid name of a layer, an input or a field, which becomes part of a variable's name
// ("dense1/kernel").
bool IsPartName(absl::string_view name);

}  // namespace evergrad::config
