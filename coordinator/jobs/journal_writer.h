// Writes a job to its store: records of the ledger with the notes of the job's parts beside them,
// and whole snapshots in their place.
//
//   Add, Note, NoteCounted ─▶ Commit: one record and one note ─▶ … ─▶ full() ─▶ CommitWhole
//
// A store that is not persistent gets the records alone. Not thread-safe: the control executor's.
// An error of the store is told to the host: nothing may be sent then that follows from the commit.
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
  // `host`, `options` and `lines` outlive this object. `fill_counters` says the counters that each
  // note carries.
  JournalWriter(JobHost* host, const JobOptions* options, JobUid uid, MetricsFile* lines,
                std::function<void(v1::JobCounters*)> fill_counters);
  ~JournalWriter();

  bool on() const { return host_->store().persistent(); }  // Somebody reads notes and snapshots.

  // --- what goes with the next commit
  void Add(const Record& record) { AppendRecord(record, &record_); }
  v1::JobNote* Note();  // Null if the store is not persistent.
  // A closure of the plan has succeeded for the first time: its worker's report is a part of the
  // note. Does nothing if the store is not persistent.
  void NoteCounted(const std::string& worker, ClosureId closure, const v1::Done& done);

  // --- commits. They return false if the store failed.
  bool Commit();
  // Replaces everything that the store holds of the job.
  bool CommitWhole(const DurableState& state, const v1::JobSnapshot& snapshot);
  // So much has been noted since the last snapshot that the next commit is to be a whole one.
  bool full() const;
  // Something has changed that no note holds: a whole commit is due soon.
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
  std::unique_ptr<v1::JobNote> note_;             // Null: there is nothing to note but
  std::string counted_;                           // its closures, serialized.
  std::unique_ptr<v1::CountedClosure> counting_;  // Kept for its memory.
  std::uint32_t notes_ = 0;                       // Commits since the last snapshot,
  std::uint64_t notes_bytes_ = 0;                 // and the size of their notes.
  bool whole_wanted_ = false;
};

}  // namespace evergrad::coordinator
