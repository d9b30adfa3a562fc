// A server process. It holds shards with their ledgers, and reads and writes their files.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/grant_proofs.h"
#include "tests/simulation/invariant_checker.h"
#include "tests/simulation/snapshot_folder.h"
#include "tests/simulation/snapshot_writer.h"
#include "tests/simulation/task.h"

namespace evergrad::simulation {

class SimulatedServer : public Task {
 public:
  // All three referenced objects must outlive the server.
  SimulatedServer(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker, int number,
                  std::string identity);

  const std::string& identity() const { return identity_; }
  void Handle(Down m);
  // Applies or refuses a push, and returns the answer.
  Call Serve(const Call& push);
  // Performs one step of the I/O thread.
  void DoFileWork();
  void DropJob(JobUid job);
  void ForgetJobs(JobUid newest) override;

  // Returns the newest state that the server holds of shard p, or nullptr.
  HeldState* At(std::uint32_t p) const { return shards_[p].get(); }
  // Returns the shard if it has this job and epoch, and nullptr otherwise.
  HeldState* At(std::uint32_t p, JobUid job, ShardEpoch epoch) const;
  // Returns the job of the shard p that the server holds or loads, or nothing.
  std::optional<JobUid> JobAt(std::uint32_t p) const;
  // [25] Returns whether the server is loading nothing and holds only shards that it owns.
  bool HoldsOnlyItsOwn() const;
  // [35] Returns whether the proof of a push is valid.
  bool Fits(const Granted& claimed) const;
  // Prints the state at the end of a walk that broke a promise.
  void TraceState() const;

 private:
  struct Loading {
    JobUid job;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet refused;
    std::optional<Snapshot> source;
  };

  void SendHello() override;
  void OnAssign(Down m);
  void OnDrop(const Down& m);
  void OnSeal(const Down& m);
  void OnClose(const Down& m);
  void OnRelease(const Down& m);
  worker::PushAnswer Apply(const Call& call, HeldState& held);
  // Returns the state that must answer a push of this job. If the server has no such state, returns
  // nullptr, and the answer is STALE.
  HeldState* Find(JobUid job, std::uint32_t p) const;
  bool Loads(const Down& m) const;
  void Load(std::uint32_t p);
  void WriteSnapshot();

  SnapshotFolder& folder_;
  InvariantChecker& checker_;
  const std::string identity_;
  JobUid version_of_{};
  MapVersion version_;  // the highest map version that the server received
  std::array<std::unique_ptr<HeldState>, kShards> shards_;
  // The shards of earlier jobs, if the server has not learned that these jobs have ended.
  std::vector<std::pair<std::uint32_t, std::unique_ptr<HeldState>>> others_;
  // The ledger at the time of the seal [20a].
  std::array<std::optional<ps_server::Ledger>, kShards> sealed_;
  std::array<std::optional<Loading>, kShards> loading_;
  std::vector<Up> unsent_;  // kAssigned messages that could not be sent in a session
  SnapshotWriter writer_;
  // [35] The guards that check proofs. A guard is made when the server gets the first Assign of the
  // job.
  std::map<JobUid, std::unique_ptr<grants::GrantGuard>> guards_;
};

}  // namespace evergrad::simulation
