// The coordinator of one job. It can die, and start again with the contents of its journal.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"
#include "tests/simulation/registrations.h"

namespace evergrad::simulation {

class SimulatedCoordinator {
 public:
  // `parts` outlives the coordinator. The coordinator is not running after this.
  explicit SimulatedCoordinator(CoordinatorParts& parts)
      : parts_(parts), walk_(parts.walk), book_(parts.book), registrations_(parts) {}

  bool running() const { return book_.open(); }
  void Start();
  // Kills the coordinator. All sessions end, and everything that is not durable is lost.
  void Kill();
  // [22] Kills the coordinator, if it is time for the journal to forget a move.
  void DieToForgetMove();
  // Called when the cluster was lost with the journal. The new journal does not know earlier lives.
  void ForgetLives();
  // Begins a new job in this life. No task holds anything of the job yet.
  void BeginJob(Term term);

  void Handle(SimulatedServer& s, Up m);
  void Handle(SimulatedWorker& w, Up m);
  // Does something without a message: a grant, a close, a checkpoint, a rollback or a move, which
  // the seed draws. Returns whether the user resumes the job after its end.
  bool Act();
  // Does one step of the file thread.
  void DoFileWork() {
    if (running()) parts_.rounds.DoFileWork();
  }
  // Cancels the job, as the user.
  void EndEarly();

 private:
  // [18a] Starts a coordinator on an empty journal, or without a journal, while tasks of the job
  // live. Afterwards an operator puts the job's journal back.
  void StartWithoutJournal();
  void CheckNamedFiles();

  void OnDone(SimulatedWorker& w, const Up& m);
  void OnAssigned(SimulatedServer& s, const Up& m);
  void OnReleased(SimulatedServer& s, Up m);

  void CloseWindowIfDue();
  void GrantWork();
  void SendGrant(const SimulatedWorker& w, const ClosureBook::Granted& granted);
  // Ends the leases of disconnected workers, and sometimes that of a connected one.
  void EndLeases();
  void SendCloses(const SimulatedServer& s);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  JournaledBook& book_;
  Registrations registrations_;
  int lives_ = 0;
};

}  // namespace evergrad::simulation
