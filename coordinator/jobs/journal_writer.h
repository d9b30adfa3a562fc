// Writes a job to its store: records of the ledger together with the notes of the job's parts, and
// snapshots of the whole job that replace them.
//
//   Add, Note, NoteCounted ─▶ Commit: one record and one note ─▶ … ─▶ full() ─▶ CommitWhole
//
// A store that is not persistent gets the records alone. Not thread-safe: only the control executor
// calls it. An error of the store is reported to the host, and the job must then send no message
// that follows from the commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/closures/closure_book.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/metrics_file.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class CountedClosure;
class JobCounters;
class JobNote;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class JournalWriter {
 public:
  // `host`, `options` and `lines` outlive this object. `fill_counters` sets the counters of each
  // note.
  JournalWriter(JobHost* host, const JobOptions* options, JobUid uid, MetricsFile* lines,
                std::function<void(v1::JobCounters*)> fill_counters);
  ~JournalWriter();

  bool on() const { return host_->store().persistent(); }  // Notes and snapshots are kept.

  // --- the contents of the next commit
  void Add(const Record& record) { AppendRecord(record, &record_); }
  v1::JobNote* Note();  // Null if the store is not persistent.
  // Adds a worker's report to the note, because its Done was the first success of a closure of the
  // plan. Does nothing if the store is not persistent.
  void NoteCounted(const std::string& worker, ClosureId closure, const v1::Done& done);

  // --- commits. They return false if the store failed.
  bool Commit();
  // Replaces the whole content of the store for this job.
  bool CommitWhole(const DurableState& state, const v1::JobSnapshot& snapshot);
  // Returns whether the commits since the newest snapshot have reached a limit. The next commit
  // should then write a snapshot.
  bool full() const;
  // Requests a snapshot soon, because some state has changed that notes do not hold.
  void WantWhole() { whole_wanted_ = true; }
  bool whole_wanted() const { return whole_wanted_; }

 private:
  std::string TakeNote();

  JobHost* const host_;
  const JobOptions& options_;
  const JobUid uid_;
  MetricsFile* const lines_;
  const std::function<void(v1::JobCounters*)> fill_counters_;
  Record record_;
  std::unique_ptr<v1::JobNote> note_;  // Null if the note has no content except `counted_`.
  std::string counted_;                // The counted closures of the note, serialized.
  std::unique_ptr<v1::CountedClosure> counting_;  // A member, to reuse its memory.
  std::uint32_t notes_ = 0;                       // Number of commits since the newest snapshot.
  std::uint64_t notes_bytes_ = 0;                 // Size of the notes of these commits.
  bool whole_wanted_ = false;
};

}  // namespace evergrad::coordinator
