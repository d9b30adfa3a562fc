// Tests the records, notes and snapshots that a job writes, without a Job object.
#include "coordinator/jobs/journal_writer.h"

#include <catch2/catch.hpp>

#include "evergrad/v1/journal.pb.h"
#include "fake_host.h"

namespace evergrad::coordinator {
namespace {

struct Fixture {
  explicit Fixture(bool persistent = true) : host({.persistent = persistent}) {
    options.notes_max = 3;
  }
  static Record Succeeded(std::uint64_t closure) {
    Record record;
    record.succeeded_add.Add(closure);
    return record;
  }
  StoredJob Stored() { return *host.memory.LoadJob(kJob); }
  std::vector<v1::JobNote> Notes() {
    std::vector<v1::JobNote> notes;
    for (const std::string& bytes : Stored().notes)
      REQUIRE(notes.emplace_back().ParseFromString(bytes));
    return notes;
  }

  static constexpr JobUid kJob{0xabc};
  FakeHost host;
  JobOptions options;
  MetricsFile lines{&host, "/runs/job", [](absl::string_view, const std::string&) {}};
  JournalWriter journal{&host, &options, kJob, &lines,
                        [](v1::JobCounters* counters) { counters->set_attempts(5); }};
};

TEST_CASE("records and notes since the last commit are one commit, with the counters") {
  Fixture f;
  CHECK(f.journal.Commit());  // nothing has changed, so nothing is written
  CHECK_FALSE(f.host.memory.LoadJob(f.kJob).ok());
  f.journal.Add(f.Succeeded(1));
  f.journal.Add(f.Succeeded(2));
  v1::Done done;
  done.mutable_metrics()->set_examples(8);
  f.journal.NoteCounted("0", ClosureId(1), done);
  f.journal.NoteCounted("0", ClosureId(2), done);
  f.journal.Note()->mutable_functions()->set_next(7);
  CHECK(f.journal.Commit());
  CHECK(f.Stored().state.succeeded == IntervalSet::Range(1, 3));
  const auto notes = f.Notes();
  REQUIRE(notes.size() == 1);
  REQUIRE(notes[0].counted_size() == 2);
  CHECK(notes[0].counted(1).closure() == 2);
  CHECK(notes[0].counted(1).examples() == 8);
  CHECK(notes[0].functions().next() == 7);
  CHECK(notes[0].counters().attempts() == 5);
  CHECK(f.journal.Commit());  // the second commit writes no note, because nothing has changed
  CHECK(f.Notes().size() == 1);
}

TEST_CASE("pending lines of metrics.jsonl go with the next note") {
  Fixture f;
  f.lines.Add("{}", false);
  CHECK(f.journal.Commit());
  CHECK(f.lines.pending().empty());
  CHECK(f.Notes().size() == 1);
}

TEST_CASE("after so many notes a snapshot replaces them, with whatever waited for a commit") {
  Fixture f;
  f.journal.WantWhole();
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(f.journal.full());
    f.journal.Add(f.Succeeded(static_cast<std::uint64_t>(i)));
    REQUIRE(f.journal.Commit());
  }
  CHECK(f.journal.full());
  f.journal.Note();
  f.journal.Add(f.Succeeded(9));
  DurableState state;
  state.succeeded = IntervalSet::Range(0, 10);
  v1::JobSnapshot snapshot;
  snapshot.set_name("job");
  CHECK(f.journal.CommitWhole(state, snapshot));
  CHECK_FALSE(f.journal.full());
  CHECK_FALSE(f.journal.whole_wanted());
  CHECK(f.Stored().notes.empty());
  CHECK(f.Stored().state.succeeded == IntervalSet::Range(0, 10));
  CHECK(f.Stored().snapshot == snapshot.SerializeAsString());
}

TEST_CASE("a store that does not persist gets records without notes") {
  Fixture f(/*persistent=*/false);
  CHECK_FALSE(f.journal.on());
  CHECK(f.journal.Note() == nullptr);
  f.journal.NoteCounted("0", ClosureId(1), v1::Done());
  for (int i = 0; i < 5; ++i) {
    f.journal.Add(f.Succeeded(static_cast<std::uint64_t>(i)));
    REQUIRE(f.journal.Commit());
  }
  CHECK_FALSE(f.journal.full());
  CHECK(f.Stored().notes.empty());
  CHECK(f.Stored().state.succeeded == IntervalSet::Range(0, 5));
}

}  // namespace
}  // namespace evergrad::coordinator
