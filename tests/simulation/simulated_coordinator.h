// The coordinator of one job. It can die and start again on what its journal holds.
#pragma once

#include <cstdint>

#include "tests/simulation/coordinator_parts.h"
#include "tests/simulation/registrations.h"

namespace evergrad::simulation {

class SimulatedCoordinator {
 public:
  // `parts` outlives the coordinator, which is not running yet.
  explicit SimulatedCoordinator(CoordinatorParts& parts)
      : parts_(parts), walk_(parts.walk), book_(parts.book), registrations_(parts) {}

  bool running() const { return book_.open(); }
  void Start();
  // All sessions end, and everything that is not durable is lost.
  void Kill();
  // [22] Dies if the journal is to forget a move now.
  void DieToForgetMove();
  // The cluster was lost with the journal. The next life is the first one that the new journal
  // knows.
  void ForgetLives();
  // A new job begins in this life, with nobody holding anything of it.
  void BeginJob(Term term);

  void Handle(SimulatedServer& s, Up m);
  void Handle(SimulatedWorker& w, Up m);
  // Does something of its own accord, which the seed draws: grants, closes, checkpoints, rollbacks,
  // moves. Returns whether the user resumes the job after its end.
  bool Act();
  // Does one step of the file thread.
  void DoFileWork() {
    if (running()) parts_.rounds.DoFileWork();
  }
  // The user cancels the job.
  void EndEarly();

 private:
  // [18a] A coordinator starts on an empty journal instead of the job's, or without a journal,
  // while tasks of the job live. Afterwards an operator puts the journal back.
  void StartWithoutJournal();
  void CheckNamedFiles();

  void OnDone(SimulatedWorker& w, const Up& m);
  void OnAssigned(SimulatedServer& s, const Up& m);
  void OnReleased(SimulatedServer& s, Up m);

  void CloseWindowIfDue();
  void GrantWork();
  void SendGrant(const SimulatedWorker& w, const ClosureBook::Granted& granted);
  // The leases of disconnected workers end, and sometimes that of a connected one.
  void EndLeases();
  void SendCloses(const SimulatedServer& s);

  CoordinatorParts& parts_;
  WalkContext& walk_;
  JournaledBook& book_;
  Registrations registrations_;
  int lives_ = 0;
};

}  // namespace evergrad::simulation
