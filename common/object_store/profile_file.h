// The format of ~/.aws/credentials: sections "[PROFILE]" with lines "KEY = VALUE". Pure.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::object_store {

using Profile = std::map<std::string, std::string>;  // by keys in lower case

// Returns the section of a profile, or nullopt if there is none. If a section or key occurs several
// times, the last value counts. A line that begins with '#' or ';' is a comment, and so is the part
// of a line after " #" or " ;". Nested settings, which are indented below a key without a value,
// are skipped. Any other line gives InvalidArgument with its number, because it could be a key that
// was mistyped. No error contains a line.
absl::StatusOr<std::optional<Profile>> FindProfile(absl::string_view text,
                                                   absl::string_view profile);

}  // namespace evergrad::object_store
