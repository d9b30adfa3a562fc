// Whether a -wal file of SQLite is damaged in its midst.
//
// SQLite takes a -wal file's frames up to the first whose checksum is wrong, and drops all behind
// it without a word: that is what a loss of power leaves of the last transaction. A bit that flips
// in the midst of the file looks the same to it, and the journal would forget what it had
// acknowledged. Here the two are told apart: with synchronous=FULL a transaction is on the disk
// before the next one's first frame is written, so that where two commits follow one another behind
// a wrong frame, everything up to the first of them had been durable.
//
// File format: https://www.sqlite.org/fileformat2.html#walformat
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace evergrad::coordinator {

// The offset of the frame (0: the file's header) that is not as it was written though later commits
// are behind it. nullopt: the file is whole, torn in its last transaction, or not there. Blocks
// while it reads the file.
std::optional<std::uint64_t> DamagedWalAt(const std::string& path);

}  // namespace evergrad::coordinator
