// The closure book of a coordinator, with the journal of its changes. A message to a task or to the
// user is sent only once the commits before it are durable.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "tests/mutants/mutant.h"
#include "tests/simulation/invariant_checker.h"
#include "tests/simulation/simulated_journal.h"
#include "tests/simulation/tasks.h"

namespace evergrad::simulation {

class JournaledBook {
 public:
  // All four outlive the book.
  JournaledBook(WalkContext& walk, Tasks& tasks, SimulatedJournal& journal,
                InvariantChecker& checker)
      : walk_(walk), tasks_(tasks), journal_(journal), checker_(checker) {}

  // Begins with this state of the job. The commit of the book's life follows.
  void Open(DurableState state);
  // The coordinator dies. The commits and messages that are not durable are lost.
  void Close();
  bool open() const { return book_ != nullptr; }
  ClosureBook* operator->() const { return book_.get(); }
  const DurableState& state() const { return book_->durable(); }
  JobUid job() const { return job_; }
  // Another job begins, with no cancelled closures.
  void BeginJob(JobUid job) { job_ = job; }

  void Commit(const coordinator::Record& record);
  // All accepted commits become durable. The actions that waited for them happen in order.
  void Settle();
  // Calls `action` once all commits so far are durable, which may be now.
  template <class Action>
  void AfterCommits(Action action) {
    if (actions_.empty() && journal_.all_durable()) {
      action();
    } else {
      actions_.push_back(std::move(action));
    }
  }
  // AfterCommits for messages to tasks and to the user.
  template <class Action>
  void Tell(Action action) {
    if (mutants::IsActive(mutants::Mutant::kAckBeforeCommit)) {
      action();
    } else {
      AfterCommits(std::move(action));
    }
  }
  // Sends a message in the present session of the task. A message without a job gets this job.
  void Send(const Task& t, Down m);

  // Sends the ended closures that the server's shards lack [24].
  void SendCloses(const SimulatedServer& s);
  // Disconnects the task, if it is connected.
  void EndSession(Task& t);

  // The user cancels a closure. Returns false if it has ended.
  bool Cancel(std::uint64_t c);
  std::size_t cancelled() const { return cancelled_.size(); }
  // The job resumes with these closures dead.
  void ResumeCancelled(const IntervalSet& dead) { cancelled_ = dead; }
  // Tells the user of the cancelled closures that every owner refuses.
  void TellCancelled();

 private:
  WalkContext& walk_;
  Tasks& tasks_;
  SimulatedJournal& journal_;
  InvariantChecker& checker_;
  JobUid job_{1};
  std::unique_ptr<ClosureBook> book_;
  std::deque<absl::AnyInvocable<void()>> actions_;  // that wait for commits
  IntervalSet cancelled_;
};

}  // namespace evergrad::simulation
