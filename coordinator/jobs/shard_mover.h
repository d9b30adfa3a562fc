// Shards of a server that leaves are moved to others (LEDGER line 22): nothing is rolled back,
// nothing is run again.
//
//   owner                        coordinator                       next owner
//   stops, makes an image ◀─ StopShard
//                         ─▶ ShardStopped ── ReceiveShard ─▶ reads the image from the owner, checks
//                         it, keeps it aside
//                                            ShardReceived ◀─
//                            one record: V+1, new epoch and server, start kept
//   frees it              ◀─ Drop            Assign ───────▶ it is this server's; the map goes to
//   the workers
//
// Before the record the owner by the map is the old one, and whichever server dies, nothing has
// changed but that a stopped shard answers STALE: its server is leaving, so it is stopped again
// (the same answer) by the next session, moved elsewhere, or lost with it, which is line 21. After
// the record the new owner has the state in memory; if it dies, that is line 21 as well. So is what
// a former life of the coordinator stopped: its journal may have forgotten the record.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host. The journal
// says nothing of moves that are in flight.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/shard_placer.h"

namespace evergrad::coordinator {

class ShardMover : private JobPart {
 public:
  // `placer` outlives this object.
  ShardMover(const JobPart& part, ShardPlacer* placer) : JobPart(part), placer_(placer) {}

  // Begins the moves that can begin. A server that has nothing left, or cannot be rid of it, is
  // told (Drained).
  void Pump();
  void OnStopped(TaskId task, const v1::ShardStopped& stopped);
  void OnReceived(TaskId task, const v1::ShardReceived& received);
  void OnLeaving(TaskId task);
  void EndOf(TaskId task);  // It is gone, or another registration is there.
  void End();               // The job ends: what was received is dropped.
  void Forget();            // Every session ends.
  // To the workers, of the moves since the last map. Not `now`: at most one in 20 ms.
  void SendMap(bool now);

 private:
  struct Move {
    ShardEpoch from;
    TaskId source;
    std::optional<TaskId> target;  // From ShardStopped on.
    std::set<TaskId> refused_by;
    std::uint64_t bytes = 0;  // Of the image.
    std::string sha256;
  };
  using Moves = std::map<ShardId, Move>;
  void SendReceive(Moves::iterator move);
  void Commit(Moves::iterator move);
  void OnFailed(Moves::iterator move, const v1::ErrorDetail& failure);
  void SayDrained(JobServer& server, const std::string& cannot);

  ShardPlacer* const placer_;
  Moves moves_;
  std::map<ShardId, std::uint32_t> failures_;  // In a row.
  bool map_due_ = false;
  MonoTime map_at_{0};
};

}  // namespace evergrad::coordinator
