#include "coordinator/psctl/audit_rows.h"

#include <catch2/catch.hpp>

namespace evergrad::psctl {
namespace {

using Rows = std::vector<std::vector<std::string>>;

TEST_CASE("epochs with equal numbers share a row, and --verbose shows one row for each") {
  std::vector<AuditEpoch> epochs;
  for (std::uint64_t e = 1; e <= 20; ++e) epochs.push_back({e, 60000, 0, 0, 0});
  CHECK(AuditRows(epochs, false) == Rows{{"1 to 20", "60000", "0", "0", "0"}});
  CHECK(AuditRows(epochs, true).size() == 20);
  CHECK(AuditRows(epochs, true)[6] == std::vector<std::string>{"7", "60000", "0", "0", "0"});
  epochs[12] = {13, 59000, 0, 1000, 0};
  epochs[18] = {19, 100, 200, 0, 59700};
  epochs[19] = {20, 0, 0, 0, 60000};
  CHECK(AuditRows(epochs, false) == Rows{{"1 to 12", "60000", "0", "0", "0"},
                                         {"13", "59000", "0", "1000", "0"},
                                         {"14 to 18", "60000", "0", "0", "0"},
                                         {"19", "100", "200", "0", "59700"},
                                         {"20", "0", "0", "0", "60000"}});
  CHECK(AuditRows({}, false).empty());
}

}  // namespace
}  // namespace evergrad::psctl
