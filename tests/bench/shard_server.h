// The server side of dense_bench and rows_bench: a parameter server's shards in this process,
// without daemon and coordinator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/sharding/slots.h"
#include "common/transport/transport.h"
#include "ps_server/service/shard_host.h"

namespace evergrad::bench {

inline constexpr ShardEpoch kEpoch{1, 1};  // the epoch of every shard
// Job kDenseJob has plain SGD and the two float32 shards 0 and 1, with the sizes in kDenseBytes.
inline constexpr std::uint64_t kDenseJob = 1;
inline constexpr std::uint64_t kDenseBytes[] = {4u << 20, 64u << 20};
// Jobs 16 and 64 have one embedding table `kTable`, whose dimension is the job's number, with
// Adagrad and kSlots slots (the i-th partitions of all tables, each one shard).
inline constexpr std::uint32_t kSlots = sharding::kSlotsDefault;
inline constexpr char kTable[] = "items";
// These two sizes are the daemons' defaults for a shared-memory lane.
inline constexpr std::uint64_t kLaneBytesMax = 64u << 20, kLaneRingBytes = 2u << 20;

class ShardServer {
 public:
  // Serves those of the jobs above that are named in `jobs`, with one executor per core. Stops the
  // process if it cannot listen. An address that is not on loopback is allowed, because the caller
  // has asked for it.
  ShardServer(const std::string& listen, const std::vector<std::uint64_t>& jobs,
              transport::TlsFiles tls = {});
  std::string address() const { return server_->address(); }

 private:
  void AssignDense();
  void AssignSlots(std::uint32_t dimension);
  void Assign(ps_server::ShardSettings shard);

  metrics::Registry registry_;
  std::vector<std::unique_ptr<runtime::ThreadExecutor>> executors_;
  std::unique_ptr<ps_server::ShardHost> host_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Server> server_;
};

// Splits "A,B,C" at the commas and drops empty parts.
std::vector<std::string> SplitServers(const std::string& list);
// Returns the address with the same host and the next port, where bench_server has its raw TCP
// stream, or "" if there is none.
std::string RawAddressOf(const std::string& address);

}  // namespace evergrad::bench
