#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/time/clock.h"
#include "ps_server/unused_grants.h"
#include "tests/support/manual_executor.h"

namespace evergrad::ps_server {
namespace {

struct Fixture {
  ManualClock clock;
  log::Logger logger{{}};
  metrics::Registry registry;
  UnusedGrants unused{&logger, &registry, &clock};

  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    for (const log::Line& line : logger.Read(0, 0, "", 1000)) lines.push_back(line.text);
    return lines;
  }
  bool Counts(const std::string& peer, int grants) {
    return absl::StrContains(registry.PrometheusText(),
                             absl::StrCat("\nevergrad_ps_server_unused_grants_total{peer=\"", peer,
                                          "\"} ", grants, "\n"));
  }
};

TEST_CASE(
    "a client that leaves grants unused is counted at once, and causes a warning once a minute or "
    "when its stream is ended") {
  Fixture f;
  f.unused.Note("worker/0", 2, 100, false);
  f.unused.Note("worker/0", 3, 200, false);
  f.unused.Note("thief at 10.0.0.9", 1, 50, false);
  CHECK(f.Lines() == std::vector<std::string>{"a client left granted budget unused, so other "
                                              "clients get this budget: client=worker/0 grants=2 "
                                              "bytes=100",
                                              "a client left granted budget unused, so other "
                                              "clients get this budget: client=thief at 10.0.0.9 "
                                              "grants=1 bytes=50"});
  CHECK(f.Counts("worker/0", 5));
  CHECK(f.Counts("thief at 10.0.0.9", 1));
  f.clock.Advance(UnusedGrants::kSaidAgainAfter);
  f.unused.Note("worker/0", 1, 10, false);
  CHECK(f.Lines().back() ==
        "a client left granted budget unused, so other clients get this budget: client=worker/0 "
        "grants=4 "
        "bytes=210");
  f.unused.Note("worker/0", 7, 70, true);
  CHECK(f.Lines().back() ==
        "a client repeatedly left granted budget unused, so its data stream was ended: "
        "client=worker/0 grants=7 bytes=70");
  CHECK(f.Lines().size() == 4);
}

TEST_CASE("clients with invented names fill the counters with at most 65 entries") {
  Fixture f;
  for (int i = 0; i < 1000; ++i) f.unused.Note(absl::StrCat("name ", i), 1, 1, false);
  CHECK(f.Counts("other", 1000 - static_cast<int>(UnusedGrants::kPeersMax)));
  CHECK(f.Lines().size() <= UnusedGrants::kPeersMax + 1);
  CHECK_FALSE(f.Counts("name 999", 1));
}

}  // namespace
}  // namespace evergrad::ps_server
