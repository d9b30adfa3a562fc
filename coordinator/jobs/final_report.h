// The final report of a job: the contents of every shard at the job's end, as its owner states
// them. While the job runs, other callers can ask the same questions (ShardQueries).
//
//   Begin ─▶ ReportShards to each server ─▶ OnReport ─▶ the answer is kept, then `done`
//   a rollback, or another end of the job: Void; `done` is not called
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
    kComplete,  // It has every shard. A server that sums many gigabytes is waited for.
    kSealed     // For a sealed job: it has the answers that come within report_timeout.
  };
  explicit FinalReport(const JobPart& part);

  ShardQueries& queries() { return queries_; }
  const Answer& answer() const { return answer_; }

  // Asks every owner of a running job, or answers with the final report of an ended one. `done` may
  // be called at once.
  void Ask(bool digests, std::chrono::milliseconds timeout, ShardQueries::Done done);
  // The shards are placed. Voids a former report.
  void Begin(Kind kind, std::function<void()> done);
  void Void();
  void OnReport(TaskId task, const v1::ShardReport& report);
  void Check();                                // Ends the questions whose time is over.
  void End() { queries_.FinishAll(answer_); }  // The job has ended: answers all questions.
  std::string WaitingFor() const;              // The shards that the report waits for; "": none.

  // --- the journal. InvalidArgument: shards without their servers.
  void Fill(v1::JobSnapshot* snapshot) const;
  absl::Status Read(const v1::JobSnapshot& snapshot);

 private:
  void Query(bool digests, std::chrono::milliseconds timeout, std::optional<std::uint64_t> report,
             ShardQueries::Done done);

  ShardQueries queries_;
  std::optional<Kind> kind_;      // Of the report that is under way.
  std::uint64_t generation_ = 0;  // A report of a former generation is void.
  Answer answer_;
};

}  // namespace evergrad::coordinator
