#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/transport/grpc_server.h"

namespace evergrad::transport {
namespace {

struct HostPort {
  std::string host;
  std::uint32_t port = 0;
};

absl::StatusOr<HostPort> Split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort parts;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &parts.port) || parts.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address is not host:port: ", address));
  }
  parts.host = address.substr(0, colon);
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (absl::StrContains(parts.host, ":")) {
    return absl::InvalidArgumentError(absl::StrCat("an IPv6 address is written [host]:port: ", address));
  }
  if (parts.host.empty()) return absl::InvalidArgumentError(absl::StrCat("address without a host: ", address));
  return parts;
}

// A name other than localhost may resolve to anything: it counts as off loopback.
bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

absl::StatusOr<std::string> ListenAddress(const ServerOptions& options) {
  if (!options.insecure_listen.empty()) {
    if (!options.tls.empty()) return absl::InvalidArgumentError("insecure_listen and tls exclude each other");
    if (const auto parts = Split(options.insecure_listen); !parts.ok()) return parts.status();
    return options.insecure_listen;
  }
  const auto parts = Split(options.listen);
  if (!parts.ok()) return parts.status();
  if (options.tls.empty() && !IsLoopback(parts->host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("will not listen off loopback without credentials: give tls {ca, cert, key} (psctl cert issue), or --insecure-listen ",
                     options.listen, ": listen=", options.listen));
  }
  return options.listen;
}

}  // namespace evergrad::transport
