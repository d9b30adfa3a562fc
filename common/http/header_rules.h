// The rules for the names and values of HTTP headers (RFC 9110, section 5). Pure.
#pragma once

#include "absl/strings/string_view.h"

namespace evergrad::http {

// Returns whether `name` is a token: letters, digits and !#$%&'*+-.^_`|~, at least one of them.
bool IsHeaderName(absl::string_view name);
// Returns whether `value` has no control character except the tab. A line end in a value would
// begin another header.
bool IsHeaderValue(absl::string_view value);

}  // namespace evergrad::http
