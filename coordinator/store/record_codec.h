// Encodes records and states as bytes of the journal (FORMAT.md), and decodes them. Pure. The
// decoders return InvalidArgument with the name of the field for invalid bytes.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/closures/durable_state.h"

namespace evergrad::v1 {
class JournalRecord;
}

namespace evergrad::coordinator {

// Largest number of shards of a job. A larger number in the journal means invalid bytes.
inline constexpr std::uint32_t kJournalShardsMax = 1u << 20;

void EncodeRecord(const Record& record, v1::JournalRecord* out);
absl::StatusOr<Record> DecodeRecord(const v1::JournalRecord& in);
std::string EncodeState(const DurableState& state);
absl::StatusOr<DurableState> DecodeState(const std::string& bytes);

}  // namespace evergrad::coordinator
