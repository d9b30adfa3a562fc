// The news of a job for people: its events, and that it has changed. An event goes to the log of
// the process, the status, the journal and metrics.jsonl. The revision of the status rises with
// each change that is told, so that a call can wait for the next one.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/run_output.h"

namespace evergrad::coordinator {

class JobNews : private JobPart {
 public:
  // The pointers outlive this object.
  JobNews(const JobPart& part, EventLog* events, RunOutput* output)
      : JobPart(part), events_(*events), output_(*output) {}

  void AddEvent(absl::string_view kind, const std::string& text);
  // As JobActions. Only an event of a deterministic job.
  void SayNotReproducible(const std::string& why);
  // An ended job is restored without its variables. The event is in neither the journal nor
  // metrics.jsonl: each life of the coordinator adds it anew.
  void AddRefusal(const std::string& refusal);

  std::uint64_t revision() const { return revision_; }
  void BeginLife(Term term);         // A call that waits since a former life sees a change.
  void Touch() { touched_ = true; }  // A change that a Tick tells.
  void Tick(MonoTime now);           // At most one change in 100 ms is told.
  void TellChange();

 private:
  EventLog& events_;
  RunOutput& output_;
  std::uint64_t revision_ = 1;
  bool touched_ = false;
  MonoTime next_{0};
};

}  // namespace evergrad::coordinator
