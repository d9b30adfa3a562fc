// The servers that can hold the shards of a job, and what is known of each shard beside its place
// in the map, which the ClosureBook has. Pure; the control executor's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/time/clock.h"
#include "coordinator/closures/closure_book.h"
#include "coordinator/jobs/shard_queries.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// A server as a job sees it.
struct JobServer {
  TaskId task;
  std::string identity;
  bool ready = false;  // Its session is open, and Registered is on its way.
  MonoTime away_since{0};
  v1::Endpoint endpoint;
  std::string host;
  std::uint64_t process = 0;        // uid
  std::uint32_t shards = 0;         // Of this job, as the server has said.
  std::uint64_t bytes = 0;          // Values and optimizer state of these shards.
  std::set<std::uint32_t> loading;  // Shards that it was still loading, by its Hello.
  std::set<std::uint32_t> stopped;  // Shards that it had stopped for a move, by its Hello.
  std::string leaving;              // Why it leaves; "": it stays.
  bool drains = false, drained_said = false;
  std::uint64_t shards_moved = 0;            // Away from it.
  std::map<ShardId, std::string> unmovable;  // With the reason.
  MonoTime moves_again{0};                   // No move begins before.
  // From its registration until it is ready: what to send to it then, and the shards that others
  // get because it backs off.
  std::optional<ClosureBook::MapChange> admitted;
  std::vector<ShardId> kept_from;
};

inline std::string ShardCount(std::size_t number) {
  return absl::StrCat(number, number == 1 ? " shard" : " shards");
}

// The shards of `job` that a server holds by its Hello. InvalidArgument: a set is malformed.
absl::StatusOr<std::vector<ClosureBook::HeldShard>> HeldShardsOf(const v1::Hello& hello,
                                                                 JobUid job);
// The server of a Hello, whose shards are `held`.
JobServer JobServerOf(TaskId task, const std::string& identity,
                      const std::vector<ClosureBook::HeldShard>& held, const v1::Hello& hello);

class ShardTable {
 public:
  struct Shard {
    std::uint64_t bytes = 0;          // As planned.
    bool held = false;                // Its owner has said that it holds the shard.
    std::uint32_t load_failures = 0;  // In a row.
    std::string snapshot;             // URI of the snapshot in its newest Assign, or "".
    struct Move {
      ShardEpoch from, epoch;
    };
    std::optional<Move> moved;  // Until the new owner has said that it holds the shard.
  };

  // --- servers: the newest registration of each identity, connected or not
  using Servers = std::map<TaskId, JobServer>;
  Servers& servers() { return servers_; }
  const Servers& servers() const { return servers_; }
  JobServer* Find(TaskId task);
  const JobServer* ServerOf(absl::string_view identity) const;  // Null: there is none.
  ShardQueries::Servers Ready() const;
  // Servers that the map names and that have not come back since a restart of the coordinator, with
  // the time at which each is lost.
  std::map<std::string, MonoTime>& awaited() { return awaited_; }
  const std::map<std::string, MonoTime>& awaited() const { return awaited_; }
  bool IsGone(const std::string& identity) const {
    return ServerOf(identity) == nullptr && !awaited_.contains(identity);
  }

  // --- shards
  void Plan(const std::vector<std::uint64_t>& bytes);  // Of each shard; nothing is placed yet.
  std::uint32_t size() const { return static_cast<std::uint32_t>(shards_.size()); }
  Shard& operator[](ShardId shard) { return shards_[shard.value()]; }
  const Shard& operator[](ShardId shard) const { return shards_[shard.value()]; }
  bool placed() const { return placed_; }  // The first placement is done.
  void SetPlaced() { placed_ = true; }
  // Shards that no server gets before they are placed again, whatever the map says.
  const std::set<ShardId>& unplaced() const { return unplaced_; }
  void Unplace(ShardId shard);
  // It goes to its owner by the map, which does or does not hold it yet.
  void Give(ShardId shard, bool held);
  bool AllHeld() const;

  // After a restart of the coordinator: takes the state of the shards from the book of the former
  // life. The table is planned.
  void Restore(const ClosureBook& book);
  void Clear();  // The job has ended.

 private:
  Servers servers_;
  std::map<std::string, MonoTime> awaited_;
  std::vector<Shard> shards_;
  std::set<ShardId> unplaced_;
  bool placed_ = false;
};

}  // namespace evergrad::coordinator
