// The rules of ps_server/shard. The active mutant breaks one of them. shard.cc and slot_contents.cc
// of this folder are compiled with these rules.
#pragma once

#include "ps_server/shard/shard_rules.h"
#include "tests/mutants/mutant.h"

namespace evergrad::ps_server {

using mutants::IsActive;
using mutants::Mutant;

struct BreakableShardRules : ShardRules {
  static bool Serves(ShardEpoch asked, ShardEpoch own, bool stopped) {
    return ShardRules::Serves(IsActive(Mutant::kNoEpochCheck) ? own : asked, own,
                              stopped && !IsActive(Mutant::kSourceGoesOn));
  }
  static bool RefusesPushes(bool sealed) {
    return ShardRules::RefusesPushes(sealed) && !IsActive(Mutant::kSealAdmits);
  }
  static bool IsProved(const Push& push) {
    return ShardRules::IsProved(push) || IsActive(Mutant::kUnprovedAdmits) ||
           IsActive(Mutant::kUnprovedRaisesBar);
  }
  static Admission Check(const Push& push, Ledger* ledger) {
    const Admission admission = ShardRules::Check(push, ledger);
    if (admission == Admission::kAdmit && IsActive(Mutant::kRefusedPushLeavesBit))
      ledger->Record(push.closure, push.update, push.attempt);
    return admission;
  }
  static absl::string_view DefectOf(const Push& push) {
    return IsActive(Mutant::kUnprovedRaisesBar) && !push.unproved.empty()
               ? push.unproved
               : ShardRules::DefectOf(push);
  }
  static bool IsRecorded(UpdateKind kind) {
    return ShardRules::IsRecorded(kind) &&
           !(kind == UpdateKind::kSkip && IsActive(Mutant::kSkipLeavesNoBit));
  }
  static std::uint64_t VlsnAfterGradient(std::uint64_t vlsn, std::uint64_t lsn) {
    return IsActive(Mutant::kVlsnStays) ? vlsn : ShardRules::VlsnAfterGradient(vlsn, lsn);
  }
  static bool IsUnchanged(const Pull& pull, MapVersion start, std::uint64_t vlsn) {
    return ShardRules::IsUnchanged(
        pull, IsActive(Mutant::kUnchangedByVlsn) ? pull.have_start : start, vlsn);
  }
  static bool TakesClose(ShardEpoch epoch, MapVersion version, ShardEpoch own, MapVersion start) {
    return IsActive(Mutant::kCloseOfAnyTime) || ShardRules::TakesClose(epoch, version, own, start);
  }
  static bool IgnoresCloses(bool stopped) {
    return ShardRules::IgnoresCloses(stopped) && !IsActive(Mutant::kSourceGoesOn);
  }
  static std::uint64_t EventsOfClose(bool changed) {
    return IsActive(Mutant::kCloseLeavesLsn) ? 0 : ShardRules::EventsOfClose(changed);
  }
  static Ledger InCut(const Ledger& ledger) {
    return IsActive(Mutant::kLedgerNotInSnapshot) ? Ledger() : InSnapshot(ledger);
  }
  static Ledger InSnapshot(const Ledger& ledger) {
    return IsActive(Mutant::kSnapshotLosesOpen)
               ? Ledger::Restored(ledger.done(), ledger.refused(), {})
               : ShardRules::InSnapshot(ledger);
  }
};

struct BreakableSlotRules : SlotRules {
  static void TakeBack(storage::EmbeddingTable* table, tensor::WireType wire,
                       const std::byte* gradient) {
    if (!IsActive(Mutant::kHalfAdmitted)) return SlotRules::TakeBack(table, wire, gradient);
    while (table->applying()) table->Apply(wire, gradient, ~0ull);
  }
  static storage::EmbeddingTable::CutInfo BeginCut(storage::EmbeddingTable* table,
                                                   std::uint64_t preimage_bytes_max) {
    const auto info = SlotRules::BeginCut(table, preimage_bytes_max);
    if (IsActive(Mutant::kRowsAfterCut)) table->EndCut();
    return info;
  }
  static bool NextSlice(storage::EmbeddingTable* table, std::uint64_t bytes_max,
                        storage::TableSlice* slice) {
    if (IsActive(Mutant::kRowsAfterCut) &&
        table->cut_state() == storage::EmbeddingTable::CutState::kNone)
      table->BeginCut(kPreimageBytesMax);
    return SlotRules::NextSlice(table, bytes_max, slice);
  }
};

}  // namespace evergrad::ps_server
