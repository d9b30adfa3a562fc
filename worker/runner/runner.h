// Runs the attempts that the coordinator grants: one at a time, step by step, and reports each
// once.
//
//   session ──▶ control executor ───────────────┐        prefetch thread     files -> batches
//               Runner: AttemptBook, Exchange   │
//   servers ◀─▶ pushes and pulls                └──────▶ compute executor    weights, batch ->
//   gradients
//
// Every method and every callback is on the control executor; nothing there blocks. Whether a push
// is settled, an attempt dropped or a Done kept is AttemptBook's decision (LEDGER lines 14 to 17
// and 26); this class performs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/client/parameter_client.h"
#include "common/fault/failpoints.h"
#include "common/fs/roots.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "worker/sdk/sdk.h"

namespace evergrad::worker {

class Runner {
 public:
  // All outlive the runner. The executors are shut down before it is destroyed, or run nothing
  // while it is.
  struct Environment {
    runtime::Executor* control = nullptr;
    runtime::Executor* compute = nullptr;
    client::ParameterClient* client = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;    // may be null
    const Clock* clock = nullptr;               // null: no push is announced before it is there
    const sdk::Registry* functions = nullptr;   // may be null: none
    std::function<bool(v1::TaskMessage)> send;  // SessionClient::Send
    // May be null. The device that this process computes on has failed, and no other step will do
    // better: once its attempt has been reported as Failed.
    std::function<void(const absl::Status&)> on_device_lost = nullptr;
  };
  struct Options {
    std::string device = "auto", cuda_library = {};  // BackendOptions'
    int threads = 1;
    bool bind_threads = false;  // BackendOptions::bind
    std::uint32_t prefetch_batches_max = 8;
    std::uint64_t prefetch_bytes_max = 64ull << 20;
    std::uint64_t data_bytes_max = 8ull << 30;  // of one source, in memory
    fs::Roots data_roots = {};                  // where a job's data files may lie
    std::uint32_t step_records_max =
        4096;  // between two heartbeats; older ones are dropped and counted
    std::chrono::milliseconds call_deadline{10000};
    std::chrono::milliseconds backoff_min{10}, backoff_max{1000};
    std::chrono::milliseconds drain_step_max{5000}, drain_done_max{2000};
    std::chrono::milliseconds drain_alone_max{
        500};  // of a drain without a session: nobody is there to be told of an end
    std::uint64_t message_bytes_max = 4ull
                                      << 20;  // of the session; a larger Done could never be sent
    bool skip_not_finite =
        false;  // policy for NaN and Inf: a user's error, or a SKIP that is counted
    bool allow_counting = false;  // the daemon was started with --failpoints
    std::string host;             // where exported files lie
  };

  Runner(Environment environment, Options options);
  ~Runner();

  // --- session
  void SetIdentity(const std::string& identity);  // "0"; known from Registered at the latest
  void SetDataRoots(
      const fs::Roots& roots);  // in place of Options::data_roots, for jobs that begin from now on
  void FillHello(v1::Hello* hello) const;  // highest_term, life_id and every attempt in hand [26]
  void OnRegistered(const v1::Registered& registered);
  void OnLost();  // the session has ended; what is held goes on [17]
  void OnMessage(const v1::CoordinatorMessage& message);
  v1::WorkerProgress Progress();  // takes the step records collected since the last call

  // Hands back what has not begun, finishes or drops the running step, waits a bounded time for
  // answers to what is done, then calls `done` once. Without a session nobody hears of either: what
  // then has not settled by itself within drain_alone_max is dropped. No new work is taken from
  // here on. A second call is ignored.
  void Drain(std::function<void()> done);

 private:
  struct Impl;
  std::shared_ptr<Impl>
      impl_;  // shared with what is posted to the executors, which holds it weakly
};

}  // namespace evergrad::worker
