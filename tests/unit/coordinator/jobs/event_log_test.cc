// Tests the list of a job's events and the list of its deaths, without a Job object.
#include "coordinator/jobs/event_log.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

TEST_CASE("events are numbered from 1, and the oldest is removed at the limit") {
  EventLog log(2);
  log.Add("state", "a", 10, nullptr);
  log.Add("warning", "b", 11, nullptr);
  CHECK(log.Add("state", "c", 12, nullptr).number() == 3);
  REQUIRE(log.events().size() == 2);
  CHECK(log.events().front().text() == "b");
  v1::JobStatus status;
  log.FillStatus(2, &status);
  REQUIRE(status.events_size() == 1);
  CHECK(status.events(0).text() == "c");
  CHECK(status.events(0).wall_ms() == 12);
}

TEST_CASE("an event's text has at most 2,000 bytes") {
  EventLog log(2);
  const v1::Event& event = log.Add("state", std::string(3000, 'x'), 0, nullptr);
  CHECK(event.text().size() <= 2003);  // the length includes the ellipsis
}

TEST_CASE("the first deaths are stored and all are counted") {
  EventLog log(1);
  for (const char* reason : {"first", "second"}) {
    log.CountDeath();
    log.AddDeath({Role::kWorker, "0", reason, 5}, nullptr);
  }
  REQUIRE(log.deaths().size() == 1);
  CHECK(log.deaths()[0].reason == "first");
  CHECK(log.deaths_total() == 2);
}

TEST_CASE("a log is restored from a snapshot and later notes") {
  EventLog log(3);
  log.Add("state", "a", 1, nullptr);
  log.CountDeath();
  log.AddDeath({Role::kPsServer, "s", "gone", 2}, nullptr);
  v1::JobSnapshot snapshot;
  log.Fill(&snapshot);
  log.FillCounters(snapshot.mutable_counters());
  v1::JobNote note;
  log.Add("state", "b", 3, &note);
  log.CountDeath();
  log.AddDeath({Role::kWorker, "w", "killed", 4}, &note);
  log.FillCounters(note.mutable_counters());

  EventLog back(3);
  REQUIRE(back.Read(snapshot).ok());
  back.ReadCounters(snapshot.counters());
  REQUIRE(back.ReadNote(note).ok());
  back.ReadCounters(note.counters());
  v1::JobSnapshot was, is;
  log.Fill(&was);
  back.Fill(&is);
  CHECK(is.SerializeAsString() == was.SerializeAsString());
  CHECK(back.deaths_total() == 2);
  CHECK(back.Add("state", "c", 5, nullptr).number() == 3);
}

TEST_CASE("a death with an unknown role is refused") {
  v1::JobSnapshot snapshot;
  snapshot.add_deaths()->set_identity("w");
  EventLog log(1);
  CHECK(absl::IsInvalidArgument(log.Read(snapshot)));
}

}  // namespace
}  // namespace evergrad::coordinator
