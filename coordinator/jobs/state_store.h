// Where the coordinator's durable state lives (LEDGER line "Coordinator, durable"). One record is one transaction: after a crash
// it is there whole or not at all, and the order of commits is kept.
//
// Not thread-safe; the coordinator's executor owns it. An error of Commit or CommitTerm means that it is not known what was
// stored: the caller stops accepting work and sends no message that depends on it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "coordinator/closures/closure_book.h"

namespace evergrad::coordinator {

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Line 18: the coordinator's life number, in a record of its own, durable when this returns OK. InvalidArgument unless above term().
  virtual absl::Status CommitTerm(Term term) = 0;
  virtual Term term() const = 0;

  // Durable when it returns OK. An unknown job begins with the empty DurableState. ResourceExhausted: jobs_max are held.
  virtual absl::Status Commit(JobUid job, const Record& record) = 0;
  // The state that the job's records make. NotFound: never committed, or removed.
  virtual absl::StatusOr<DurableState> Load(JobUid job) const = 0;
  // In order of their first commit.
  virtual absl::StatusOr<std::vector<JobUid>> ListJobs() const = 0;
  // Forgets an ended job. Removing an unknown one changes nothing and is OK.
  virtual absl::Status Remove(JobUid job) = 0;
};

// The in-memory twin: survives the coordinator objects of one process, not the process. `torn_max` > 0 keeps that many of the
// last commits apart, so that a test can lose them as a torn journal tail does; a term is synced, and all before it with it.
class MemoryStateStore final : public StateStore {
 public:
  struct Options {
    std::size_t jobs_max = 1024;
    std::size_t torn_max = 0;
  };
  MemoryStateStore() : MemoryStateStore(Options()) {}
  explicit MemoryStateStore(Options options) : options_(options) {}

  absl::Status CommitTerm(Term term) override;
  Term term() const override { return term_; }
  absl::Status Commit(JobUid job, const Record& record) override;
  absl::StatusOr<DurableState> Load(JobUid job) const override;
  absl::StatusOr<std::vector<JobUid>> ListJobs() const override;
  absl::Status Remove(JobUid job) override;

  // Loses the last `commits` commits (at most those still kept apart); returns how many.
  std::size_t TearTail(std::size_t commits);

 private:
  const Options options_;
  Term term_;
  std::map<JobUid, DurableState> settled_;
  std::vector<JobUid> order_;
  std::vector<std::pair<JobUid, Record>> tail_;  // not yet settled, oldest first
};

}  // namespace evergrad::coordinator
