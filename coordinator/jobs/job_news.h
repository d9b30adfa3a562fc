// The news of a job for people: its events, and the fact that its status has changed. An event goes
// to the log of the process, the status, the journal and metrics.jsonl. The revision of the status
// rises with each change that is announced, so a call can wait for the next change.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
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
  // Implements JobActions. Adds an event only for a deterministic job.
  void SayNotReproducible(const std::string& why);
  // Adds the event that an ended job is restored without its variables. The event is in neither the
  // journal nor metrics.jsonl, because each life of the coordinator adds it again.
  void AddRefusal(const std::string& refusal);

  std::uint64_t revision() const { return revision_; }
  void BeginLife(Term term);         // Raises the revision above all revisions of former lives.
  void Touch() { touched_ = true; }  // The next Tick announces a change.
  void Tick(MonoTime now);           // Announces at most one change in 100 ms.
  void TellChange();

 private:
  EventLog& events_;
  RunOutput& output_;
  std::uint64_t revision_ = 1;
  bool touched_ = false;
  MonoTime next_{0};
};

}  // namespace evergrad::coordinator
