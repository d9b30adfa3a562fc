#include "common/daemon/this_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <catch2/catch.hpp>

#include "common/base/status.h"

namespace evergrad::daemon {
namespace {

using Catch::Matchers::Contains;

TEST_CASE(
    "loopback and the addresses of the interfaces belong to this host, and other addresses do "
    "not") {
  for (const char* own : {"127.0.0.1:1", "127.3.2.1:99", "localhost:5", "[::1]:5"})
    CHECK(WhereIs(own) == Where::kThisHost);
  for (const char* other : {"192.0.2.1:4000", "[2001:db8::1]:4000"})
    CHECK(WhereIs(other) ==
          Where::kElsewhere);  // no host has these addresses, which are reserved for documentation
  CHECK(WhereIs("no-such-host.invalid:4000") == Where::kUnknown);
  CHECK(WhereIsPeer("ipv4:127.0.0.1:1") == Where::kThisHost);
  CHECK(WhereIsPeer("ipv6:%5B::1%5D:1") == Where::kThisHost);
  CHECK(WhereIsPeer("ipv6:[::ffff:127.0.0.1]:1") == Where::kThisHost);
  CHECK(WhereIsPeer("ipv4:192.0.2.1:1") == Where::kElsewhere);
  CHECK(WhereIsPeer("ipv6:[2001:db8::1]:1") == Where::kElsewhere);
  for (const char* unknown : {"inproc", "unix:/x", "ipv4:no-number:1", ""})
    CHECK(WhereIsPeer(unknown) == Where::kUnknown);
  ifaddrs* all = nullptr;
  REQUIRE(::getifaddrs(&all) == 0);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char text[64] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
                sizeof(text));
    INFO(text);
    CHECK(WhereIs(std::string(text) + ":4000") == Where::kThisHost);
    CHECK(WhereIsPeer("ipv4:" + std::string(text) + ":4000") == Where::kThisHost);
  }
  ::freeifaddrs(all);
}

TEST_CASE(
    "a server that would advertise loopback to a remote coordinator is refused, and the message "
    "names the flags") {
  const auto is = [](Where where) { return [where](absl::string_view) { return where; }; };
  const absl::Status refused =
      CheckServerAddress("127.0.0.1:4001", "10.0.0.1:4000", is(Where::kElsewhere));
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(BlameOf(refused) == Blame::kUser);
  CHECK_THAT(std::string(refused.message()), Contains("--listen") && Contains("--advertise") &&
                                                 Contains("127.0.0.1:4001") &&
                                                 Contains("10.0.0.1:4000"));
  // If the coordinator is on this host, all workers may be on this host, too. If the coordinator's
  // name cannot be resolved yet, the check cannot tell and accepts the address.
  CHECK(CheckServerAddress("127.0.0.1:4001", "10.0.0.1:4000", is(Where::kThisHost)).ok());
  CHECK(CheckServerAddress("127.0.0.1:4001", "coordinator:4000", is(Where::kUnknown)).ok());
  CHECK(CheckServerAddress("10.0.0.2:4001", "10.0.0.1:4000", is(Where::kElsewhere)).ok());
}

}  // namespace
}  // namespace evergrad::daemon
