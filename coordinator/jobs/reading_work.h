// The closures of a job that only read, and their workers: a ReadingRound that also sends the
// grants and takes the answers.
//
//   Begin ─▶ Grant to usable workers ─▶ Accept: the job uses the answer
//                                   └▶ OnFailed, OnDropped, the end of a worker ─▶ Grant again
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/job_worker.h"
#include "coordinator/jobs/reading_round.h"
#include "coordinator/jobs/worker_roster.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class ReadingWork : public ReadingRound, private JobPart {
 public:
  struct Hooks {
    std::function<bool()> blocked;                     // Returns true while no worker may get work.
    std::function<void(v1::ExportOrder*)> fill_order;  // Fills the order of an export closure.
    // Called if the disk of an export's worker is full.
    std::function<void(Closure*, absl::string_view why)> no_space;
  };
  // `roster` outlives this object.
  ReadingWork(const JobPart& part, WorkerRoster* roster, Hooks hooks)
      : JobPart(part), roster_(*roster), hooks_(std::move(hooks)) {}

  // Begins another round, of closures of `kind`, which are not granted before `not_before`.
  void Begin(v1::WorkKind kind, std::uint64_t closures, MonoTime not_before);
  // Voids the round, and tells its workers.
  void Void();

  // Grants waiting closures to usable workers, the least loaded worker first.
  void Grant();
  void GrantTo(JobWorker& worker, Closure* closure);

  // Takes the answer of a closure. Returns false if the Done is not for the closure's newest
  // attempt, or not from the worker of this attempt.
  bool Accept(const JobWorker& worker, const v1::Done& done);
  // Handles a failed attempt. `elsewhere` is true if the worker cannot take part and other workers
  // get its work. A user's error ends the job, and so do too many errors in a row.
  void OnFailed(const JobWorker& worker, const v1::Failed& failed, bool elsewhere,
                v1::ErrorDetail cause);
  // Takes an attempt that a worker gives back. `asked` is true if the coordinator has recalled the
  // attempt; other workers may then get the closure at once. Returns false if the attempt is not of
  // this round.
  bool OnDropped(TaskId worker, const v1::AttemptDropped& dropped, bool asked);

 private:
  WorkerRoster& roster_;
  const Hooks hooks_;
  v1::WorkKind kind_ = v1::WORK_KIND_UNSPECIFIED;  // Kind of the round's closures.
};

}  // namespace evergrad::coordinator
