#include "common/base/host_port.h"

namespace evergrad {

std::optional<HostPort> ParseHostPort(absl::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  if (digits.empty() || digits.size() > 5) return std::nullopt;
  std::uint32_t port = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    port = port * 10 + static_cast<std::uint32_t>(c - '0');
  }
  if (port > 65535) return std::nullopt;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return std::nullopt;
  }
  if (host.empty()) return std::nullopt;
  for (const char c : host) {
    if (c <= ' ' || c == '/' || c == '[' || c == ']' || c == 0x7f) return std::nullopt;
  }
  return HostPort{std::string(host), static_cast<std::uint16_t>(port)};
}

}  // namespace evergrad
