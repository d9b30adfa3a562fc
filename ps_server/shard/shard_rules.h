// The rules by which a Shard and the contents of a slot decide (LEDGER lines 6, 8, 9 to 13, 20a,
// 22, 24, 27 and 35). A rule changes nothing except its arguments: no state, no thread, no error.
// shard.cc and slot_contents.cc are the only callers.
//
// tests/mutants compiles both files a second time with its own copy of the rules, in which a test
// can break each rule. A rule inside shard.cc or slot_contents.cc would escape this test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

struct ShardRules {
  // LEDGER 8, 22: a shard serves only requests of its own epoch, and no request after it was
  // stopped for a move.
  static bool Serves(ShardEpoch asked, ShardEpoch own, bool stopped) {
    return asked == own && !stopped;
  }
  // LEDGER 20a: a sealed shard refuses every push.
  static bool RefusesPushes(bool sealed) { return sealed; }
  // LEDGER 35: a push must prove its grant before the ledger is read or changed.
  static bool IsProved(const Push& push) { return push.unproved.empty(); }
  // LEDGER 9, 10: the ledger decides about the push.
  static Admission Check(const Push& push, Ledger* ledger) {
    return ledger->Check(push.closure, push.update, push.attempt);
  }
  // LEDGER 11: the error that the decoder found in an admitted push, or "".
  static absl::string_view DefectOf(const Push& push) { return push.defect; }
  // LEDGER 12, 13: a skipped update is recorded like an applied one.
  static bool IsRecorded(UpdateKind) { return true; }
  // LEDGER 6: an applied gradient changes the values, so its lsn becomes the vlsn.
  static std::uint64_t VlsnAfterGradient(std::uint64_t /*vlsn*/, std::uint64_t lsn) { return lsn; }
  // LEDGER 13: two states with different starts can have the same vlsn, so a pull compares the
  // starts, too.
  static bool IsUnchanged(const Pull& pull, MapVersion start, std::uint64_t vlsn) {
    return pull.has && pull.have_start == start && pull.have_vlsn == vlsn;
  }
  // LEDGER 24: a shard accepts a Close only if the Close was made for the shard's epoch, and if its
  // map version is not lower than the shard's start.
  static bool TakesClose(ShardEpoch epoch, MapVersion version, ShardEpoch own, MapVersion start) {
    return epoch == own && version >= start;
  }
  // LEDGER 22: a stopped shard ignores Closes, because each Close contains all ended closures, so
  // its next owner misses none.
  static bool IgnoresCloses(bool stopped) { return stopped; }
  // LEDGER 6: a Close that changed the ledger raises the lsn by 1.
  static std::uint64_t EventsOfClose(bool changed) { return changed ? 1 : 0; }
  // LEDGER 6, 27: the values of a cut are the effect of exactly the updates in its ledger.
  static const Ledger& InCut(const Ledger& ledger) { return ledger; }
  static const Ledger& InSnapshot(const Ledger& ledger) { return ledger; }
};

struct SlotRules {
  // LEDGER 11: if one table refuses a push, the preparation of the other tables is cancelled.
  static void TakeBack(storage::EmbeddingTable* table, tensor::WireType, const std::byte*) {
    table->Cancel();
  }
  // LEDGER 27: a cut contains the rows as they were when it began, even if pushes change them
  // before their slice.
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
