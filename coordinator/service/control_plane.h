// The control plane constructs the coordinator's parts, routes sessions, calls and ticks to them,
// and ends them.
//
//   transport threads --(post)--> control executor: owns all of this, decides, sends --(post)-->
//   file thread: writes
//
// Everything except handlers() runs on the control executor, so there are no locks. The owner first
// stops the transport server, then the executors, and then destroys the control plane.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/fault/failpoints.h"
#include "common/health/readiness.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/service/admission.h"
#include "coordinator/service/audit_log.h"
#include "coordinator/service/closure_calls.h"
#include "coordinator/service/control_calls.h"
#include "coordinator/service/control_options.h"
#include "coordinator/service/job_calls.h"
#include "coordinator/service/job_supervisor.h"
#include "coordinator/service/registration.h"
#include "coordinator/service/run_copies.h"
#include "coordinator/service/run_file_calls.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/task_calls.h"
#include "coordinator/service/task_ends.h"
#include "coordinator/service/task_messages.h"
#include "coordinator/service/transport_intake.h"

namespace evergrad::coordinator {

class ControlPlane final {
 public:
  // The objects behind these pointers outlive the control plane.
  struct Parts {
    runtime::Executor* control = nullptr;
    runtime::Executor* files = nullptr;
    runtime::Executor* checkpoints = nullptr;  // null: `files` has the checkpoints, too
    runtime::Executor* copies = nullptr;       // for ControlOptions::runs_copy; may be null
    fs::FileSystem* file_system = nullptr;     // file system of checkpoints
    fs::FileSystem* copy_files = nullptr;      // file system of the copies of runs; may be null
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;
    StateStore* store = nullptr;
    health::Readiness* readiness = nullptr;  // may be null
    // Called once on the control executor if this process must end. This life has not changed the
    // store before the call, and does not change it afterwards. The function may be empty.
    std::function<void(const absl::Status&)> on_end;
  };
  ControlPlane(ControlOptions options, const Parts& parts);

  // Restores the jobs of the store. Call it on the creating thread, before handlers() and Start. An
  // error names a living job that this version cannot continue (all such jobs are logged). The
  // journal is then unchanged, and the coordinator must not start.
  absl::Status Recover();

  // Thread-safe. The handlers of the transport post each call to the control executor. The number
  // of calls in progress is limited, and further calls are refused.
  transport::Handlers handlers() { return intake_.handlers(); }

  // Start and Stop run on the control executor. Start opens the start-up window and begins to tick.
  void Start(std::string advertised_address, std::string metrics_address);
  void Stop();  // ends every session and all work

 private:
  void Tick();
  // Called when the health or the place of the store has changed, or when more changes are durable.
  void CheckStore();
  void UpdateMetrics();
  void UpdateReadiness();
  void OpenSession(std::uint64_t number, transport::PeerInfo peer,
                   std::shared_ptr<transport::MessageStream> stream);
  // `batch` is null if the bytes are malformed.
  void OnBatch(std::uint64_t number, const v1::TaskBatch* batch);
  absl::Status OnMessage(Session& session, const v1::TaskBatch& batch,
                         const v1::TaskMessage& message);
  void OnCall(const ControlCall& call, const Caller& caller, const std::string& request,
              const Responder& responder);

  TransportIntake::Receiver MakeReceiver();

  const ControlOptions options_;
  Life life_;
  StoreWatch store_watch_;
  DurabilityGate gate_;
  FileWriter files_;

  // --- tasks
  Membership membership_;
  TaskReports reports_;
  ControlMetrics metrics_;
  SessionTable sessions_;
  LogReads log_reads_;

  const std::shared_ptr<AuditLog> audit_;  // shared with the calls
  const ServiceParts parts_;               // pointers to all parts
  health::Condition journal_open_, window_over_;

  // --- jobs
  const std::unique_ptr<JobHost> job_host_;  // outlives the jobs
  JobTable jobs_;
  ServerDrains drains_;
  const std::unique_ptr<DivisionHost> division_host_;
  WorkerDivision division_;
  JobSupervisor supervisor_;

  // --- messages of tasks
  TaskEnds ends_;
  TaskMessages messages_;
  Registrar registrar_;
  Admission admission_;

  // --- calls of users
  JobCalls job_calls_;
  ClosureCalls closure_calls_;
  TaskCalls task_calls_;
  RunFileCalls run_file_calls_;
  RunCopies run_copies_;

  JobGauges job_gauges_;
  TransportIntake intake_;
};

}  // namespace evergrad::coordinator
