// Tests metrics.jsonl without a Job object: its size limits, a full disk, and the state that the
// journal must keep.
#include "coordinator/jobs/metrics_file.h"

#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

// Plays the parts of the file thread and the journal. `status` is the result of every write.
class FakeFile final : public MetricsFile::Host {
 public:
  MonoTime Now() const override { return now; }
  void AppendLines(const std::string&, const std::string&, std::string lines,
                   std::function<void(absl::Status)> done) override {
    if (status.ok()) text += lines;
    writes.push_back([this, done] { done(status); });
  }
  void RestoreLines(const std::string&, const std::string&, std::uint64_t offset, std::string tail,
                    std::function<void(absl::Status)> done) override {
    if (status.ok()) text = text.substr(0, offset) + tail;
    writes.push_back([this, done] { done(status); });
  }
  void WhenDurable(std::function<void()> then) override { durable.push_back(std::move(then)); }

  static void RunAll(std::deque<std::function<void()>>* queue) {
    for (; !queue->empty(); queue->pop_front()) queue->front()();
  }

  MonoTime now{1};
  absl::Status status;
  std::string text;
  std::deque<std::function<void()>> writes, durable;
};

struct Fixture {
  FakeFile disk;
  std::vector<std::string> events;
  MetricsFile file{&disk, "/runs/x", [this](absl::string_view kind, const std::string& text) {
                     events.push_back(std::string(kind) + ": " + text);
                   }};
};

TEST_CASE("a line is written to the file after its commit is durable, and not before") {
  Fixture f;
  CHECK(f.file.Add("{1}", false));
  CHECK(f.file.pending() == "{1}\n");
  f.file.Write();
  CHECK(f.disk.writes.empty());
  f.file.Commit(/*durable=*/false);
  CHECK(f.file.pending().empty());
  f.file.Write();
  CHECK(f.disk.writes.empty());
  FakeFile::RunAll(&f.disk.durable);
  FakeFile::RunAll(&f.disk.writes);
  CHECK(f.disk.text == "{1}\n");
}

TEST_CASE(
    "frequent lines leave the reserve to the others, and lines lost at either limit are counted") {
  Fixture f;
  const std::string line(1u << 20, 'x');
  for (int i = 0; i < 3; ++i) CHECK(f.file.Add(line, true));
  CHECK_FALSE(f.file.Add(line, true));
  CHECK(f.file.Add(line, false));
  CHECK_FALSE(f.file.Add(line, false));
  CHECK(f.file.lost() == 2);
}

TEST_CASE("after a failed write the end of the file is restored, a second later") {
  Fixture f;
  f.disk.text = "old\n";
  v1::JobSnapshot snapshot;
  snapshot.set_lines_bytes(4);
  f.file.Read(snapshot);
  f.file.Add("{1}", false);
  f.file.Commit(/*durable=*/true);
  f.disk.status = absl::ResourceExhaustedError("full");
  f.file.Write();
  FakeFile::RunAll(&f.disk.writes);
  REQUIRE(f.events.size() == 1);
  CHECK_THAT(f.events[0], Contains("warning: metrics.jsonl cannot be written") && Contains("full"));
  f.disk.text = "old\n{";  // the last line is torn
  f.disk.status = absl::OkStatus();
  f.file.Write();
  CHECK(f.disk.writes.empty());
  f.disk.now += std::chrono::seconds(1);
  f.file.Write();
  FakeFile::RunAll(&f.disk.writes);
  CHECK(f.disk.text == "old\n{1}\n");
  CHECK_THAT(f.events.back(), Contains("is written again, and no line is lost"));
}

TEST_CASE(
    "at the job's end a full disk is awaited for a limited time, and then the lines are dropped") {
  Fixture f;
  int settled = 0;
  CHECK(f.file.Settle([&] { ++settled; }));  // no line is left to write
  f.file.Add("{1}", false);
  f.file.Add("{2}", false);
  f.file.Commit(/*durable=*/true);
  f.disk.status = absl::ResourceExhaustedError("full");
  CHECK_FALSE(f.file.Settle([&] { ++settled; }));
  FakeFile::RunAll(&f.disk.writes);
  CHECK(settled == 0);
  f.disk.now += std::chrono::seconds(5);
  f.file.Write();
  FakeFile::RunAll(&f.disk.writes);
  CHECK(settled == 1);
  CHECK(f.file.gave_up());
  CHECK(f.file.lost() == 2);
  CHECK_THAT(f.events.back(), Contains("ends too early, missing 2 lines"));
}

TEST_CASE("the journal holds the length of the file and the lines that may be missing from it") {
  Fixture f;
  f.file.Add("{1}", false);
  f.file.Commit(/*durable=*/false);
  f.file.Add("{2}", false);
  v1::JobSnapshot snapshot;
  f.file.Fill(/*queued=*/false, /*ended=*/false, &snapshot);
  CHECK(snapshot.lines_bytes() == 8);
  CHECK(snapshot.lines_unwritten() == "{1}\n{2}\n");
  CHECK(snapshot.lines_waiting().empty());

  Fixture next;
  next.disk.text = "{1}\n{";
  next.file.Read(snapshot);
  v1::JobNote note;
  note.set_lines("{3}\n");
  next.file.ReadNote(note);
  next.file.Resume();
  FakeFile::RunAll(&next.disk.writes);
  CHECK(next.disk.text == "{1}\n{2}\n{3}\n");
}

TEST_CASE("the lines of a queued job wait in the journal, because it has no file yet") {
  Fixture f;
  f.file.Add("{1}", false);
  v1::JobSnapshot snapshot;
  f.file.Fill(/*queued=*/true, /*ended=*/false, &snapshot);
  CHECK(snapshot.lines_bytes() == 0);
  CHECK(snapshot.lines_unwritten().empty());
  Fixture next;
  next.file.Read(snapshot);
  CHECK(next.file.pending() == "{1}\n");
}

TEST_CASE("a write may end after the file's owner was destroyed") {
  FakeFile disk;
  {
    MetricsFile file(&disk, "/runs/x", [](absl::string_view, const std::string&) { FAIL(); });
    file.Add("{1}", false);
    file.Commit(/*durable=*/true);
    disk.status = absl::UnavailableError("gone");
    file.Write();
  }
  FakeFile::RunAll(&disk.writes);
}

}  // namespace
}  // namespace evergrad::coordinator
