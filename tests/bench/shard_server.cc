#include "tests/bench/shard_server.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "common/base/check.h"
#include "common/transport/grpc/grpc_transport.h"

namespace evergrad::bench {

ShardServer::ShardServer(const std::string& listen, const std::vector<std::uint64_t>& jobs,
                         transport::TlsFiles tls) {
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    executors_.push_back(std::make_unique<runtime::ThreadExecutor>(
        runtime::ThreadExecutor::Options{"shards-" + std::to_string(i)}));
  ps_server::ShardHost::Options options;
  for (const auto& executor : executors_) options.executors.push_back(executor.get());
  options.registry = &registry_;
  host_ = std::make_unique<ps_server::ShardHost>(std::move(options));
  for (const std::uint64_t job : jobs)
    job == kDenseJob ? AssignDense() : AssignSlots(static_cast<std::uint32_t>(job));
  transport_ = transport::MakeGrpcTransport(nullptr);
  transport::Handlers handlers;
  handlers.data = [this](const transport::PeerInfo&, transport::ReceivedFrame frame,
                         std::unique_ptr<transport::DataResponder> responder) {
    host_->Handle(std::move(frame), std::move(responder));
  };
  transport::ServerOptions server;
  server.listen = listen;
  server.tls = std::move(tls);
  server.lane_bytes_max = kLaneBytesMax;
  if (server.tls.ca.empty()) server.insecure_listen = listen;
  auto listening = transport_->Listen(server, std::move(handlers));
  EG_CHECK_MSG(listening.ok(), listening.status().ToString());
  server_ = *std::move(listening);
}

void ShardServer::AssignDense() {
  host_->jobs().Learn(JobUid(kDenseJob), MapVersion{1, 1},
                      static_cast<std::uint32_t>(std::size(kDenseBytes)));
  for (std::uint32_t i = 0; i < std::size(kDenseBytes); ++i) {
    ps_server::ShardSettings shard;
    shard.job = JobUid(kDenseJob);
    shard.shard = ShardId(i);
    shard.variable = "dense/" + std::to_string(i);
    shard.variable_shape = tensor::Shape{kDenseBytes[i] / 4096, 1024};
    shard.row_end = kDenseBytes[i] / 4096;
    shard.optimizer.type = "sgd";
    Assign(std::move(shard));
  }
}

void ShardServer::AssignSlots(std::uint32_t dimension) {
  host_->jobs().Learn(JobUid(dimension), MapVersion{1, 1}, kSlots);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    ps_server::ShardSettings shard;
    shard.job = JobUid(dimension);
    shard.shard = ShardId(slot);
    shard.variable = "slot " + std::to_string(slot);
    ps_server::storage::TableSettings table;
    table.name = kTable;
    table.dimension = dimension;
    table.optimizer = {.type = "adagrad", .learning_rate = 0.01};
    shard.slot = ps_server::SlotSettings{slot, kSlots, {table}};
    Assign(std::move(shard));
  }
}

void ShardServer::Assign(ps_server::ShardSettings shard) {
  runtime::WaitableEvent assigned;
  host_->shard_executor(shard.shard)
      .Assign(shard, kEpoch, MapVersion{0, 0}, {},
              [&](const ps_server::ShardExecutor::Loaded& loaded) {
                EG_CHECK_MSG(loaded.status.ok(), loaded.status.ToString());
                assigned.Set();
              });
  assigned.Wait();
}

std::vector<std::string> SplitServers(const std::string& list) {
  std::vector<std::string> servers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    if (comma > at) servers.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return servers;
}

std::string RawAddressOf(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return "";
  const int port = std::atoi(address.c_str() + colon + 1);
  return port < 1 || port >= 65535 ? "" : address.substr(0, colon + 1) + std::to_string(port + 1);
}

}  // namespace evergrad::bench
