// Reads JSON of a peer. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::kubernetes {

using Json = nlohmann::json;

inline constexpr int kJsonDepthMax = 100;

// Parses `text`. Returns InvalidArgument if the text is no JSON, is not UTF-8, or is nested deeper
// than kJsonDepthMax (code that walks a value may therefore recurse).
absl::StatusOr<Json> ParseJson(absl::string_view text);

// Returns the member `key` of an object. Returns null if `value` is no object or lacks the member.
const Json& Member(const Json& value, const char* key);
// Returns the text of the member, or "" if the member is absent or no text.
std::string TextOf(const Json& value, const char* key);
// Returns the number of the member, or 0 if the member is absent or no integer from 0 to 2^63-1.
std::int64_t IntegerOf(const Json& value, const char* key);

}  // namespace evergrad::kubernetes
