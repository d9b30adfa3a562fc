// Times as text, in the notations of signatures and of services that give out credentials. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::object_store {

// Returns a time in UTC, without its milliseconds: "20130524T000000Z".
std::string BasicTime(std::int64_t wall_ms);

// Parses an ISO 8601 time: "2013-05-24T00:00:00Z". The seconds may have a fraction, and "+02:00"
// may stand in place of the Z. Returns milliseconds since 1970, or nullopt for any other text.
std::optional<std::int64_t> ParseTime(absl::string_view text);

}  // namespace evergrad::object_store
