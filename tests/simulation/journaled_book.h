// The closure book of a coordinator, with the journal of its changes. A message to a task or to the
// user is sent only when the commits before it are durable.
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
  // All four referenced objects must outlive the book.
  JournaledBook(WalkContext& walk, Tasks& tasks, SimulatedJournal& journal,
                InvariantChecker& checker)
      : walk_(walk), tasks_(tasks), journal_(journal), checker_(checker) {}

  // Begins a life of the coordinator with this state of the job. Commits that the life has begun.
  void Open(DurableState state);
  // Called when the coordinator dies. Commits that are not durable are lost, and so are the
  // messages that waited for them.
  void Close();
  bool open() const { return book_ != nullptr; }
  ClosureBook* operator->() const { return book_.get(); }
  const DurableState& state() const { return book_->durable(); }
  JobUid job() const { return job_; }
  // Called when another job begins. No closure of it is cancelled yet.
  void BeginJob(JobUid job) { job_ = job; }

  void Commit(const coordinator::Record& record);
  // Makes all accepted commits durable. Then performs the actions that waited for them, in order.
  void Settle();
  // Calls `action` once all commits so far are durable. This may be at once.
  template <class Action>
  void AfterCommits(Action action) {
    if (actions_.empty() && journal_.all_durable()) {
      action();
    } else {
      actions_.push_back(std::move(action));
    }
  }
  // Like AfterCommits, for messages to tasks and to the user. One of the mutants does not wait.
  template <class Action>
  void Tell(Action action) {
    if (mutants::IsActive(mutants::Mutant::kAckBeforeCommit)) {
      action();
    } else {
      AfterCommits(std::move(action));
    }
  }
  // Sends a message in the present session of the task. If the message names no job, it gets this
  // book's job.
  void Send(const Task& t, Down m);

  // Tells the server which closures have ended, except those that the server's shards already know
  // [24].
  void SendCloses(const SimulatedServer& s);
  // Disconnects the task, if it is connected.
  void EndSession(Task& t);

  // Cancels a closure, as the user. Returns false if the closure has ended.
  bool Cancel(std::uint64_t c);
  std::size_t cancelled() const { return cancelled_.size(); }
  // Called when the job resumes. The closures of `dead` were cancelled or lost in the earlier job.
  void ResumeCancelled(const IntervalSet& dead) { cancelled_ = dead; }
  // Tells the user about each cancelled closure that every owner refuses by now.
  void TellCancelled();

 private:
  WalkContext& walk_;
  Tasks& tasks_;
  SimulatedJournal& journal_;
  InvariantChecker& checker_;
  JobUid job_{1};
  std::unique_ptr<ClosureBook> book_;
  std::deque<absl::AnyInvocable<void()>> actions_;  // actions that wait for commits
  IntervalSet cancelled_;
};

}  // namespace evergrad::simulation
