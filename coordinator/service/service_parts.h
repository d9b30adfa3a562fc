// Pointers to the parts of the control plane that several classes of this room use.
//
// ControlPlane owns the tables, and the process owns the other parts. All parts outlive the classes
// that hold a copy of this struct. All parts are used only on the control executor, unless the
// header of a part allows other threads.
#pragma once

#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/membership/membership.h"
#include "coordinator/service/audit_log.h"
#include "coordinator/service/control_metrics.h"
#include "coordinator/service/control_options.h"
#include "coordinator/service/durability_gate.h"
#include "coordinator/service/file_writer.h"
#include "coordinator/service/job_table.h"
#include "coordinator/service/life.h"
#include "coordinator/service/log_reads.h"
#include "coordinator/service/server_drains.h"
#include "coordinator/service/session_table.h"
#include "coordinator/service/store_watch.h"
#include "coordinator/service/task_reports.h"
#include "coordinator/service/worker_division.h"

namespace evergrad::coordinator {

struct ServiceParts {
  runtime::Executor* control = nullptr;
  const Clock* clock = nullptr;
  log::Logger* logger = nullptr;
  StateStore* store = nullptr;
  const ControlOptions* options = nullptr;
  Life* life = nullptr;
  StoreWatch* store_watch = nullptr;
  DurabilityGate* gate = nullptr;
  FileWriter* files = nullptr;
  Membership* membership = nullptr;
  TaskReports* reports = nullptr;
  SessionTable* sessions = nullptr;
  JobTable* jobs = nullptr;
  WorkerDivision* division = nullptr;
  ServerDrains* drains = nullptr;
  LogReads* log_reads = nullptr;
  ControlMetrics* metrics = nullptr;
  AuditLog* audit = nullptr;

  Job* JobOf(TaskId worker) const { return jobs->Running(division->JobOf(worker)); }  // may be null
};

}  // namespace evergrad::coordinator
