// Detects damage in the middle of a -wal file of SQLite.
//
// SQLite reads the frames of a -wal file up to the first wrong checksum and silently drops the
// rest, because a power failure leaves the last transaction in this state. A flipped bit in the
// middle of the file looks the same to SQLite, and the journal would lose acknowledged changes. The
// functions of this file distinguish the two cases. With synchronous=FULL a transaction is on disk
// before the first frame of the next one is written. Therefore, if two successive commits follow a
// wrong frame, all frames up to the first of these commits were durable.
//
// File format: https://www.sqlite.org/fileformat2.html#walformat
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace evergrad::coordinator {

// Returns the offset of a corrupt frame that later commits follow, or 0 if the file's header is
// corrupt. Returns nullopt if the file is intact, torn in its last transaction, or missing. Blocks
// while it reads the file.
std::optional<std::uint64_t> DamagedWalAt(const std::string& path);

}  // namespace evergrad::coordinator
