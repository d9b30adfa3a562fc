#include "common/schema/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace evergrad::config {

bool IsDnsLabel(absl::string_view name) {
  if (name.empty() || name.size() > 63 || name.front() == '-' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-';
  });
}

bool IsPartName(absl::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax ||
      !(absl::ascii_isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_'))
    return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace evergrad::config
