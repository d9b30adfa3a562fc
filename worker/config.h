// Settings of evergrad-worker in addition to those of every daemon (common/daemon). Each setting is
// declared once, in AddOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/daemon/option_table.h"
#include "common/fs/roots.h"
#include "common/object_store/file_systems.h"

namespace evergrad::worker {

struct Config {
  std::string name;  // if "", the number at the end of the host name or from the coordinator
  std::string device = "auto";  // auto | cpu | gpu | gpu:N; Resolve leaves cpu or gpu:N
  // The device and the reason for its choice, "cpu: no CUDA driver (cudart 35)". Resolve sets it.
  std::string device_text = {};
  std::string cuda_library = {};  // "" means libevergrad_cuda.so beside the executable
  std::uint32_t threads = 0;      // 0 for half of the cores, but at least one thread
  std::uint32_t prefetch_batches_max = 8;
  std::uint64_t prefetch_bytes_max = 64ull << 20;
  // The folders of jobs' data files. RootsOf describes the meaning of an empty list.
  std::vector<std::string> data_roots = {};
  std::uint64_t data_bytes_max = 8ull << 30;
  // The folder of the copies of data files in object stores; "" for a folder in TMPDIR or /tmp.
  std::string data_cache = {};
  std::uint64_t data_cache_bytes_max = 50ull << 30;
  object_store::StoreOptions stores = {};
  std::uint32_t step_records_max = 4096;
  std::chrono::milliseconds call_deadline{10000};
  std::uint64_t lane_bytes = 2ull << 20;  // 0 means no shared memory
  std::string not_finite = "fail";        // fail | skip
};

// `config` outlives the table.
void AddOptions(daemon::OptionTable* table, Config* config);

// Fills in the values that depend on the machine: the name, the threads, the device. Returns
// UserError for an invalid identity, and for an unusable device. A device is also unusable if its
// results differ from the CPU's on numbers drawn from `check_seed` (worker/backend/self_check.h).
absl::Status Resolve(absl::string_view host_name, unsigned cores, Config* config,
                     std::uint64_t check_seed = 1);

// Returns the folders of the files that a job may use as data, which are the folders of
// --data-root. Without this flag, a job may use all files if `local_only` is true, and otherwise no
// file. `local_only` states whether daemon::IsLocalOnly holds both for this worker and for the
// coordinator.
fs::Roots RootsOf(const Config& config, bool local_only);

}  // namespace evergrad::worker
