// The state of the coordinator and all changes to it: sessions, membership, jobs and the Control
// RPCs.
//
//   transport threads --(post)--> control executor: owns all of this, decides, sends --(post)-->
//   file thread: writes
//
// Everything except handlers() runs on the control executor, so there are no locks. The owner first
// stops the transport server, then the executors, and then destroys the control plane.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/fault/failpoints.h"
#include "common/fs/roots.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/membership/identity_contest.h"
#include "coordinator/membership/membership.h"
#include "coordinator/service/control_calls.h"
#include "coordinator/service/control_metrics.h"
#include "coordinator/service/control_options.h"
#include "coordinator/service/durability_gate.h"
#include "coordinator/service/file_writer.h"
#include "coordinator/service/job_table.h"
#include "coordinator/service/log_reads.h"
#include "coordinator/service/lost_jobs.h"
#include "coordinator/service/session_table.h"
#include "coordinator/service/store_watch.h"
#include "coordinator/service/waiting_calls.h"
#include "coordinator/service/worker_division.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

class RunFileListing;

class ControlPlane final {
 public:
  // All outlive the control plane.
  struct Parts {
    runtime::Executor* control = nullptr;
    runtime::Executor* files = nullptr;
    fs::FileSystem* file_system = nullptr;  // file system of checkpoints
    const Clock* clock = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;
    StateStore* store = nullptr;
    // Called once on the control executor if this process must end. Nothing was changed, and
    // nothing will change any more. May be empty.
    std::function<void(const absl::Status&)> on_end;
  };
  ControlPlane(ControlOptions options, Parts parts);

  // Restores the jobs of the store. Called on the creating thread, before handlers() and Start. An
  // error names a living job that this version cannot continue (all such jobs are logged). The
  // journal is then unchanged, and the coordinator must not start.
  absl::Status Recover();

  // The table of the Control RPCs, in the order of api.proto.
  static const std::vector<ControlCall>& Calls();

  // Thread-safe. The handlers of the transport post to the control executor; their number is
  // limited, and calls beyond the limit are refused.
  transport::Handlers handlers();

  // All methods below run on the control executor.
  // Opens the window and begins to tick.
  void Start(std::string advertised_address, std::string metrics_address);
  void Stop();  // ends every session; nothing happens afterwards

 private:
  // Facts that `task list` shows in addition to membership. They are kept as long as the task is
  // listed.
  struct TaskFacts {
    v1::Hello hello;  // without its shards and attempts
    v1::WorkerProgress worker;
    v1::ServerProgress server;
    std::int64_t registered_ms = 0, since_ms = 0;
    TaskState last_state = TaskState::kAlive;
    std::string leaving;  // reason for leaving; "" if the task stays
    bool drains = false;  // a server that waits for Drained
    // Jobs that have moved their shards to other servers. The value is "", or the reason why a job
    // could not.
    std::map<std::uint64_t, std::string> drained;
    bool drained_said = false;
  };

  MonoTime Now() const { return parts_.clock->Now(); }
  std::int64_t WallMillis() const { return parts_.clock->WallMillis(); }
  std::uint64_t NextNumber() { return next_number_++; }
  void WhenDurable(std::function<void()> then) { gate_.WhenDurable(std::move(then)); }
  // The view that jobs have of this process (job_host.cc).
  class Host;
  void Send(TaskId task, const v1::CoordinatorMessage& message);
  void JobChanged();
  void ForeignMessage(TaskId task, absl::string_view what);

  // control_plane.cc
  void Tick();
  // Called when the store's health or place has changed, or when more is durable.
  void CheckStore();
  void CheckStorePlace();
  void ScheduleTick();
  void EndWindow();
  void BeginAnew(Term term, std::uint64_t reported);
  void Apply(const std::vector<MembershipChange>& changes);
  void UpdateMetrics();
  // Returns the job that the worker serves, or null.
  Job* JobOf(TaskId worker) const;
  Job* JobFor(
      TaskId task, const v1::Hello& hello,
      std::optional<TaskId> former);      // returns the job that a registering worker will serve
  void Introduce(Job& job, TaskId task);  // introduces a task that registered before the job began
  void FillStatus(const Job& job, v1::JobStatus* status, std::uint64_t events_after) const;
  // NotFound (a user's error) that says since when jobs are known.
  absl::Status NoSuchJob(absl::string_view name_or_uid) const;
  void AfterJobsChanged();
  void StartNextJob();
  void ForgetOldJobs();
  void CheckDrained(TaskId task);  // tells a leaving server when no job has anything there any more
  void CheckDrained();
  void IntroduceTasks(Job& job);
  std::unique_ptr<DivisionHost> MakeDivisionHost();
  std::unique_ptr<JobHost> MakeJobHost();

