// The surroundings of a job: its settings, the process around it, and everything that it shares
// with those of its parts that send, commit and tell people. Parts that only hold state and decide
// need none of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/log/log.h"
#include "common/plan/plan.h"
#include "common/time/clock.h"
#include "coordinator/jobs/death_backoff.h"
#include "coordinator/jobs/metrics_file.h"
#include "coordinator/jobs/shard_table.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/scheduler/grant_sizing.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobNote;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

struct JobOptions {
  std::uint32_t closures_open_max = 16384;
  std::uint32_t closures_behind_max = 65536;  // at least closures_open_max, else fewer can be open
  GrantSizing sizing;
  std::chrono::milliseconds close_every{100};
  std::chrono::milliseconds seal_timeout{5000};  // 20a: a silent owner is unmapped
  std::chrono::milliseconds report_timeout{
      5000};  // of a job that ends early; one that succeeds waits for its report
  std::chrono::milliseconds retry_min{50}, retry_max{5000};
  std::uint32_t retries_max = 10;  // machine errors of one closure or one Assign, in a row
  std::uint32_t deaths_max =
      100;  // while the job does not get further (death_limit.h), a poison's not counted
  DeathBackoff::Options death_backoff;
  std::uint32_t poison_deaths = 3;
  std::chrono::milliseconds together{200};  // deaths this close to one another blame nobody
  // A worker that lives, and whose work does not advance a step for so long, loses it; 0: never. A
  // step is a batch: seconds at most where it is sized well; describing and exporting count as one
  // step.
  std::chrono::milliseconds step_timeout{300'000};
  // A worker that has had no answer for so long from a server that is there loses its work to
  // workers that can reach it; 0: never.
  std::chrono::milliseconds reach_timeout{5000};
  std::chrono::milliseconds aside_max{
      60'000};  // how long it gets nothing afterwards, once it computes nothing
  // As membership has it; for what is told, and as long is a worker waited for that could run again
  // what nobody here can.
  std::chrono::milliseconds server_lost_after{30'000};
  std::uint64_t server_memory_bytes_max = 0;  // of one job's variables, slots included; 0: any
  std::uint32_t events_max = 1000;
  std::uint32_t curve_points_max = 4000;
  std::uint32_t step_lines_burst = 20000, step_lines_per_second = 500;  // metrics.jsonl
  // Commits, and bytes of their notes, until the job's whole state is written to a persistent store
  // in their place.
  std::uint32_t notes_max = 10000;
  std::uint64_t notes_bytes_max = 16ull << 20;

  // How long to wait after so many failures in a row.
  MonoTime RetryDelay(std::uint32_t failures) const {
    const std::uint32_t doublings = std::min<std::uint32_t>(failures > 0 ? failures - 1 : 0, 16);
    return std::min<std::chrono::milliseconds>(retry_min * (1u << doublings), retry_max);
  }
};

// A file of the runs folder; its contents are made on the file thread.
struct RunFile {
  std::string name;
  std::function<std::string()> contents;
};

// What a job asks of the process around it. Nothing here calls back into the job before returning.
class JobHost : public MetricsFile::Host {
 public:
  virtual std::int64_t WallMillis() const = 0;
  virtual std::string HostName() const = 0;  // of this machine, for people
  virtual Term term() const = 0;
  virtual StateStore& store() = 0;
  virtual fault::Failpoints& failpoints() = 0;
  virtual void Log(log::Level level, absl::string_view text, absl::string_view job) = 0;
  // In order per task; dropped when the task has no session (it is reconciled when it registers).
  virtual void Send(TaskId task, const v1::CoordinatorMessage& message) = 0;
  // Writes each file atomically, in order, off this thread; then `done` from the control executor,
  // later.
  virtual void WriteFiles(const std::string& folder, std::vector<RunFile> files,
                          std::function<void(absl::Status)> done) = 0;
  // Runs `work` on the file thread, in order with everything that is written there, then what it
  // returned on the control executor.
  virtual void OnFileThread(std::function<std::function<void()>()> work) = 0;
  virtual fs::FileSystem& file_system() = 0;  // its calls block: for the file thread
  // "" or why the store takes nothing now: nothing new is begun then.
  virtual std::string StoreTrouble() const = 0;
  // The same as the text of something that waits for the store.
  std::string WaitingForStore() const {
    const std::string trouble = StoreTrouble();
    return trouble.empty() ? "" : "the coordinator's journal: " + trouble;
  }
  virtual std::uint64_t NextNumber() = 0;  // request ids, numbers of describe attempts
  // The job's revision has risen: answers who waits for it.
  virtual void JobChanged(JobUid job) = 0;
  // `task` spoke of an attempt or a shard that another task has: nothing has changed, it is
  // counted.
  virtual void ForeignMessage(TaskId task, absl::string_view what) = 0;
  // We no longer know what the store holds: accept no more work.
  virtual void StoreFailed(const absl::Status& status) = 0;
};

struct JobIdentity {
  JobUid uid;
  config::JobSpec spec;
  std::string yaml;            // effective
  std::string runs_folder;     // absolute
  std::string grant_key = {};  // [34] secret: to servers and the store only, never logged or
                               // shown; "": servers check no grants
};

// The requests of a part to its job. A message that follows from a record is sent after Persist has
// returned true.
class JobActions {
 public:
  // Commits `record` with what the turn has changed and what is to be noted. False: the store
  // failed, send nothing.
  virtual bool Persist(const Record& record) = 0;
  virtual bool PersistWhole() = 0;             // Everything, in place of all records so far.
  virtual v1::JobNote* NoteIfJournaled() = 0;  // Goes with the next Persist; may be null.
  virtual void Event(absl::string_view kind, const std::string& text) = 0;
  virtual void Touch() = 0;       // Progress: the revision rises at the next tick.
  virtual void Pump() = 0;        // Places and grants whatever can be placed and granted now.
  virtual void SendMap() = 0;     // To the workers.
  virtual void SendCloses() = 0;  // To the servers.
  // Values have changed while workers may have read them.
  virtual void AfterRollback(absl::string_view why) = 0;
  virtual void Fail(v1::ErrorDetail cause, bool user) = 0;
  virtual bool grants_stopped() const = 0;  // The job ends: nothing new begins.

 protected:
  ~JobActions() = default;
};

// The base of such a part: everything that the parts of a job share. All of it belongs to the
// job, which outlives its parts.
struct JobPart {
  JobHost* const host_;
  const JobOptions& options_;
  const JobIdentity& id_;
  const std::optional<plan::Plan>& plan_;  // Both are empty until the job is described.
  const v1::Plan& plan_message_;
  const std::unique_ptr<ClosureBook>& book_;  // Null before the plan and after the job's end.
  ShardTable& shards_;
  JobActions& job_;
};

}  // namespace evergrad::coordinator
