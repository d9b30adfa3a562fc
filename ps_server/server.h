// A parameter server: shards on executors, the data service for the workers, and the session with
// the coordinator.
//
// Data streams of workers reach ShardHost, which passes each section to the ShardExecutor of its
// shard. A ShardExecutor has one thread and is the single writer of its shards. The session with
// the coordinator runs on the control executor (SessionClient, Control), which gives orders to the
// ShardExecutors, to SnapshotWriter and to Restorer. SnapshotWriter and Restorer have an I/O thread
// each.
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
#include "common/health/health.h"
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
    std::uint64_t process_uid = 0;            // random, drawn at start; also names the unix socket
    fs::FileSystem* files = nullptr;          // file system of snapshots
    health::Health* health = nullptr;         // may be null
  };
  // The description of this process for the coordinator.
  struct Identity : client::TaskIdentity {
    std::string coordinator_address;
  };

  // Binds the address and begins to serve. At first the server holds no shard. `config` must be
  // resolved. Errors are those of Transport::Listen.
  static absl::StatusOr<std::unique_ptr<Server>> Listen(const Dependencies& dependencies,
                                                        const Config& config,
                                                        transport::ServerOptions server_options);
  ~Server();  // calls Stop("destroyed")

  std::string address() const;    // the bound address
  std::string unix_path() const;  // "" if no unix socket is served

  // Dials the coordinator, and redials until Stop. `on_refused` is called at most once, when the
  // coordinator has refused this process permanently. `on_drain` is called at most once, when an
  // operator drains the server. Both callbacks run on the control executor.
  void Join(Identity identity, client::SessionClient::Options session,
            std::function<void(const std::string& kind)> on_refused,
            std::function<void(const std::string& reason)> on_drain = nullptr);

  // Announces to the coordinator that this process will end. Waits until the coordinator has moved
  // the shards to other servers (LEDGER line 22), until the coordinator reports that it cannot move
  // them, or until the coordinator announces its own end. Called after a notice that this process
  // will end, and before Stop. The wait takes at most `config.drain_max`. If the server holds
  // shards and has no session, the wait for a session takes at most 3 s. Returns true if the server
  // holds no shard any more. Blocks; must not be called from a callback.
  bool Drain(absl::string_view reason);
  // Sends the message Leaving to the coordinator, and ends the session, the streams and the
  // executors. Idempotent. Must not be called from a callback.
  void Stop(absl::string_view reason);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::ps_server