  // session.cc
  void OpenSession(std::uint64_t number, transport::PeerInfo peer,
                   std::shared_ptr<transport::MessageStream> stream);
  void OnBatch(std::uint64_t number, const v1::TaskBatch* batch);  // null for malformed bytes
  void OnStreamEnd(std::uint64_t number);
  void OnHello(Session& session, const v1::Hello& hello);
  // lost_job_refusal.cc, for line 18a
  LostJobs MakeLostJobs() const;
  // Checks the servers that wait for the end of the window; returns true if this life must end.
  bool EndsForLostJobs();
  // Checks a server that registers later; returns true if it was refused.
  bool RefusesForLostJobs(Session& session, const v1::Hello& hello);
  void EndLife(const std::string& why);
  absl::Status CheckHello(const v1::Hello& hello) const;
  absl::Status OnTaskMessage(Session& session, const v1::TaskMessage& message);
  void OnHeartbeat(const Session& session, const v1::Heartbeat& heartbeat);
  void OnLeaving(const Session& session, const v1::Leaving& leaving);
  absl::Status RouteToJobs(Session& session, const v1::TaskMessage& message,
                           std::optional<std::uint64_t> named);
  void AnswerForNoJob(Session& session, const v1::TaskMessage& message, std::uint64_t job);
  bool CommitTurns();
  void EndTurn();  // ends the turn of the jobs, once for all batches that have arrived
  void Reject(std::uint64_t number, absl::string_view kind, absl::string_view message, bool exit,
              std::chrono::milliseconds retry_after,
              const std::optional<RegisterVerdict::Holder>& holder = std::nullopt);
  void CloseSession(std::uint64_t number);  // tells membership, too

  // registration.cc: the steps in which a Hello becomes a registered task, or is refused
  struct Registration;
  void Register(std::uint64_t number);
  // Identifies the task by its certificate and Hello; returns false if it was refused.
  bool Identify(Registration& one);
  bool CheckEndpoint(const Registration& one, const std::string& claimed);
  // Ends the former session, and removes proofs that belong to other tasks.
  void Fence(Registration& one);
  void Enter(Registration& one);      // enters the task into the tables of sessions and tasks
  bool Reconcile(Registration& one);  // compares the task's shards or attempts with those of the
                                      // jobs; returns false if it was refused
  void AdmitWorker(Registration& one);
  // Sends Registered, then messages that end obsolete shards and attempts.
  void Welcome(Registration& one);
  void EndHeld(Registration& one);
  void SayRefused(const TaskHello& said, const RegisterVerdict& verdict);

  // The handlers of the Control RPCs (control_calls.h). Each is a specialization, in a file that is
  // named for the RPC.
  template <class Request>
  void Serve(const Request& request, Responder responder);
  template <class Request>
  static ControlCall Row(std::vector<absl::string_view> roles);
  void OnUnary(const ControlCall& call, const std::string& request, const Responder& responder);
  void FillOwnRow(v1::TaskRow* row) const;  // the coordinator's row of ListTasks
  void FillWorkerRow(const TaskEntry& entry, const v1::WorkerProgress& worker,
                     v1::TaskRow* row) const;
  void FillServerRow(const TaskEntry& entry, const v1::ServerProgress& server,
                     v1::TaskRow* row) const;
  // Returns a GetJobResponse.
  std::string JobAnswer(const Job& job, std::uint64_t events_after) const;
  // run_files.cc
  void StepListing(std::shared_ptr<RunFileListing> listing, v1::ListRunFilesResponse response,
                   Responder responder);
  // Returns false if the call was refused because too many are in progress.
  bool BeginFileCall(const Responder& responder);
  // closure_calls.cc, for the RPCs of functions jobs
  template <class Request, class Ask>
  void AskJob(const Request& request, const Responder& responder, Ask ask);

  const ControlOptions options_;
  const Parts parts_;
  const std::uint64_t life_id_;
  std::string address_, metrics_address_;
  std::int64_t started_ms_ = 0;
  bool stopped_ = false;
  bool life_over_ = false;                  // line 18a: no task is registered any more
  std::set<std::uint64_t> lost_jobs_said_;  // processes whose shards of lost jobs are in the log

  // Line 18.
  Term term_;
  bool term_known_ = false, window_open_ = true;
  MonoTime window_until_{0};
  std::uint64_t highest_reported_ = 0;
  StoreWatch store_;
  DurabilityGate gate_;
  FileWriter files_;

  Membership membership_;
  IdentityContest contest_;
  std::uint64_t too_often_ = 0;  // number of registrations refused since the last such message
  std::optional<MonoTime> too_often_said_;
  std::map<TaskId, TaskFacts> facts_;
  SessionTable sessions_;
  std::atomic<std::uint64_t> next_session_{1};
  std::atomic<std::uint32_t> open_sessions_{0};
  std::shared_ptr<std::atomic<std::uint32_t>> calls_;

  const std::unique_ptr<JobHost> job_host_;
  JobTable jobs_;
  class Division;  // division_host.cc
  const std::unique_ptr<DivisionHost> division_host_;
  WorkerDivision division_;
  bool jobs_changed_posted_ = false, turn_posted_ = false;
  WaitingCalls job_waiters_, closure_calls_;
  struct EarlyCall {  // a call received before the term is known
    Responder responder;
    std::function<void()> serve;
  };
  std::vector<EarlyCall> early_calls_;
  LogReads log_reads_;
  std::uint32_t file_calls_ = 0;  // listings and reads of runs' files on the file thread
  std::uint64_t next_number_ = 1;

  ControlMetrics metrics_;
  JobGauges job_gauges_;
};

// Answers with a serialized message, or with the error.
void AnswerWith(transport::UnaryResponder& responder, const google::protobuf::MessageLite& message);

}  // namespace evergrad::coordinator
