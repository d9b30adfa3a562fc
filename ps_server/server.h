// A parameter server: shards on executors, the data service in front of them, the session with the
// coordinator behind.
//
//   workers ══ data streams ══▶ transport ──▶ ShardHost ──▶ lane 0 … lane n (one executor each,
//   single writer of its shards) coordinator ── session ──▶ control executor: SessionClient,
//   Control ──▶ lanes
//                                                    └──▶ SnapshotWriter, Restorer (an I/O thread
//                                                    each) ◀──▶ files
//
// Several servers may run in one process. All dependencies are passed to the constructor and
// outlive the server.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/client/session_client.h"
#include "common/client/task_identity.h"
#include "common/fault/failpoints.h"
#include "common/fs/file_system.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "ps_server/config.h"

namespace evergrad::ps_server {

class Server {
 public:
  struct Dependencies {
    transport::Transport* transport = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;  // may be null
    std::uint64_t process_uid = 0;            // random at start; also names the unix socket
    fs::FileSystem* files = nullptr;          // of snapshots
  };
  // The description of this process for the coordinator.
  struct Identity : client::TaskIdentity {
    std::string coordinator_address;
    std::string advertised_address;
  };

  // Binds and serves, without any shard yet. `config` is resolved. Errors are those of
  // Transport::Listen.
  static absl::StatusOr<std::unique_ptr<Server>> Listen(const Dependencies& dependencies,
                                                        const Config& config,
                                                        transport::ServerOptions server_options);
  ~Server();  // calls Stop("destroyed")

  std::string address() const;    // as bound
  std::string unix_path() const;  // "" when none is served

  // Dials the coordinator, repeatedly until Stop. `on_refused` is called once on the control
  // executor when the coordinator has refused this process for good, and `on_drain` likewise when
  // an operator drains the server.
  void Join(Identity identity, client::SessionClient::Options session,
            std::function<void(const std::string& kind)> on_refused,
            std::function<void(const std::string& reason)> on_drain = nullptr);

  // After a notice that this process will end: announces it, and waits until the coordinator has
  // moved its shards to other servers (LEDGER line 22), reports that it cannot, or is stopping
  // itself; at most `config.drain_max`. Without a session it waits drain_alone_max for one if the
  // server holds shards. Returns whether the server holds no shard any more. Stop follows. Blocks;
  // not called from a callback.
  bool Drain(absl::string_view reason);
  // Sends Leaving, ends the session, the streams and the executors. Idempotent; not called from a
  // callback.
  void Stop(absl::string_view reason);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::ps_server
