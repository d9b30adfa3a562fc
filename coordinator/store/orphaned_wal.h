// Detects a -wal file of SQLite without its database.
//
// SQLite treats an empty or missing database as a new database and deletes the -wal file beside it.
// The -wal file may be the only record of a coordinator's jobs, so it is checked before SQLite
// opens anything.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace evergrad::coordinator {

// Returns the size in bytes of DATABASE-wal if DATABASE is missing or empty; 0 if nothing is
// orphaned.
std::uint64_t OrphanedWalBytes(const std::string& database);
// Durably renames DATABASE-wal to DATABASE-wal.orphaned, or to the first of .orphaned-2,
// .orphaned-3, … that is free. Returns the new path.
absl::StatusOr<std::string> SetWalAside(const std::string& database);

}  // namespace evergrad::coordinator
