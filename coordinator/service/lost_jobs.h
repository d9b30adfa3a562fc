// Which jobs a journal has lost, or are in another one, by what servers say that they hold (LEDGER
// line 18a), and what an operator is told about it. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// How this coordinator's journal knows a job.
struct JournalKnows {
  bool journals = false;                // there is a journal that outlives the process
  bool forgets = false;                 // an operator's word: nothing counts as lost
  std::function<bool(JobUid)> known;    // it has the job, ended or not
  std::function<bool(JobUid)> removed;  // it was told to remove the job
  std::uint64_t term = 0, jobs = 0;     // what it holds, for the message
};

class LostJobs {
 public:
  explicit LostJobs(JournalKnows knows) : knows_(std::move(knows)) {}
  // What a server that registers holds of jobs that the journal has lost. True: something, and it
  // was added.
  bool Add(const v1::Hello& hello);
  bool empty() const { return jobs_.empty(); }
  // Sentences for an operator: what was found, what is at stake, what to do.
  std::string Text() const;

 private:
  struct Lost {
    std::uint64_t shards = 0, term = 0;          // the highest term of an epoch
    std::map<std::string, std::string> servers;  // by identity: pid and host
  };
  const JournalKnows knows_;
  std::map<JobUid, Lost> jobs_;
};

}  // namespace evergrad::coordinator
