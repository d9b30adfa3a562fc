// The environment of a job: its settings, the process around it, and the objects that it shares
// with its parts. Parts that send messages, commit records or add events need this header. Parts
// that only hold state and make decisions do not need this header.
//
// Not thread-safe: every call comes from the coordinator's control executor.
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

// The settings of all jobs of a coordinator.
struct JobOptions {
  std::uint32_t closures_open_max = 16384;
  // A closure is granted only if its number exceeds the number of the oldest closure that has not
  // ended by less than this limit. A limit below closures_open_max also limits the open closures.
  std::uint32_t closures_behind_max = 65536;
  GrantSizing sizing;
  std::chrono::milliseconds close_every{100};
  // If the owner of a shard does not answer a Seal within this time, no server owns the shard any
  // more (LEDGER line 20a).
  std::chrono::milliseconds seal_timeout{5000};
  // Time limit for the report of a job that ends early. A job that succeeds waits for its report
  // without a limit.
  std::chrono::milliseconds report_timeout{5000};
  std::chrono::milliseconds retry_min{50}, retry_max{5000};
  // Largest number of consecutive machine errors of one closure or one Assign.
  std::uint32_t retries_max = 10;
  // Limit for the deaths of tasks while the job makes no progress (death_backoff.h). Deaths for
  // which a closure is blamed (poison.h) do not count.
  std::uint32_t deaths_max = 100;
  DeathBackoff::Options death_backoff;
  std::uint32_t poison_deaths = 3;
  // If two tasks die within this time of each other, no closure is blamed for these deaths.
  std::chrono::milliseconds together{200};
  // A connected worker loses its work if the work does not advance by a step for this time; 0 for
  // never. A step is a batch, which takes a few seconds at most if its size is chosen well. A
  // describe or export closure counts as one step.
  std::chrono::milliseconds step_timeout{300'000};
  // A worker that gets no answer from a connected server for this time loses its work to workers
  // that can reach the server; 0 for never.
  std::chrono::milliseconds reach_timeout{5000};
  // Longest time for which a worker that lost its work, or that cannot take part, gets no work.
  std::chrono::milliseconds aside_max{60'000};
  // The same setting as in membership: a server that is disconnected for this time is lost. If no
  // connected worker can do a repair, the job also waits for this time for another worker.
  std::chrono::milliseconds server_lost_after{30'000};
  // Limit for the memory of one job's variables with optimizer state; 0 for no limit.
  std::uint64_t server_memory_bytes_max = 0;
  std::uint32_t events_max = 1000;
  std::uint32_t curve_points_max = 4000;
  // Limits for lines of metrics.jsonl.
  std::uint32_t step_lines_burst = 20000, step_lines_per_second = 500;
  // When a persistent store holds this number of commits of a job, or this number of bytes of their
  // notes, a snapshot of the whole job replaces them.
  std::uint32_t notes_max = 10000;
  std::uint64_t notes_bytes_max = 16ull << 20;

  // Returns the wait before the next attempt after `failures` failures in a row.
  MonoTime RetryDelay(std::uint32_t failures) const {
    const std::uint32_t doublings = std::min<std::uint32_t>(failures > 0 ? failures - 1 : 0, 16);
    return std::min<std::chrono::milliseconds>(retry_min * (1u << doublings), retry_max);
  }
};

// A file of the runs folder. `contents` runs on the file thread.
struct RunFile {
  std::string name;
  std::function<std::string()> contents;
};

// The process around a job. No method calls back into the job before it returns.
class JobHost : public MetricsFile::Host {
 public:
  virtual std::int64_t WallMillis() const = 0;
  virtual std::string HostName() const = 0;  // The name of this machine, for messages.
  virtual Term term() const = 0;
  virtual StateStore& store() = 0;
  virtual fault::Failpoints& failpoints() = 0;
  virtual void Log(log::Level level, absl::string_view text, absl::string_view job) = 0;
  // Sends a message. Messages to one task keep their order. A message to a task without a session
  // is dropped, because the task gets the current state when it registers.
  virtual void Send(TaskId task, const v1::CoordinatorMessage& message) = 0;
  // Writes each file atomically, in order, on the file thread. The control executor calls `done`
  // later.
  virtual void WriteFiles(const std::string& folder, std::vector<RunFile> files,
                          std::function<void(absl::Status)> done) = 0;
  // Runs `work` on the file thread, in order with all writes, and then runs the returned function
  // on the control executor.
  virtual void OnFileThread(std::function<std::function<void()>()> work) = 0;
  // Like OnFileThread, for checkpoints. A process has another thread for them, so that a slow
  // object store does not hold up the files of runs.
  virtual void OnCheckpointThread(std::function<std::function<void()>()> work) {
    OnFileThread(std::move(work));
  }
  virtual fs::FileSystem& file_system() = 0;  // Blocks; use it on the checkpoint thread.
  // Returns the reason why the store accepts no commits now, or "". While there is a reason, the
  // job begins no new work.
  virtual std::string StoreTrouble() const = 0;
  // Returns the reason of StoreTrouble as the text of a wait, or "".
  std::string WaitingForStore() const {
    const std::string trouble = StoreTrouble();
    return trouble.empty() ? "" : "the coordinator's journal: " + trouble;
  }
  virtual std::uint64_t NextNumber() = 0;  // Returns a new id for a request or a describe attempt.
  // Answers the calls that wait for a change of the job, because its revision has risen.
  virtual void JobChanged(JobUid job) = 0;
  // Counts a message of `task` about an attempt or a shard of another task. A message of this kind
  // changes nothing.
  virtual void ForeignMessage(TaskId task, absl::string_view what) = 0;
  // Reports that a commit has failed. The contents of the store are then unknown, so the
  // coordinator accepts no more work.
  virtual void StoreFailed(const absl::Status& status) = 0;
};

struct JobIdentity {
  JobUid uid;
  config::JobSpec spec;
  std::string yaml;         // The effective YAML.
  std::string runs_folder;  // An absolute path.
  // A secret that only servers and the store get (LEDGER line 34). The key is never logged or
  // shown. If it is "", servers do not check grants.
  std::string grant_key = {};
  // The task of the certificate of the user who submitted the job: "user/alice". "" for a job that
  // was submitted without TLS, or whose journal is from an older build.
  std::string owner = {};
  std::string request_id = {};  // SubmitJobRequest.request_id
};

// The former registration of a task's identity, which the task replaces. `died` is true if another
// process had the former registration.
struct FormerTask {
  TaskId task;
  bool died = false;
};

// The requests of a part to its job. A part sends a message that follows from a record only after
// Persist has returned true.
class JobActions {
 public:
  // Commits `record`, together with the changes of the turn (done_turn.h) and the notes
  // (journal_writer.h). Returns false if the store failed; the caller must then send nothing.
  virtual bool Persist(const Record& record) = 0;
  virtual bool PersistWhole() = 0;  // Commits the whole state in place of all records.
  // The note of the next Persist; null if the store keeps no notes.
  virtual v1::JobNote* NoteIfJournaled() = 0;
  virtual void Event(absl::string_view kind, const std::string& text) = 0;
  virtual void Touch() = 0;    // Notes progress: the revision rises at the next tick.
  virtual void Pump() = 0;     // Places shards and grants closures, as far as this is possible now.
  virtual void SendMap() = 0;  // Sends the map to the workers.
  // Sends Close messages, which name the ended closures, to the servers (LEDGER line 24).
  virtual void SendCloses() = 0;
  // Repeats the evaluation or report in progress, because values of a shard have changed and
  // workers may have read the former values.
  virtual void AfterRollback(absl::string_view why) = 0;
  // If the job is deterministic, adds the event that its results may differ in bits, because work
  // was interrupted.
  virtual void SayNotReproducible(const std::string& why) = 0;
  virtual void Fail(v1::ErrorDetail cause, bool user) = 0;
  virtual bool grants_stopped() const = 0;  // True if no new work begins, because the job ends.

 protected:
  ~JobActions() = default;
};

// The base of a part that sends messages or commits records. The base has the objects that the
// parts of a job share. These objects belong to the job, which outlives its parts.
struct JobPart {
  JobHost* const host_;
  const JobOptions& options_;
  const JobIdentity& id_;
  const std::optional<plan::Plan>& plan_;  // Empty until the job is described, like plan_message_.
  const v1::Plan& plan_message_;
  const std::unique_ptr<ClosureBook>& book_;  // Null before the plan and after the job's end.
  ShardTable& shards_;
  JobActions& job_;
};

}  // namespace evergrad::coordinator
