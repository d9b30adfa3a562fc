#include "common/daemon/host_ordinal.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace evergrad::daemon {

std::string HostOrdinal(absl::string_view host_name) {
  const absl::string_view name = host_name.substr(0, host_name.find('.'));
  std::size_t digits = name.size();
  while (digits > 0 && absl::ascii_isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  std::uint32_t ordinal = 0;
  if (digits == name.size() || digits == 0 || name[digits - 1] != '-' ||
      !absl::SimpleAtoi(name.substr(digits), &ordinal))
    return "";
  return absl::StrCat(ordinal);
}

}  // namespace evergrad::daemon
