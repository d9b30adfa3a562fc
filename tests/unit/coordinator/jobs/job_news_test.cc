// Tests the events that a job reports to users, without a Job object.
#include "coordinator/jobs/job_news.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;

struct Fixture : PartFixture {
  EventLog events{10};
  RunOutput output{Part(), {}};
  JobNews news{Part(), &events, &output};
};

TEST_CASE("an event is in the log, the status, the journal and metrics.jsonl, and is a change") {
  Fixture f;
  f.news.AddEvent("warning", "disk is slow");
  CHECK(f.host.log_lines == std::vector<std::string>{"warning: disk is slow"});
  REQUIRE(f.events.events().size() == 1);
  CHECK(f.note.events_size() == 1);
  CHECK_THAT(f.output.lines().pending(), Catch::Matchers::Contains("disk is slow"));
  CHECK(f.news.revision() == 2);
  CHECK(f.host.changes == 1);
}

TEST_CASE("progress is told by a tick, at most once in 100 ms") {
  Fixture f;
  f.news.Tick(f.host.Now());
  CHECK(f.host.changes == 0);
  for (int i = 0; i < 2; ++i) {
    f.news.Touch();
    f.news.Tick(f.host.Now());
    CHECK(f.host.changes == 1);
  }
  f.host.clock.Advance(milliseconds(100));
  f.news.Tick(f.host.Now());
  CHECK(f.host.changes == 2);
  CHECK(f.news.revision() == 3);
}

TEST_CASE("only a deterministic job says that its results may differ in bits") {
  Fixture f;
  f.news.SayNotReproducible("a shard was lost");
  CHECK(f.events.events().empty());
  f.id.spec.strategy.deterministic = true;
  f.news.SayNotReproducible("a shard was lost");
  REQUIRE(f.events.events().size() == 1);
  CHECK_THAT(f.events.events()[0].text(),
             Catch::Matchers::StartsWith("deterministic: a shard was lost; "));
}

TEST_CASE("the refusal of an ended job's variables is in neither the journal nor metrics.jsonl") {
  Fixture f;
  f.news.AddRefusal("unknown layer");
  CHECK(f.events.events().size() == 1);
  CHECK(f.host.log_lines.size() == 1);
  CHECK(f.note.events_size() == 0);
  CHECK(f.output.lines().pending().empty());
}

TEST_CASE("the revision of a later life of the coordinator is above those of former ones") {
  Fixture f;
  f.news.BeginLife(Term(2));
  CHECK(f.news.revision() == 2ull << 32);
  f.news.TellChange();
  f.news.BeginLife(Term(1));
  CHECK(f.news.revision() == (2ull << 32) + 1);
}

}  // namespace
}  // namespace evergrad::coordinator
