// The closures of a job that only read, with the workers that run them: a ReadingRound that sends
// its grants and takes the answers.
//
//   Begin ─▶ Grant to usable workers ─▶ Accept: the job uses the answer
//                                   └▶ OnFailed, OnDropped, the end of a worker ─▶ Grant again
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
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
    std::function<bool()> blocked;                     // Nobody gets anything now.
    std::function<void(v1::ExportOrder*)> fill_order;  // Of an export that is granted.
    // The disk of an export's worker is full.
    std::function<void(Closure*, absl::string_view why)> no_space;
  };
  // `roster` outlives this object.
  ReadingWork(const JobPart& part, WorkerRoster* roster, Hooks hooks)
      : JobPart(part), roster_(*roster), hooks_(std::move(hooks)) {}

  // Another round of closures of `kind` begins. They are not granted before `not_before`.
  void Begin(v1::WorkKind kind, std::uint64_t closures, MonoTime not_before);
  // The round is void, and its workers are told.
  void Void();

  // Grants the closures that wait to usable workers, the least loaded first.
  void Grant();
  void GrantTo(JobWorker& worker, Closure* closure);

  // Returns false if the Done is not that of the closure's newest attempt by its worker.
  bool Accept(const JobWorker& worker, const v1::Done& done);
  // `elsewhere`: the worker cannot take part, and others get its work. Too many errors in a row end
  // the job, and so does an error of the user's.
  void OnFailed(const JobWorker& worker, const v1::Failed& failed, bool elsewhere,
                v1::ErrorDetail cause);
  // The worker gives the attempt back. `asked`: it was asked to, so others may have it at once.
  // Returns false if the attempt is none of this round.
  bool OnDropped(TaskId worker, const v1::AttemptDropped& dropped, bool asked);

 private:
  WorkerRoster& roster_;
  const Hooks hooks_;
  v1::WorkKind kind_ = v1::WORK_KIND_UNSPECIFIED;  // Of the round's closures.
};

}  // namespace evergrad::coordinator
