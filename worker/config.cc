#include "worker/config.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/host_ordinal.h"
#include "common/transport/lane/lane.h"
#include "worker/backend/cuda/device_choice.h"
#include "worker/backend/self_check.h"

namespace evergrad::worker {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::size_t kNameBytesMax = 63;

}  // namespace

void AddOptions(daemon::OptionTable* table, Config* config) {
  table->Add("name", &config->name,
             "identity of this worker. Empty means the ordinal of the host name (3 for worker-3), "
             "or else a number from the coordinator");
  // By default the worker uses half of the cores, because a desktop machine usually runs two
  // workers.
  table->Add("threads", &config->threads,
             "number of compute threads; 0 means half of the cores, but at least one thread",
             {0, 1024});
  table->Add("device", &config->device,
             "compute device: cpu, gpu (the first GPU), gpu:N, or auto, which is the first usable "
             "GPU, or else the CPU");
  table->Add("cuda_library", &config->cuda_library,
             "path of libevergrad_cuda.so; empty means the file beside this program");
  table->AddPrint("list_devices", "print the GPUs of this host, one per line, and exit",
                  [config] { return ListDevices(config->cuda_library); });
  table->Add("prefetch_batches_max", &config->prefetch_batches_max,
             "largest number of batches that the worker reads ahead", {1, 1u << 16});
  table->AddBytes("prefetch_bytes_max", &config->prefetch_bytes_max,
                  "memory limit of the batches that the worker reads ahead",
                  {64 << 10, 1ull << 40});
  table->Add(
      "data_root", &config->data_roots,
      "folder, or s3:// or gs:// URI, that must contain the data files that jobs name, after links "
      "are followed; may be repeated. Without it, jobs may read every file that this process can "
      "read if worker and "
      "coordinator listen on loopback only, without TLS; otherwise jobs may read no file");
  table->AddBytes("data_bytes_max", &config->data_bytes_max,
                  "memory limit of one data source; a larger source is refused",
                  {kMiB, 1ull << 42});
  table->Add(
      "data_cache", &config->data_cache,
      "folder for copies of data files that lie in an object store; the workers of a host "
      "may share it. Empty means the folder evergrad-data-UID in TMPDIR or /tmp, where UID is "
      "the number of the user");
  table->AddBytes("data_cache_bytes_max", &config->data_cache_bytes_max,
                  "limit of the bytes in that folder; the copies that were not used for the "
                  "longest time are removed, and a data file above the limit is refused",
                  {kMiB, 1ull << 50});
  object_store::AddStoreOptions(table, &config->stores);
  table->Add("step_records_max", &config->step_records_max,
             "largest number of step records that are kept between two heartbeats; a further "
             "record replaces the oldest one",
             {16, 1u << 16});
  table->Add("call_deadline", &config->call_deadline,
             "a push or pull that makes no progress for this time is sent again; progress is a "
             "sent byte or an answer. While a server is alive, a wait for its memory may take six "
             "times as long",
             std::chrono::milliseconds(100), std::chrono::minutes(10));
  table->AddBytes(
      "lane_bytes", &config->lane_bytes,
      "size of the shared memory, per direction, between this worker and each server on "
      "the same host; it carries payload in place of a socket. A multiple of 64KiB; 0 "
      "disables shared memory",
      {0, transport::kLaneRingBytesMax});
  table->AddChoice("not_finite", &config->not_finite, {"fail", "skip"},
                   "reaction to a NaN or infinite loss or gradient: fail ends the job, skip skips "
                   "the update and counts it");
}

fs::Roots RootsOf(const Config& config, bool local_only) {
  if (config.data_roots.empty() && local_only) return {};
  return fs::Roots::Only(
      config.data_roots,
      config.data_roots.empty()
          ? "this worker was started without --data-root, and its cluster is not only on this "
            "machine: start the worker with --data-root FOLDER, the folder that contains the data"
          : "start the worker with one more --data-root FOLDER to allow another folder");
}

absl::Status Resolve(absl::string_view host_name, unsigned cores, Config* config,
                     std::uint64_t check_seed) {
  if (config->name.empty()) config->name = daemon::HostOrdinal(host_name);
  const bool good = std::all_of(config->name.begin(), config->name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (!good || config->name.size() > kNameBytesMax) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--name must consist of at most ", kNameBytesMax,
                     " letters, digits and the characters - _ . only: got=", config->name)));
  }
  if (config->lane_bytes % transport::kLaneRingUnit != 0) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("--lane-bytes is not a multiple of 64KiB: got=", config->lane_bytes)));
  }
  EG_RETURN_IF_ERROR(fs::MakeRootsAbsolute("--data-root", &config->data_roots));
  EG_RETURN_IF_ERROR(object_store::CheckStoreOptions(config->stores));
  if (config->threads == 0) config->threads = std::max(1u, cores / 2);
  EG_ASSIGN_OR_RETURN(const DeviceChoice choice,
                      ChooseCheckedDevice(config->device, config->cuda_library, check_seed));
  config->device = choice.name;
  config->device_text = choice.text;
  return absl::OkStatus();
}

}  // namespace evergrad::worker
