// The coordinator of one job. It can die, and it can start again with the contents of its journal.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"
#include "tests/simulation/registrations.h"

namespace evergrad::simulation {

class SimulatedCoordinator {
 public:
  // `parts` must outlive the coordinator. The constructor does not start the coordinator.
  explicit SimulatedCoordinator(CoordinatorParts& parts)
      : parts_(parts), walk_(parts.walk), book_(parts.book), registrations_(parts) {}

  bool running() const { return book_.open(); }
  void Start();
  // Kills the coordinator. All sessions end, and everything that is not durable is lost.
  void Kill();
  // [22] If the walk has decided that the journal forgets a move now, kills the coordinator.
  void DieToForgetMove();
  // Called when the cluster was lost with the journal. The new journal does not know earlier lives.
  void ForgetLives();
  // Begins a new job in this life. No task has any part of the job yet.
  void BeginJob(Term term);

  void Handle(SimulatedServer& s, Up m);
  void Handle(SimulatedWorker& w, Up m);
  // Performs one random action that no message has caused: a grant, a Close, a checkpoint, a
  // rollback or a move. Returns whether the user resumes the job after its end.
  bool Act();
  // Does one step of the file thread.
  void DoFileWork() {
    if (running()) parts_.rounds.DoFileWork();
  }
  // Cancels the job, as the user.
  void EndEarly();

 private:
  // [18a] Starts a coordinator on an empty journal, or without a journal, while tasks of the job
  // are alive. Afterwards an operator restores the job's journal.
  void StartWithoutJournal();
  void CheckNamedFiles();

  void OnDone(SimulatedWorker& w, const Up& m);
  void OnAssigned(SimulatedServer& s, const Up& m);
  void OnReleased(SimulatedServer& s, Up m);

  void CloseWindowIfDue();
  void GrantWork();
  void SendGrant(const SimulatedWorker& w, const ClosureBook::Granted& granted);
  // Ends the leases of disconnected workers, and sometimes the lease of a connected worker.
  void EndLeases();
  void SendCloses(const SimulatedServer& s);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  JournaledBook& book_;
  Registrations registrations_;
  int lives_ = 0;
};

}  // namespace evergrad::simulation
