#include "common/http/client.h"

#include <algorithm>

namespace evergrad::http {

absl::string_view Response::Find(absl::string_view name) const {
  const auto found = std::find_if(headers.rbegin(), headers.rend(),
                                  [&](const Header& header) { return header.name == name; });
  return found == headers.rend() ? absl::string_view() : absl::string_view(found->value);
}

}  // namespace evergrad::http
