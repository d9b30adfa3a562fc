// The durable state of one job in the coordinator's half of the ledger protocol, and the records
// that change it (LEDGER lines 18 to 28; numbers in brackets are lines of LEDGER). Plain values: no
// clock, no threads, no I/O.
//
// A Record is one transaction of the journal. To restore the state, apply all records of the
// journal in their order with ApplyRecord.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/interval_set.h"

namespace evergrad::coordinator {

struct ShardOwner {
  std::string server;  // identity; "" if no server owns the shard
  ShardEpoch epoch;
  MapVersion start;
  friend bool operator==(const ShardOwner&, const ShardOwner&) = default;
};

// [27] A durable snapshot of one shard, from which a rollback may begin.
struct Snapshot {
  std::string folder, file;  // URI of the folder; name of the file in it
  std::uint64_t bytes = 0;
  std::string sha256;            // hash of the whole file
  JobUid job;                    // the job that wrote it
  std::string plan_fingerprint;  // fingerprint of that job's plan
  ShardEpoch epoch;              // epoch, start, lsn and vlsn are the values in the file
  MapVersion start;
  std::uint64_t lsn = 0, vlsn = 0;
  IntervalSet done, refused;  // sets of the file's ledger, or of the new ledger if replace_ledger
  // [28] true if another job wrote the file; the attempts of open closures are then forgotten
  bool resumed = false;
  bool replace_ledger = false;  // [28] another plan numbered the updates of the file
  std::string host;             // host of the server that wrote the file, for messages
  std::string Uri() const { return folder + "/" + file; }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// The state named in LEDGER's line "Coordinator, durable", but without the n of the (term, n)
// pairs. Each life counts n from 1, because it assigns no n before its new term is durable.
struct DurableState {
  Term term;
  MapVersion version;
  // [18] For each of the newest kKnownTermsMax terms, the highest n of a map version in the
  // journal. The journal has forgotten every higher map version of these terms, and every map
  // version of an earlier term. One number for all terms would not be enough, because a later life
  // counts past the numbers that a torn tail lost.
  std::map<std::uint64_t, std::uint64_t> known;
  std::vector<ShardOwner> map;
  IntervalSet succeeded, dead;
  std::vector<IntervalSet> todo, lost;  // by shard
  // The snapshots by shard, in the order in which they became durable.
  std::vector<std::vector<Snapshot>> snapshots;
  // Grows each vector to at least `shards` entries.
  void Resize(std::size_t shards);
  // Returns the closures that an owner of the shard must refuse (line 24).
  IntervalSet RefusedAt(std::uint32_t shard) const { return dead.Union(lost[shard]); }
  friend bool operator==(const DurableState&, const DurableState&) = default;
};

inline constexpr std::size_t kKnownTermsMax = 64;

// One transaction. Absent fields are unchanged. Sets are differences, so a small change makes a
// small record.
struct Record {
  std::optional<Term> term;
  std::optional<MapVersion> version;
  std::map<std::uint32_t, ShardOwner> map;
  IntervalSet succeeded_add, dead_add;
  std::map<std::uint32_t, IntervalSet> todo_add, todo_remove, lost_add;
  std::map<std::uint32_t, std::vector<Snapshot>> snapshot_add;
  std::map<std::uint32_t, std::set<std::string>> snapshot_remove;  // by URI
  bool empty() const;
  friend bool operator==(const Record&, const Record&) = default;
};
// Applies the record to the state: removals first, then additions.
void ApplyRecord(const Record& record, DurableState* state);
// Changes `into` to one record that has the effect of `into` followed by `later`.
void AppendRecord(const Record& later, Record* into);

}  // namespace evergrad::coordinator
