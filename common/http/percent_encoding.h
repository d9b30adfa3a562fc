// The percent-encoding of paths and queries (RFC 3986, section 2). Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::http {

// Percent-encodes all bytes but A-Z a-z 0-9 - . _ ~, and '/' if `keep_slash`; digits in upper case.
std::string PercentEncode(absl::string_view text, bool keep_slash);

}  // namespace evergrad::http
