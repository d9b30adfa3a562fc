// The final report of a job: the contents of every shard at the job's end, as reported by its
// owner. While the job runs, other callers can query the shards in the same way (ShardQueries).
//
//   Begin ─▶ ReportShards to each server ─▶ OnReport ─▶ the answer is kept, then `done`
//   a rollback, or another end of the job: Void; `done` is not called
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/shard_queries.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class FinalReport : private JobPart {
 public:
  using Answer = ShardQueries::Answer;
  enum class Kind {
    // The report must have every shard. The job waits even for a server that needs long to sum
    // many gigabytes.
    kComplete,
    kSealed  // For a sealed job: the report has the answers that arrive within report_timeout.
  };
  explicit FinalReport(const JobPart& part);

  ShardQueries& queries() { return queries_; }
  const Answer& answer() const { return answer_; }

  // If the job runs, asks every owner for the contents of its shards. If the job has ended, answers
  // with the final report. `done` may be called before Ask returns.
  void Ask(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done);
  // Begins a report and voids an earlier one. All shards must have been placed.
  void Begin(Kind kind, std::function<void()> done);
  void Void();
  void OnReport(TaskId task, const v1::ShardReport& report);
  // Ends the queries whose deadline has come. A report of kind kComplete gets more time instead.
  void Check();
  void End() { queries_.FinishAll(answer_); }  // Answers all queries when the job has ended.
  std::string WaitingFor() const;              // The shards that the report waits for, or "".

  // --- the journal. Read returns InvalidArgument if the snapshot has shards without their servers.
  void Fill(v1::JobSnapshot* snapshot) const;
  absl::Status Read(const v1::JobSnapshot& snapshot);

 private:
  void Query(bool digests, std::chrono::milliseconds timeout, std::optional<std::uint64_t> report,
             ShardQueries::Done done);

  ShardQueries queries_;
  std::optional<Kind> kind_;      // Kind of the report in progress.
  std::uint64_t generation_ = 0;  // Number of the newest report. Older reports are void.
  Answer answer_;
};

}  // namespace evergrad::coordinator
