// Moves the shards of a leaving server to other servers (LEDGER line 22). No shard is rolled back,
// and no closure is run again.
//
//   owner                        coordinator                       next owner
//   stops, makes an image ◀─ StopShard
//                         ─▶ ShardStopped ── ReceiveShard ─▶ reads the image from the owner, checks
//                         it, keeps it aside
//                                            ShardReceived ◀─
//                            one record: map version + 1, new epoch and server, start kept
//   frees it              ◀─ Drop            Assign ───────▶ it is this server's; the map goes to
//   the workers
//
// The map names the old owner until the record is committed. If a server dies before the commit,
// nothing has changed except that the stopped shard answers STALE to requests. The shard is then
// stopped again in the owner's next session (with the same answer), moved to another server, or
// lost with its owner (line 21). After the record the new owner has the state in memory; if it
// dies, line 21 applies. Line 21 also applies to a shard that a former life of the coordinator
// stopped, because the journal may have lost the record.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host. Moves in
// flight are not in the journal.
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

  // Begins the moves that can begin. Sends Drained to a leaving server if it has no shards left or
  // its shards cannot be moved.
  void Pump();
  void OnStopped(TaskId task, const v1::ShardStopped& stopped);
  void OnReceived(TaskId task, const v1::ShardReceived& received);
  void OnLeaving(TaskId task);
  void EndOf(TaskId task);  // Called when the task has ended or been replaced.
  void End();               // Drops received shards when the job ends.
  void Forget();            // Forgets all moves, because all sessions have ended.
  // Sends the map to the workers if shards have moved since the map was last sent. If `now` is
  // false, at most one map is sent in 20 ms.
  void SendMap(bool now);

 private:
  struct Move {
    ShardEpoch from;
    TaskId source;
    std::optional<TaskId> target;  // Set after ShardStopped.
    std::set<TaskId> refused_by;
    std::uint64_t bytes = 0;  // Size of the image.
    std::string sha256;
  };
  using Moves = std::map<ShardId, Move>;
  void SendReceive(Moves::iterator move);
  void Commit(Moves::iterator move);
  void OnFailed(Moves::iterator move, const v1::ErrorDetail& failure);
  void SayDrained(JobServer& server, const std::string& cannot);

  ShardPlacer* const placer_;
  Moves moves_;
  std::map<ShardId, std::uint32_t> failures_;  // Number of failed moves in a row, by shard.
  bool map_due_ = false;
  MonoTime map_at_{0};
};

}  // namespace evergrad::coordinator
