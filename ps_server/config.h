// Settings of evergrad-ps-server beside those of every daemon (common/daemon): each is declared
// once in AddOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/daemon/option_table.h"

namespace evergrad::ps_server {

struct Config {
  std::string index;              // "": the ordinal of the host name, else 0
  bool index_by_default = false;  // Resolve: neither was given, it is 0 for want of anything else
  std::uint32_t executors = 0;    // 0: one per core, at most 8
  std::uint64_t budget_bytes_max = 256ull << 20;
  std::uint64_t small_reserve_bytes_max = 16ull << 20;
  std::uint64_t peer_small_bytes_max = 4ull << 20;
  std::uint64_t frame_bytes_max = 1ull << 30;
  std::uint64_t pool_bytes_max = 256ull << 20;
  std::uint64_t snapshot_bytes_max = 1ull << 30;
  std::uint64_t memory_bytes_max =
      0;  // of embedding tables; 0 until Resolve: 0.8 of what the process may take
  std::uint32_t streams_max = 4096;
  std::uint64_t lane_bytes_max = 64ull << 20;  // 0: no shared memory
  std::string unix_dir;                        // "": no unix socket
  std::vector<std::string> checkpoint_roots;   // none: wherever the coordinator says
  std::chrono::milliseconds drain_max{10000};
};

// `config` outlives the table.
void AddOptions(daemon::OptionTable* table, Config* config);

// Fills in what depends on the machine; `memory_bytes`: what the process may take
// (daemon::MemoryLimitBytes). InvalidArgument (a user's): an identity that is no number, limits
// that exclude each other.
absl::Status Resolve(absl::string_view host_name, unsigned cores, std::uint64_t memory_bytes,
                     Config* config);

// "ps-server-3" -> "3"; nullopt for a name without an ordinal behind a dash.
std::optional<std::string> OrdinalOf(absl::string_view host_name);

}  // namespace evergrad::ps_server
