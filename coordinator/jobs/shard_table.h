// The servers that can hold the shards of a job, and the state of each shard except its place in
// the map, which the ClosureBook has. Pure; only the control executor calls it.
#pragma once

#include <chrono>
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

// The state of a server in a job.
struct JobServer {
  TaskId task;
  std::string identity;
  bool ready = false;  // Its session is open, and Registered was sent.
  // the time at which it disconnected, or nullopt if it is connected
  std::optional<MonoTime> away_since;
  v1::Endpoint endpoint;
  std::string host;
  std::uint64_t process = 0;        // uid
  std::uint32_t shards = 0;         // Number of this job's shards, as the server reported.
  std::uint64_t bytes = 0;          // Bytes of values and optimizer state of these shards.
  std::set<std::uint32_t> loading;  // Shards that it was loading at its Hello.
  std::set<std::uint32_t> stopped;  // Shards that were stopped for a move at its Hello.
  std::string leaving;              // Why it has announced its end; "" if it stays.
  bool cordoned = false;            // It gets no new shards.
  bool drains = false, drained_said = false;
  std::uint64_t shards_moved = 0;            // Number of shards that it has handed over.
  std::map<ShardId, std::string> unmovable;  // Shards that cannot be moved, with the reason.
  MonoTime moves_again{0};                   // No move begins before this time.
  // `admitted` and `kept_from` are set while the server has registered and is not ready. `admitted`
  // is the change of the map that the server is told once it is ready. `kept_from` lists the shards
  // that other servers get because this server died too often and gets no shards for a while.
  std::optional<ClosureBook::MapChange> admitted;
  std::vector<ShardId> kept_from;

  bool TakesShards() const { return ready && leaving.empty() && !cordoned; }
  double AwaySeconds(MonoTime now) const {
    return std::chrono::duration<double>(now - away_since.value_or(now)).count();
  }
};

inline std::string ShardCount(std::size_t number) {
  return absl::StrCat(number, number == 1 ? " shard" : " shards");
}

// Returns the shards of `job` that a server holds according to its Hello, or InvalidArgument if a
// set is malformed.
absl::StatusOr<std::vector<ClosureBook::HeldShard>> HeldShardsOf(const v1::Hello& hello,
                                                                 JobUid job);
// Returns the entry for a server that has sent `hello` and holds the shards `held`.
JobServer JobServerOf(TaskId task, const std::string& identity,
                      const std::vector<ClosureBook::HeldShard>& held, const v1::Hello& hello);

class ShardTable {
 public:
  struct Shard {
    std::uint64_t bytes = 0;          // The size according to the plan.
    bool held = false;                // Its owner has reported that it holds the shard.
    std::uint32_t load_failures = 0;  // Number of failures in a row to load it.
    std::string snapshot;             // URI of the snapshot in its newest Assign, or "".
    struct Move {
      ShardEpoch from, epoch;
    };
    std::optional<Move> moved;  // Set until the new owner holds the shard.
  };

  // --- servers: the newest registration of each identity, connected or not
  using Servers = std::map<TaskId, JobServer>;
  Servers& servers() { return servers_; }
  const Servers& servers() const { return servers_; }
  JobServer* Find(TaskId task);
  const JobServer* ServerOf(absl::string_view identity) const;  // Null if unknown.
  ShardQueries::Servers Ready() const;
  // Servers in the map that have not registered since the coordinator restarted, each with the time
  // at which it is declared lost.
  std::map<std::string, MonoTime>& awaited() { return awaited_; }
  const std::map<std::string, MonoTime>& awaited() const { return awaited_; }
  bool IsGone(const std::string& identity) const {
    return ServerOf(identity) == nullptr && !awaited_.contains(identity);
  }

  // --- shards
  void Plan(const std::vector<std::uint64_t>& bytes);  // Sets the size of each shard.
  std::uint32_t size() const { return static_cast<std::uint32_t>(shards_.size()); }
  Shard& operator[](ShardId shard) { return shards_[shard.value()]; }
  const Shard& operator[](ShardId shard) const { return shards_[shard.value()]; }
  bool placed() const { return placed_; }  // The first placement is done.
  void SetPlaced() { placed_ = true; }
  // Shards that must be placed again. No server holds them, even if the map names an owner.
  const std::set<ShardId>& unplaced() const { return unplaced_; }
  void Unplace(ShardId shard);
  // Notes that the shard has the owner that the map names. `held` is true if the owner holds it
  // already.
  void Give(ShardId shard, bool held);
  bool AllHeld() const;

  // Restores the state of the shards from the book of the former life, after a restart of the
  // coordinator. Plan must have been called.
  void Restore(const ClosureBook& book);
  void Clear();  // Drops all state when the job has ended.

 private:
  Servers servers_;
  std::map<std::string, MonoTime> awaited_;
  std::vector<Shard> shards_;
  std::set<ShardId> unplaced_;
  bool placed_ = false;
};

}  // namespace evergrad::coordinator
