// The rules by which a Shard and the contents of a slot decide (LEDGER lines 6, 8, 9 to 13, 20a,
// 22, 24, 27 and 35). Pure but for the argument that a rule changes: no thread, no error. shard.cc
// and slot_contents.cc are the only callers.
//
// tests/mutants compiles both a second time with rules of its own, each of which a test can break.
// A rule that is inlined into its caller would escape those tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

struct ShardRules {
  // 8, 22: a shard serves its own epoch, and nobody once it was stopped for a move.
  static bool Serves(ShardEpoch asked, ShardEpoch own, bool stopped) {
    return asked == own && !stopped;
  }
  // 20a
  static bool RefusesPushes(bool sealed) { return sealed; }
  // 35: a push must prove its grant before the ledger is read or changed.
  static bool IsProved(const Push& push) { return push.unproved.empty(); }
  // 9, 10
  static Admission Check(const Push& push, Ledger* ledger) {
    return ledger->Check(push.closure, push.update, push.attempt);
  }
  // 11: the reason for which an admitted push is invalid whatever it carries; or "".
  static absl::string_view DefectOf(const Push& push) { return push.defect; }
  // 12, 13: a skipped update is recorded like an applied one.
  static bool IsRecorded(UpdateKind) { return true; }
  // 6: an applied gradient is the newest change of the values.
  static std::uint64_t VlsnAfterGradient(std::uint64_t /*vlsn*/, std::uint64_t lsn) { return lsn; }
  // 13: equal counts of two states say nothing, so a pull compares their starts, too.
  static bool IsUnchanged(const Pull& pull, MapVersion start, std::uint64_t vlsn) {
    return pull.has && pull.have_start == start && pull.have_vlsn == vlsn;
  }
  // 24: a Close counts under the epoch and the map that it was made for.
  static bool TakesClose(ShardEpoch epoch, MapVersion version, ShardEpoch own, MapVersion start) {
    return epoch == own && version >= start;
  }
  // 22: a stopped shard ignores Closes, because its next owner gets each Close with all its sets.
  static bool IgnoresCloses(bool stopped) { return stopped; }
  // 6: a Close that changed the ledger is an event.
  static std::uint64_t EventsOfClose(bool changed) { return changed ? 1 : 0; }
  // 6, 27: the values are the effect of exactly the updates in the ledger beside them.
  static const Ledger& InCut(const Ledger& ledger) { return ledger; }
  static const Ledger& InSnapshot(const Ledger& ledger) { return ledger; }
};

struct SlotRules {
  // 11: what was prepared for a push that another table refuses is taken back.
  static void TakeBack(storage::EmbeddingTable* table, tensor::WireType, const std::byte*) {
    table->Cancel();
  }
  // 27: the rows of a cut are those of its moment, whatever pushes change before their slice.
  static storage::EmbeddingTable::CutInfo BeginCut(storage::EmbeddingTable* table,
                                                   std::uint64_t preimage_bytes_max) {
    return table->BeginCut(preimage_bytes_max);
  }
  static bool NextSlice(storage::EmbeddingTable* table, std::uint64_t bytes_max,
                        storage::TableSlice* slice) {
    return table->NextSlice(bytes_max, slice);
  }
};

}  // namespace evergrad::ps_server
