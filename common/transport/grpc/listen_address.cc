#include <arpa/inet.h>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/transport/grpc/grpc_server.h"

namespace evergrad::transport {
namespace {

absl::StatusOr<HostPort> Split(const std::string& address) {
  if (auto parts = ParseHostPort(address)) return *std::move(parts);
  return absl::InvalidArgumentError(absl::StrCat(
      "address is not host:port with a port up to 65535 (IPv6: [host]:port): `", address, "`"));
}

// A name other than localhost may resolve to any address, so it does not count as a loopback
// address.
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
    if (!options.tls.empty())
      return absl::InvalidArgumentError("insecure_listen and tls cannot both be set");
    if (const auto parts = Split(options.insecure_listen); !parts.ok()) return parts.status();
    return options.insecure_listen;
  }
  const auto parts = Split(options.listen);
  if (!parts.ok()) return parts.status();
  if (options.tls.empty() && !IsLoopback(parts->host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an address that is not a loopback address needs TLS: listen=", options.listen,
                     " (give --tls-ca, --tls-cert and --tls-key, for which `psctl "
                     "cert issue` makes files, or give --insecure-listen in place of --listen)"));
  }
  return options.listen;
}

}  // namespace evergrad::transport
