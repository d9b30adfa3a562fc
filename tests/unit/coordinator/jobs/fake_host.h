// The host of a job, or of one part of a job, in tests. It has a manual clock, a file thread whose
// tasks wait in `later`, and a record of the messages that were sent.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/client/protocol.h"
#include "common/fs/file_system.h"
#include "common/snapshot/messages.h"
#include "common/snapshot/shard_file.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_files/memory_file_system.h"

namespace evergrad::coordinator {

class FakeHost final : public JobHost {
 public:
  explicit FakeHost(MemoryStateStore::Options store_options = {}) : memory(store_options) {}
  MonoTime Now() const override { return clock.Now(); }
  std::int64_t WallMillis() const override {
    return 1'700'000'000'000 + clock.WallMillis() + wall_offset_ms;
  }
  std::string HostName() const override { return "near"; }
  Term term() const override { return term_now; }
  StateStore& store() override { return memory; }
  fault::Failpoints& failpoints() override { return points; }
  void Log(log::Level, absl::string_view text, absl::string_view) override {
    log_lines.emplace_back(text);
  }
  void Send(TaskId task, const v1::CoordinatorMessage& message) override {
    sent[task].push_back(message);
  }
  void WriteFiles(const std::string& folder, std::vector<RunFile> written,
                  std::function<void(absl::Status)> done) override {
    for (const RunFile& file : written) files[folder + "/" + file.name] = file.contents();
    later.push_back([this, done] {
      if (while_written) while_written();
      done(absl::OkStatus());
    });
  }
  void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                   std::function<void(absl::Status)> done) override {
    later.push_back([this, path = folder + "/" + name, lines, done] {
      std::string& file = files[path];
      const bool room = file.size() + lines.size() <= lines_bytes_max;
      if (room || tears)
        file += lines.substr(
            0, lines_bytes_max - std::min<std::uint64_t>(lines_bytes_max, file.size()));
      done(room ? absl::OkStatus() : absl::ResourceExhaustedError("no space left on device"));
    });
  }
  void RestoreLines(const std::string& folder, const std::string& name, std::uint64_t offset,
                    std::string tail, std::function<void(absl::Status)> done) override {
    // As in fs::RestoreEnd, the bytes of the file that exist already are not compared with `tail`.
    std::string& file = files[folder + "/" + name];
    const bool room = offset + tail.size() <= lines_bytes_max;
    if (file.size() > offset + tail.size())
      file.resize(offset + tail.size());
    else if (file.size() >= offset && (room || tears))
      file += tail.substr(file.size() - offset,
                          lines_bytes_max - std::min<std::uint64_t>(lines_bytes_max, file.size()));
    else if (room)
      file += tail;
    later.push_back([done, room] {
      done(room ? absl::OkStatus() : absl::ResourceExhaustedError("no space left on device"));
    });
  }
  void WhenDurable(std::function<void()> then) override { then(); }
  void OnFileThread(std::function<std::function<void()>()> work) override {
    later.push_back([this, work] {
      std::function<void()> back = work();
      if (hold_file_answers)
        held_file_answers.push_back(std::move(back));
      else
        back();
    });
  }
  fs::FileSystem& file_system() override { return *disk; }
  std::string StoreTrouble() const override { return trouble; }
  std::uint64_t NextNumber() override { return ++number; }
  void JobChanged(JobUid) override { ++changes; }
  void ForeignMessage(TaskId, absl::string_view what) override { foreign.emplace_back(what); }
  void StoreFailed(const absl::Status& status) override { store_failure = status; }

  bool hold_file_answers =
      false;  // if true, the results of finished file tasks wait in `held_file_answers`
  std::vector<std::function<void()>> held_file_answers;
  ManualClock clock;
  std::shared_ptr<fs::MemoryFileSystem> disk =
      // a job that resumes from another job's checkpoint gets the disk of that job
      std::make_shared<fs::MemoryFileSystem>();
  MemoryStateStore memory;
  fault::Failpoints points;
  Term term_now{1};
  std::map<TaskId, std::deque<v1::CoordinatorMessage>> sent;
  std::map<std::string, std::string> files;
  std::deque<std::function<void()>> later;
  // called after the files of a job were written and before the job is told
  std::function<void()> while_written;
  std::uint64_t lines_bytes_max = ~0ull;  // size of metrics.jsonl at which the disk is full
  bool tears = false;  // if true, a failed write leaves the bytes that still fitted
  std::vector<std::string> log_lines, foreign;
  std::uint64_t number = 0, changes = 0;
  absl::Status store_failure;
  std::string trouble;
  std::int64_t wall_offset_ms = 0;
};

// Writes the shard file that a server writes for the order CutShards. All values are zeros, because
// the tests read only the ledger, the header and the footer of the file.
inline v1::ShardFile WriteShardFile(fs::FileSystem* disk, const v1::CutShards& cut,
                                    const v1::ShardSpec& spec, const v1::Stamp& epoch,
                                    const v1::Stamp& start, std::uint64_t lsn,
                                    const IntervalSet& done, const IntervalSet& refused) {
  const auto ok = [](const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  };
  v1::ShardFileHeader header;
  header.set_job_uid(cut.job_uid());
  header.set_shard(spec.shard());
  *header.mutable_epoch() = epoch;
  *header.mutable_start() = start;
  header.set_lsn(lsn);
  header.set_kind(v1::SHARD_KIND_DENSE);
  header.set_plan_fingerprint(cut.plan_fingerprint());
  *header.mutable_dense() = spec;
  v1::ShardFile said;
  said.set_shard(spec.shard());
  said.set_file(
      snapshot::ShardFileName(ShardId(spec.shard()), client::FromProto<ShardEpoch>(epoch), lsn));
  *said.mutable_epoch() = epoch;
  *said.mutable_start() = start;
  said.set_lsn(lsn);
  *said.mutable_done() = client::ToProto(done);
  *said.mutable_refused() = client::ToProto(refused);
  ok(disk->MakeFolders(cut.folder()));
  auto file = disk->Create(fs::JoinUri(cut.folder(), said.file()));
  ok(file.status());
  auto writer = snapshot::ShardFileWriter::Begin(file->get(), header);
  ok(writer.status());
  ok((*writer)->BeginSection(snapshot::Section::kValues, 0));
  std::uint64_t row_elements = 1;
  for (int d = 1; d < spec.variable().shape_size(); ++d) row_elements *= spec.variable().shape(d);
  const std::vector<std::byte> zeros((spec.row_end() - spec.row_begin()) * row_elements * 4);
  ok((*writer)->Append(zeros));
  ok((*writer)->WriteCounters({}));
  v1::ShardLedger ledger;
  *ledger.mutable_done() = said.done();
  *ledger.mutable_refused() = said.refused();
  ok((*writer)->WriteLedger(ledger));
  const auto digest = (*writer)->Finish();
  ok(digest.status());
  ok((*file)->Commit());
  said.set_bytes(digest->bytes);
  said.set_sha256(
      std::string(reinterpret_cast<const char*>(digest->sha256.data()), digest->sha256.size()));
  return said;
}

}  // namespace evergrad::coordinator
