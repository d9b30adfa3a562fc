// Where the shards of a job are placed, and what their servers are told of it (LEDGER lines 21
// and 25).
//
//   Unplace ─▶ Place: one record ─▶ Assign to each server, the map to the workers ─▶ OnAssigned
//
// A shard that cannot be loaded is tried again; if its file is damaged, from an older one. Not
// thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/jobs/death_backoff.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/plan_builder.h"
#include "coordinator/jobs/shard_queries.h"

namespace evergrad::coordinator {

class ShardPlacer : private JobPart {
 public:
  // What `backoff` and `queries` point to outlives this object.
  ShardPlacer(const JobPart& part, const DeathBackoff* backoff, ShardQueries* queries)
      : JobPart(part), backoff_(backoff), queries_(queries) {}

  // --- placement
  bool BacksOff(const std::string& server) const;
  SectionLimit ServersLimit() const;  // Of the servers that are here and stay.
  void Place();                       // Whatever has no place, if a server can take it.
  void Apply(const ClosureBook::MapChange& change);  // After its record is committed.
  void Drop(TaskId task, ShardId shard, ShardEpoch epoch);
  void GiveAway(const std::string& server);  // It is lost: others get its shards.
  void Retry(MonoTime now);  // Shards whose server could not load them have no place now.
  void ForgetRetries() { retries_.clear(); }

  // --- servers
  // It registers with these shards. False: the store failed.
  bool Admit(JobServer& server, const std::vector<ClosureBook::HeldShard>& held);
  void OnReady(JobServer& server);
  // True: more can be placed, or granted.
  bool OnAssigned(TaskId task, const v1::Assigned& assigned);

  std::uint64_t rolled_back() const { return rolled_back_; }  // Shards, over the whole job.
  std::string WaitingFor() const;                             // "": every server is here.

  // --- the journal
  void FillCounters(v1::JobCounters* counters) const;
  void ReadCounters(const v1::JobCounters& counters);

 private:
  void SendAssign(const ClosureBook::AssignOrder& order);
  void SayRollback(const std::string& why, const ClosureBook::MapChange& change);
  void KeepFrom(const std::string& server, const std::vector<ShardId>& shards);
  bool MoveLost(ShardId shard, const v1::ErrorDetail& cause);  // False: it was not moved there.
  bool SnapshotRefused(ShardId shard, const v1::ErrorDetail& cause);

  const DeathBackoff* const backoff_;
  ShardQueries* const queries_;
  struct LoadRetry {
    MonoTime at;
    ShardId shard;
    ShardEpoch epoch;
  };
  std::vector<LoadRetry> retries_;
  std::uint64_t rolled_back_ = 0;
};

}  // namespace evergrad::coordinator
