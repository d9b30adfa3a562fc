// Tests how the number at the end of a host name is read (its ordinal).
#include "common/daemon/host_ordinal.h"

#include <catch2/catch.hpp>

namespace evergrad::daemon {
namespace {

TEST_CASE("the ordinal of a host is the number behind the last dash of its name") {
  CHECK(HostOrdinal("worker-3") == "3");
  CHECK(HostOrdinal("worker-03.pool.example") == "3");
  CHECK(HostOrdinal("ps-server-12.ps.default.svc") == "12");
  CHECK(HostOrdinal("ps-007") == "7");
  for (const char* name : {"", "3", "worker3", "worker-", "-", "vm-99999999999", "worker.pool-3"})
    CHECK(HostOrdinal(name) == "");
}

}  // namespace
}  // namespace evergrad::daemon
