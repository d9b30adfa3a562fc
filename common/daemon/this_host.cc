#include "common/daemon/this_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/daemon/daemon.h"

namespace evergrad::daemon {
namespace {

// Returns "10.0.0.1" for "10.0.0.1:4000" and "::1" for "[::1]:4000".
std::string HostOf(absl::string_view host_port) {
  const std::size_t colon = host_port.rfind(':');
  absl::string_view host =
      host_port.substr(0, colon == absl::string_view::npos ? host_port.size() : colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  // The host is returned without the interface of a link-local address.
  return std::string(host.substr(0, host.find('%')));
}

const void* BytesOf(const sockaddr& address, std::size_t* size) {
  if (address.sa_family == AF_INET) {
    *size = sizeof(in_addr);
    return &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  }
  *size = sizeof(in6_addr);
  return &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
}

bool IsLoopbackAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool IsOwn(const sockaddr& address) {
  if (address.sa_family != AF_INET && address.sa_family != AF_INET6) return false;
  if (IsLoopbackAddress(address)) return true;
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(raw, ::freeifaddrs);
  std::size_t size = 0, other_size = 0;
  const void* bytes = BytesOf(address, &size);
  for (const ifaddrs* one = interfaces.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != address.sa_family) continue;
    if (std::memcmp(bytes, BytesOf(*one->ifa_addr, &other_size), size) == 0) return true;
  }
  return false;
}

Where LookUp(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &raw) != 0) return Where::kUnknown;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(raw, ::freeaddrinfo);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (one->ai_addr != nullptr && IsOwn(*one->ai_addr)) return Where::kThisHost;
  }
  return Where::kElsewhere;
}

}  // namespace

Where WhereIs(absl::string_view host_port) {
  return IsLoopback(host_port) ? Where::kThisHost : LookUp(HostOf(host_port), 0);
}

Where WhereIsPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:"))
    return Where::kUnknown;
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  std::string host = HostOf(plain);
  // A dual-stack listener reports an IPv4 address in this form.
  if (absl::StartsWith(host, "::ffff:")) host = host.substr(7);
  return LookUp(host, AI_NUMERICHOST);
}

absl::Status CheckServerAddress(absl::string_view advertised, absl::string_view coordinator,
                                const std::function<Where(absl::string_view)>& where_is) {
  if (!IsLoopback(advertised) || where_is(coordinator) != Where::kElsewhere)
    return absl::OkStatus();
  return UserError(absl::InvalidArgumentError(absl::StrCat(
      "--listen: workers would have to connect to this server at ", advertised,
      ", which works on this host only, but its coordinator ", coordinator,
      " is on another host. Give --listen an address of this host that workers reach; such an "
      "address needs TLS, or --insecure-listen if the network itself is trusted. Or give "
      "--advertise the address under which workers reach this server")));
}

}  // namespace evergrad::daemon
