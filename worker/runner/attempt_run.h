// One granted attempt, from its beginning to its end: the interface that the runner drives, and the
// common part of all kinds of work. Each kind has one file: training_run and function_run (which
// make updates, see update_run.h), evaluation_run, describe_run, export_run.
//
//   Start ─▶ OnExchange … (values pulled, pushes settled) ─▶ a result of the compute executor ─▶ …
//         └▶ OnFileAnswer, OnSession (export)                                        │
//   owner's ReportDone, Fail or GiveUp ◀─────────────────────────────────────────────┘
//
// Every method runs on the control executor. Compute hands work to the compute executor; the
// continuation runs on the control executor again. Continuations do nothing once the attempt has
// ended. An attempt ends when its owner calls Cancel and releases it, inside ReportDone, Fail or
// GiveUp. After one of these calls a run must return at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/fault/failpoints.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/attempt_reports.h"
#include "worker/runner/compute_queue.h"
#include "worker/runner/exchange.h"
#include "worker/runner/failpoint_site.h"
#include "worker/runner/job_context.h"
#include "worker/runner/session_messages.h"

namespace evergrad::worker {

// The interface of the runner for its running attempt. Each call ends the attempt.
class AttemptOwner {
 public:
  virtual ~AttemptOwner() = default;
  // Reports Done. Without `send_now` the report is kept and sent in the next session.
  virtual void ReportDone(bool send_now) = 0;
  virtual void Fail(const absl::Status& status) = 0;
  // Reports an error of the compute executor, which may mean that the device is lost.
  virtual void FailCompute(const absl::Status& status) = 0;
  virtual void GiveUp(const AttemptReports::Dropped& dropped) = 0;
};

class AttemptRun : public std::enable_shared_from_this<AttemptRun> {
 public:
  // All objects outlive the run; `failpoints` may be null.
  struct Environment {
    AttemptOwner* owner = nullptr;
    JobContext* job = nullptr;
    AttemptBook* book = nullptr;
    ComputeQueue* compute = nullptr;
    runtime::Executor* control = nullptr;
    log::Logger* logger = nullptr;
    fault::Failpoints* failpoints = nullptr;
    const Clock* clock = nullptr;  // may be null
    Exchange::Environment exchange;
  };
  AttemptRun(const Environment& environment, Work work)
      : env_(environment), work_(std::move(work)) {}
  virtual ~AttemptRun() = default;
  AttemptRun(const AttemptRun&) = delete;
  AttemptRun& operator=(const AttemptRun&) = delete;

  const Work& work() const { return work_; }

  // --- The runner calls these methods. It shares the ownership of the run during a call, so the
  // run may end itself. The runner calls Start once, after AttemptBook::Begin.
  virtual void Start() = 0;
  virtual void OnMap();
  // The runner calls OnSession in each new session. Messages of the previous session may be lost.
  virtual void OnSession() {}
  virtual void OnFileAnswer(const v1::RunFileAnswer&) {}
  // Handles a recall by the coordinator. The attempt continues nevertheless, unless it waits for
  // memory of a server.
  void Recall();
  // Handles the drain of the worker. A run of updates ends after its running step, at most
  // `step_max` from now. Other work is handed back at once, unless its report is being sent.
  virtual void Drain(std::chrono::milliseconds step_max);
  // Releases the objects that the run shares with other threads.
  virtual void Cancel() {}

  void FillProgress(v1::WorkerProgress* progress) const;
  // Fills the part of Done that belongs to this kind of work. The runner calls FillDone once, at
  // the end.
  virtual void FillDone(v1::Done* done) = 0;
  // The runner calls OnReported when the book holds the report. The run then ends.
  virtual void OnReported() {}

 protected:
  // Returns a number for heartbeats that rises while the attempt advances.
  virtual std::uint32_t Progressed() const { return 0; }
  // Starts the next possible operation, after values were pulled or pushes were settled.
  virtual void OnExchange() {}

  // Returns a continuation that calls `f` unless the attempt has ended. `f` may use `this`.
  template <class F>
  auto IfRunning(F f) {
    return [weak = weak_from_this(), f = std::move(f)](auto&&... arguments) mutable {
      if (const auto self = weak.lock()) f(std::forward<decltype(arguments)>(arguments)...);
    };
  }
  // Runs `work` on the compute executor, then `then` with the result on the control executor.
  template <class W, class Then>
  void Compute(W work, Then then) {
    env_.compute->Run(std::move(work), IfRunning(std::move(then)));
  }
  // Runs `then` on the control executor, at once or after the failpoint's delay. An error of the
  // failpoint ends the attempt.
  template <class Then>
  void PassFailpoint(absl::string_view name, Then then) {
    AtFailpoint(env_.failpoints, name, env_.control,
                IfRunning([this, then = std::move(then)](const absl::Status& hit) mutable {
                  if (!hit.ok()) return env_.owner->Fail(hit);
                  then();
                }));
  }

  // Opens the exchange with the servers; this run handles its events. Sends the first pull of all
  // dense values at once, unless a training closure already has these values from the previous
  // attempt.
  void OpenExchange();
  // Ends the attempt successfully: passes the failpoint and sends the report.
  void Finish();
  bool finishing() const { return finishing_; }
  // Hands the attempt back if it waits for memory of a server while another job needs the worker,
  // because the wait may last until the other job has ended. Returns whether the attempt was handed
  // back.
  bool GiveBackIfPaused();
  log::Context About() const { return {env_.job->name(), ClosureName(work_)}; }

  const Environment env_;
  const Work work_;
  // Null for a describe closure. The exchange is shared with its own callbacks.
  std::shared_ptr<Exchange> exchange_;
  bool draining_ = false;

 private:
  bool recalled_ = false, finishing_ = false;
};

// Adds the step to the message of `status`. A user error stays a user error.
absl::Status AboutStep(const absl::Status& status, ClosureId closure, std::uint32_t step);

}  // namespace evergrad::worker
