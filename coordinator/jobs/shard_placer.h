// Places the shards of a job on servers, and sends the servers their assignments (LEDGER lines 21
// and 25).
//
//   Unplace ─▶ Place: one record ─▶ Assign to each server, the map to the workers ─▶ OnAssigned
//
// If a server cannot load a shard, the shard is assigned again later. If the shard's file is
// damaged, the server then loads an older file. Not thread-safe: only the control executor calls
// it. Clock and I/O come from the host.
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
  // `backoff` and `queries` outlive this object.
  ShardPlacer(const JobPart& part, const DeathBackoff* backoff, ShardQueries* queries)
      : JobPart(part), backoff_(backoff), queries_(queries) {}

  // --- placement
  bool BacksOff(const std::string& server) const;
  SectionLimit ServersLimit() const;                 // The lowest limit of servers that stay.
  void Place();                                      // Places unplaced shards, if possible.
  void Apply(const ClosureBook::MapChange& change);  // Call it after the commit of the record.
  void Drop(TaskId task, ShardId shard, ShardEpoch epoch);
  void GiveAway(const std::string& server);  // Unplaces the shards of a lost server.
  void Retry(MonoTime now);                  // Unplaces shards whose retry is due.
  void ForgetRetries() { retries_.clear(); }

  // --- servers.
  // Admits a server that registers with the shards `held`. Returns false if the store failed.
  bool Admit(JobServer& server, const std::vector<ClosureBook::HeldShard>& held);
  void OnReady(JobServer& server);
  // Returns true if more shards can be placed, or closures granted, now.
  bool OnAssigned(TaskId task, const v1::Assigned& assigned);

  std::uint64_t rolled_back() const { return rolled_back_; }  // Number of rolled-back shards.
  std::string WaitingFor() const;                             // "" if no server is missing.

  // --- the journal
  void FillCounters(v1::JobCounters* counters) const;
  void ReadCounters(const v1::JobCounters& counters);

 private:
  void SendAssign(const ClosureBook::AssignOrder& order);
  void SayRollback(const std::string& why, const ClosureBook::MapChange& change);
  void KeepFrom(const std::string& server, const std::vector<ShardId>& shards);
  // Returns false if the shard was not moved.
  bool MoveLost(ShardId shard, const v1::ErrorDetail& cause);
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
