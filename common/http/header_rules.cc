#include "common/http/header_rules.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace evergrad::http {

bool IsHeaderName(absl::string_view name) {
  static constexpr absl::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           kMarks.find(c) != absl::string_view::npos;
  });
}

bool IsHeaderValue(absl::string_view value) {
  return std::none_of(value.begin(), value.end(), [](char c) {
    return c != '\t' && absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace evergrad::http
