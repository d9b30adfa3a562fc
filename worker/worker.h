// A worker, with its session to the coordinator, its runner, its streams to the servers, and one
// compute thread.
//
//   coordinator ── session ──▶ control executor: SessionClient, Runner ──▶ compute executor
//   servers     ══ data streams ══▶ ParameterClient
//
// Several workers may run in one process. All objects that the constructor receives outlive the
// worker.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/client/session_client.h"
#include "common/client/task_identity.h"
#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "worker/config.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

class JobKind;
class ObjectCache;

inline constexpr char kDeviceLost[] = "device_lost";
// Returns the exit code for the kind of a refusal, or for kDeviceLost (common/daemon/exit_codes.h).
int ExitCodeOf(absl::string_view kind);

class Worker {
 public:
  struct Dependencies {
    transport::Transport* transport = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;  // may be null
    std::uint64_t process_uid = 0;            // random, drawn at start
    health::Health* health = nullptr;         // may be null
    ObjectCache* data_cache = nullptr;        // DataOptions::cache; may be null
  };
  struct Identity : client::TaskIdentity {
    // A user's functions, which outlive the worker; null if there are none.
    const sdk::Registry* functions = nullptr;
    std::vector<const JobKind*> more_job_kinds;  // Runner::Environment::more_job_kinds
    bool local_only = false;                     // result of daemon::IsLocalOnly
  };

  // Binds a port for health checks, the only calls that a worker accepts. `config` must be resolved
  // (Resolve). The errors are those of Transport::Listen.
  static absl::StatusOr<std::unique_ptr<Worker>> Listen(const Dependencies& dependencies,
                                                        const Config& config,
                                                        transport::ServerOptions server_options);
  ~Worker();  // calls Stop("destroyed")

  std::string address() const;  // the bound address

  // Connects to the coordinator, and reconnects until Stop. `on_refused` is called at most once:
  // with the kind of the refusal if the coordinator has refused this process permanently, or with
  // kDeviceLost. `on_drain` is called when an operator has requested a drain. Both functions run on
  // the control executor.
  void Join(Identity identity, client::SessionClient::Options session,
            std::function<void(const std::string& kind)> on_refused,
            std::function<void(const std::string& reason)> on_drain = nullptr);

  // Finishes or drops the running step, hands back attempts that have not begun, sends the message
  // Leaving to the coordinator, and ends all threads and streams. The call takes at most 10 s,
  // including one step or one file on the compute thread. A repeated call does nothing. A callback
  // must not call Stop.
  void Stop(absl::string_view reason);

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::worker
