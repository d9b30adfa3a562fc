// Settings of evergrad-ps-server, in addition to the settings of every daemon (common/daemon). Each
// setting is declared once in AddOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/daemon/option_table.h"
#include "common/object_store/file_systems.h"

namespace evergrad::ps_server {

struct Config {
  std::string index;  // if "", Resolve sets the number at the end of the host name, or 0
  // Resolve sets this to true if neither the flag nor the host name gives the index, which is then
  // 0.
  bool index_by_default = false;
  std::uint32_t executors = 0;  // 0 means one per core, at most 256
  std::uint64_t budget_bytes_max = 256ull << 20;
  std::uint64_t small_reserve_bytes_max = 16ull << 20;
  std::uint64_t peer_small_bytes_max = 4ull << 20;
  std::uint64_t frame_bytes_max = 1ull << 30;
  std::uint64_t pool_bytes_max = 256ull << 20;
  std::uint64_t snapshot_bytes_max = 1ull << 30;
  // Memory for embedding tables. If 0, Resolve sets 80 % of the memory that the process may use.
  std::uint64_t memory_bytes_max = 0;
  std::uint32_t streams_max = 4096;
  std::uint64_t lane_bytes_max = 64ull << 20;  // shared memory of all peers; 0 disables it
  std::string unix_dir;                        // folder of the unix socket; "" for none
  // The folders in which the coordinator may order checkpoints: local folders and URIs of object
  // stores. If empty, any folder is allowed.
  std::vector<std::string> checkpoint_roots;
  object_store::StoreOptions stores;
  std::chrono::milliseconds drain_max{10000};
};

// `config` outlives the table.
void AddOptions(daemon::OptionTable* table, Config* config);

// Fills in the settings that depend on the machine. `memory_bytes` is the memory that the process
// may use (daemon::MemoryLimitBytes). Returns InvalidArgument (a user error) for an index that is
// not a number, and for limits that contradict each other.
absl::Status Resolve(absl::string_view host_name, unsigned cores, std::uint64_t memory_bytes,
                     Config* config);

}  // namespace evergrad::ps_server
