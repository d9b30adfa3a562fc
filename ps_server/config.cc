#include "ps_server/config.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/host_ordinal.h"
#include "common/fs/roots.h"

namespace evergrad::ps_server {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr unsigned kExecutorsMax = 256;
constexpr std::uint64_t kLaneBytesMin = 256ull << 10;  // size of the smallest lane
// Frame offsets have 32 bits (common/wire/FORMAT.md).
constexpr std::uint64_t kFrameBytesLimit = 3ull << 30;

}  // namespace

void AddOptions(daemon::OptionTable* table, Config* config) {
  table->Add("index", &config->index,
             "number that identifies this server. Empty means the number at the end of the host "
             "name (3 for ps-server-3), or 0 if the host name does not end in a number");
  table->Add("executors", &config->executors,
             "number of threads that apply updates. Each shard is written by one of the threads. 0 "
             "means one per core, at most 256",
             {0, kExecutorsMax});
  table->AddBytes("budget_bytes_max", &config->budget_bytes_max,
                  "limit of the bytes of requests and answers in flight, for all workers together",
                  {kMiB, 1ull << 40});
  table->AddBytes(
      "small_reserve_bytes_max", &config->small_reserve_bytes_max,
      "memory reserved for requests of at most 64 KiB, which clients send without waiting "
      "for a grant of memory",
      {kMiB, 1ull << 40});
  table->AddBytes("peer_small_bytes_max", &config->peer_small_bytes_max,
                  "largest part of the reserve for small requests that one worker may use",
                  {64 << 10, 1ull << 40});
  table->AddBytes("frame_bytes_max", &config->frame_bytes_max,
                  "largest size of one request or answer", {kMiB, kFrameBytesLimit});
  table->AddBytes("pool_bytes_max", &config->pool_bytes_max,
                  "spare memory for writing new values while the old values are being read",
                  {0, 1ull << 40});
  table->AddBytes("snapshot_bytes_max", &config->snapshot_bytes_max,
                  "largest size of a shard that is saved to a snapshot file, with its values, "
                  "optimizer state and ledger; a larger shard is not saved",
                  {kMiB, 1ull << 40});
  table->AddBytes("memory_bytes_max", &config->memory_bytes_max,
                  "memory limit for the rows of embedding tables, their index and their counters. "
                  "0 means 80 % of the memory of the machine or control group",
                  {0, 1ull << 50});
  table->Add("streams_max", &config->streams_max, "largest number of connections of workers",
             {1, 1u << 20});
  table->AddBytes("lane_bytes_max", &config->lane_bytes_max,
                  "largest total of the shared memory that carries payload between this server and "
                  "the tasks of this host in place of sockets. 0 means sockets only",
                  {0, 1ull << 40});
  table->Add("drain_max", &config->drain_max,
             "longest time for which the server stays, after SIGTERM or a preemption notice, to "
             "move its shards to other servers");
  table->Add("checkpoint_root", &config->checkpoint_roots,
             "folder, or s3:// or gs:// URI, that must contain all files that this server reads "
             "and writes for the coordinator, after links are followed. These files are in the "
             "checkpoint folders of "
             "jobs, and in the coordinator's runs folder for jobs without a checkpoint folder. If "
             "omitted, any folder that the coordinator names is allowed, and only the "
             "coordinator's own --checkpoint-root limits the jobs");
  object_store::AddStoreOptions(table, &config->stores);
  table->Add("unix_dir", &config->unix_dir,
             "folder for a unix socket, through which tasks on this host reach this server. Empty "
             "means no unix socket");
}

absl::Status Resolve(absl::string_view host_name, unsigned cores, std::uint64_t memory_bytes,
                     Config* config) {
  if (config->index.empty()) {
    config->index = daemon::HostOrdinal(host_name);
    config->index_by_default = config->index.empty();
    if (config->index_by_default) config->index.assign(1, '0');
  }
  std::uint32_t index = 0;
  if (!absl::SimpleAtoi(config->index, &index) || absl::StrCat(index) != config->index) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--index is not a number from 0 to 4294967295: got=", config->index)));
  }
  EG_RETURN_IF_ERROR(fs::MakeRootsAbsolute("--checkpoint-root", &config->checkpoint_roots));
  EG_RETURN_IF_ERROR(object_store::CheckStoreOptions(config->stores));
  if (config->memory_bytes_max == 0) config->memory_bytes_max = memory_bytes / 5 * 4;
  if (config->executors == 0) config->executors = std::clamp(cores, 1u, kExecutorsMax);
  if (config->peer_small_bytes_max > config->small_reserve_bytes_max) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--peer-small-bytes-max is above --small-reserve-bytes-max: got=",
                     config->peer_small_bytes_max, " max=", config->small_reserve_bytes_max)));
  }
  if (config->lane_bytes_max > 0 && config->lane_bytes_max < kLaneBytesMin) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--lane-bytes-max is too small for one worker: expected 0 (no shared "
                     "memory) or enough for one worker: got=",
                     config->lane_bytes_max, " min=", kLaneBytesMin)));
  }
  return absl::OkStatus();
}

}  // namespace evergrad::ps_server
