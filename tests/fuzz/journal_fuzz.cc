// The input is a job in the form of the journal's rows: the job's state, its snapshot, and the
// entries of both.
#include "common/base/check.h"
#include "coordinator/store/record_codec.h"
#include "evergrad/v1/journal.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet.h"
#include "tests/unit/coordinator/jobs/job_fixture.h"

namespace evergrad::coordinator {
namespace {

// A state in an input may have few shards only, because many shards cost time and test nothing
// more.
constexpr std::uint32_t kShardsMax = 256;

// Reads the rows as SqliteStateStore does (coordinator/store/FORMAT.md), but without their
// checksums.
absl::StatusOr<StoredJob> ReadRows(fuzz::Input& input) {
  StoredJob stored;
  const std::string bytes(input.Piece());
  v1::JournalState shards;
  if (shards.ParseFromString(bytes) && shards.shards() > kShardsMax)
    return absl::ResourceExhaustedError("too large for a target");
  auto state = DecodeState(bytes);
  if (!state.ok()) return state.status();
  const auto again = DecodeState(EncodeState(*state));
  EG_CHECK_MSG(again.ok(), std::string(again.status().message()));
  EG_CHECK(*again == *state);
  stored.state = *std::move(state);
  stored.snapshot = std::string(input.Piece());
  while (!input.done()) {
    v1::JournalEntry entry;
    if (!entry.ParseFromString(std::string(input.Piece())))
      return absl::DataLossError("an entry that cannot be read");
    auto record = DecodeRecord(entry.record());
    if (!record.ok()) return record.status();
    v1::JournalRecord written;
    EncodeRecord(*record, &written);
    const auto read = DecodeRecord(written);
    EG_CHECK(read.ok() && *read == *record);
    ApplyRecord(*record, &stored.state);
    if (stored.state.map.size() > kShardsMax)
      return absl::ResourceExhaustedError("too large for a target");
    for (const std::string& note : entry.notes()) stored.notes.push_back(note);
  }
  return stored;
}

void RunOn(FakeHost& host, Job& job) {
  const auto work_off = [&] {
    while (!host.later.empty()) {
      const auto next = std::move(host.later.front());
      host.later.pop_front();
      next();
    }
  };
  const auto show = [&] {
    v1::JobStatus status;
    job.FillStatus(&status, 0);
    EG_CHECK(!status.SerializeAsString().empty());
  };
  show();
  if (job.started() && !job.ended()) {
    job.Resume(host.term_now);
    job.CloseWindow();
  }
  for (int i = 0; i < 4; ++i) {
    host.clock.Advance(std::chrono::seconds(1));
    job.Tick();
    work_off();
  }
  show();
  job.Cancel();
  for (int i = 0; i < 4; ++i) {
    host.clock.Advance(std::chrono::seconds(30));
    job.Tick();
    work_off();
  }
  show();
}

void CheckRows(fuzz::Input& input) {
  const auto stored = ReadRows(input);
  if (!stored.ok()) return;
  FakeHost host({.persistent = true});
  host.term_now = Term(stored->state.term.value() + 1);
  if (!host.memory.CommitTerm(host.term_now).ok()) return;
  const auto job = Job::Restore(&host, {}, JobUid(0xabcdef), *stored);
  if (!job.ok()) return;
  EG_CHECK(host.memory.Checkpoint(JobUid(0xabcdef), stored->state, stored->snapshot).ok());
  RunOn(host, **job);
}

}  // namespace
}  // namespace evergrad::coordinator

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  evergrad::coordinator::CheckRows(input);
  return 0;
}
