// The durable half of a ClosureBook: the durable state of one job, the numbers of this life of the
// coordinator, and the changes that depend only on this state and these numbers. These changes are
// a new life (LEDGER line 18), new owners of shards (20a, 21, 22, 25) and files of shards (27, 28).
// Numbers in brackets are lines of LEDGER. A pure state machine: no clock, no threads, no I/O. Not
// thread-safe.
//
// Each method applies its change to the state and returns the change as a Record. The class does
// not know which closures workers hold; the ClosureBook ends the attempts at closures that a change
// makes dead.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/closures/durable_state.h"

namespace evergrad::coordinator {

class DurableBook {
 public:
  // `state` has at most `shards` shards (EG_CHECK).
  DurableBook(std::uint64_t closures, std::uint32_t shards, DurableState state);
  const DurableState& state() const { return state_; }
  // A number that rises whenever the sets of a Close may have changed [24].
  std::uint64_t revision() const { return revision_; }
  MapVersion newest_start() const { return newest_start_; }  // the highest start of all shards

  // [18] `term` must be above the term of the state (EG_CHECK).
  Record BeginLife(Term term);
  // One sequence numbers the map versions, shard epochs and attempts of a life.
  Attempt NextAttempt() { return Next<Attempt>(); }
  // Applies the record. An empty record changes nothing.
  void Commit(const Record& record);
  // Returns the members of `closures` that are in the plan and have not ended.
  IntervalSet NotEnded(const IntervalSet& closures) const;

  struct AssignOrder {
    ShardId shard;
    std::string server;
    ShardEpoch epoch;
    MapVersion start, version;
    IntervalSet refused;  // dead + lost[p]; the loader adds the refused set of the snapshot
    // If nullopt, the shard begins from the seed: from initial values, which the job's seed
    // determines.
    std::optional<Snapshot> snapshot;
  };
  struct MapChange {
    Record record;
    std::vector<AssignOrder> assigns;
    // Shards that the registering server must drop.
    std::vector<std::pair<ShardId, ShardEpoch>> drops;
    // Shards that were adopted from another server, each with its owner in the journal. This owner
    // may have registered in the same window and still hold the shard, so the caller sends a Drop
    // to its session.
    std::vector<std::pair<std::string, std::pair<ShardId, ShardEpoch>>> former;
    bool map_changed = false;  // true if every worker must get the new map
  };
  // [21] Assigns the shard to `server`. The shard begins on this server from its newest snapshot,
  // or from the seed if it has no snapshot.
  MapChange Rollback(ShardId shard, const std::string& server);
  // [21] Like Rollback, but begins from `snapshot`, or from the seed if that is nullptr.
  MapChange RollbackTo(ShardId shard, const std::string& server, const Snapshot* snapshot);
  // [22] Makes `server`, which has received the state of a shard, the owner of the shard. The state
  // left its former owner at epoch `from`. If the shard now has another epoch, the change is empty
  // and the received state is void.
  MapChange Move(ShardId shard, ShardEpoch from, const std::string& server);
  // [20a] Removes the owner of the shard. No server owns the shard until the next Rollback.
  MapChange Unmap(ShardId shard);
  std::vector<ShardId> ShardsOf(const std::string& server) const;

  struct HeldShard {
    ShardId shard;
    ShardEpoch epoch;
    MapVersion start;
    IntervalSet done, refused;
    // True while the server still loads the shard of an Assign. `refused` is then the set in the
    // Assign, because the server does not know yet which closures the file refuses. A loading shard
    // counts as held if the map names this server and this epoch. It is never adopted. The file may
    // refuse a closure although the journal has lost, together with the Assign, the record that
    // made the closure dead. After an adoption this closure would be granted and refused again and
    // again. The shard has applied no update yet, so nothing is lost without an adoption.
    bool loading = false;
    // [22] The term of the life that stopped the shard for a move, or 0. The owner answers STALE to
    // requests for a stopped shard, and keeps the shard until a Drop. A shard that another life
    // stopped is neither held nor adopted. The journal may have forgotten the move, and the new
    // owner may have continued under the same start. An adoption would then lower vlsn without a
    // new start, and a pair (start, vlsn) would no longer identify one state of the values.
    std::uint64_t stopped_in = 0;
  };
  struct ServerRegistration {
    MapChange change;
    std::vector<ShardId> unheld;
  };
  // [25] A shard that the server holds at the epoch in the map is kept. A shard that is mapped to
  // the server but not held at the mapped epoch is rolled back on this server; if `restore` is
  // false, the shard is only listed in `unheld`. A shard that is held but not mapped is dropped,
  // unless it is adopted. `held` names shards of this job only; a shard that is being loaded counts
  // as held. `window_open` is true inside the start-up window.
  ServerRegistration RegisterServer(const std::string& server, const std::vector<HeldShard>& held,
                                    bool window_open, bool restore);

  // [27] Adds the snapshot of a durable file. A file of an epoch other than the shard's present
  // epoch changes nothing. Such a file would count as the newest although the present owner's files
  // are newer, and SweepFolder (checkpoints.h) may have deleted it. A file with a known URI and
  // hash changes nothing, either. A file with a known URI and another hash replaces the known
  // entry.
  Record AddSnapshot(ShardId shard, Snapshot snapshot);
  Record RemoveSnapshots(ShardId shard, const std::set<std::string>& uris);
  const Snapshot* NewestSnapshot(ShardId shard) const;  // nullptr if there is only the seed
  // [28] Begins from these snapshots, one for each shard. No shard may have been placed before
  // (EG_CHECK). `succeeded` becomes the intersection of all done sets, and `dead` the union of all
  // refused sets.
  Record ResumeFrom(std::vector<Snapshot> snapshots);

 private:
  template <class Stamp>
  Stamp Next() {
    return {state_.term.value(), ++n_};
  }
  void Commit(const Record& record, Record* all);  // also appends the record to `all`
  std::uint32_t IndexOf(ShardId shard) const;
  // Returns the record after which todo[p] is `wanted`, except for closures that the shard refuses.
  Record TodoBecomes(std::uint32_t p, IntervalSet wanted, const IntervalSet& refused) const;
  // [25] Makes those members of `refused` dead that have not ended.
  void MarkUnknownDead(const IntervalSet& refused, Record* all);
  // [25] Returns whether the server keeps the shard: it is held at the epoch in the map, or is
  // adopted.
  bool KeepOrAdopt(const std::string& server, const HeldShard& held, bool window_open,
                   MapChange* change);

  const IntervalSet plan_;  // every closure
  const std::uint32_t shards_;
  DurableState state_;
  std::uint64_t n_ = 0;  // the highest number that was given out in this life
  std::uint64_t revision_ = 1;
  MapVersion newest_start_;
};

}  // namespace evergrad::coordinator
