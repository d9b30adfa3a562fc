// Finds the jobs that a journal has lost or that belong to another journal, by the shards that
// servers report (LEDGER line 18a), and makes the message to the operator. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// The contents of this coordinator's journal, as far as LostJobs needs them.
struct JournalKnows {
  bool journals = false;  // true if this coordinator has a journal that outlives the process
  bool forgets = false;   // true if the operator has given up unknown jobs (--forget-unknown-jobs)
  std::function<bool(JobUid)> known;    // whether the journal has the job, ended or not
  std::function<bool(JobUid)> removed;  // whether the journal has removed the job
  std::uint64_t term = 0, jobs = 0;     // the journal's term and number of jobs, for the message
};

class LostJobs {
 public:
  explicit LostJobs(JournalKnows knows) : knows_(std::move(knows)) {}
  // Adds the shards of lost jobs that a registering server holds. Returns whether there were any.
  bool Add(const v1::Hello& hello);
  bool empty() const { return jobs_.empty(); }
  // Returns sentences for an operator: the findings, the risk, and the remedies.
  std::string Text() const;

 private:
  struct Lost {
    std::uint64_t shards = 0, term = 0;          // the highest term of the shards' epochs
    std::map<std::string, std::string> servers;  // by identity: pid and host
  };
  const JournalKnows knows_;
  std::map<JobUid, Lost> jobs_;
};

}  // namespace evergrad::coordinator
