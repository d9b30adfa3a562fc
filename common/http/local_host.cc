#include "common/http/local_host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace evergrad::http {
namespace {

using V4 = std::array<std::uint8_t, 4>;
using V6 = std::array<std::uint8_t, 16>;

bool IsLocal(const V4& address) {
  return address[0] == 127 || (address[0] == 169 && address[1] == 254);
}

bool IsLocal(const V6& address) {
  static constexpr V6 kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  static constexpr V6 kGoogle = {0xfd, 0x20, 0x00, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54};
  static constexpr std::array<std::uint8_t, 4> kAmazon = {0xfd, 0x00, 0x0e, 0xc2};
  static constexpr std::array<std::uint8_t, 12> kMappedV4 = {0, 0, 0, 0, 0,    0,
                                                             0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(kMappedV4.begin(), kMappedV4.end(), address.begin()))
    return IsLocal(V4{address[12], address[13], address[14], address[15]});
  return address == kLoopback || address == kGoogle ||
         std::equal(kAmazon.begin(), kAmazon.end(), address.begin());
}

}  // namespace

bool IsLocalHost(absl::string_view host) {
  std::string name = absl::AsciiStrToLower(host);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  V4 v4{};
  if (::inet_pton(AF_INET, name.c_str(), v4.data()) == 1) return IsLocal(v4);
  V6 v6{};
  if (::inet_pton(AF_INET6, name.c_str(), v6.data()) == 1) return IsLocal(v6);
  absl::string_view rest = name;
  absl::ConsumeSuffix(&rest, ".");
  return rest == "localhost" || absl::EndsWith(rest, ".localhost") ||
         rest == "metadata.google.internal";
}

}  // namespace evergrad::http
