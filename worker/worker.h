// A worker: the session with the coordinator, the runner behind it, streams to the servers, one
// thread that computes.
//
//   coordinator ── session ──▶ control executor: SessionClient, Runner ──▶ compute executor
//   servers     ══ data streams ══▶ ParameterClient
//
// Several may live in one process. Everything it needs comes in by the constructor and outlives it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/client/session_client.h"
#include "common/client/task_identity.h"
#include "common/fault/failpoints.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "worker/config.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

inline constexpr char kDeviceLost[] = "device_lost";
int ExitCodeOf(
    absl::string_view kind);  // of a refusal, or kDeviceLost (common/daemon/exit_codes.h)

class Worker {
 public:
  struct Dependencies {
    transport::Transport* transport = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    const Clock* clock = nullptr;
    fault::Failpoints* failpoints = nullptr;  // may be null
    std::uint64_t process_uid = 0;            // random at start
  };
  struct Identity : client::TaskIdentity {
    bool allow_counting = false;               // started with --failpoints
    const sdk::Registry* functions = nullptr;  // a user's; outlives the worker. Null: none
    bool local_only = false;                   // daemon::IsLocalOnly
  };

  // Binds (health only: nobody needs to reach a worker). `config` is resolved. Errors are those of
  // Transport::Listen.
  static absl::StatusOr<std::unique_ptr<Worker>> Listen(const Dependencies& dependencies,
                                                        const Config& config,
                                                        transport::ServerOptions server_options);
  ~Worker();  // Stop("destroyed").

  std::string address() const;  // as bound

  // Dials the coordinator and keeps at it until Stop. `on_refused` (control executor) is called
  // when the coordinator has refused this process for good, with the kind of the refusal; or with
  // kDeviceLost. Once. `on_drain` (likewise): an operator wants it to leave.
  void Join(Identity identity, client::SessionClient::Options session,
            std::function<void(const std::string& kind)> on_refused,
            std::function<void(const std::string& reason)> on_drain = nullptr);

  // Finishes or drops the running step, hands back what has not begun, says Leaving, ends
  // everything: within 10 s, the time of one step or one file on the compute thread included.
  // Idempotent; not from a callback.
  void Stop(absl::string_view reason);

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace evergrad::worker
