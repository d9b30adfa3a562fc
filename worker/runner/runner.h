// Runs the attempts that the coordinator grants, one at a time and step by step, and reports the
// end of each attempt once.
//
//   session ──▶ control executor: Runner,  ──▶ compute executor: weights, batch -> gradients
//   servers ◀─▶ AttemptBook, Exchange      ◀── prefetch thread: files -> batches
//
// Every method and every callback runs on the control executor, which never blocks. AttemptBook
// decides whether a push is settled, an attempt is dropped, or a Done (the report of a finished
// attempt) is kept (LEDGER lines 14 to 17 and 26). This class executes these decisions. Numbers in
// brackets are lines of LEDGER.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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

class JobKind;
class ObjectCache;

class Runner {
 public:
  // All objects outlive the runner. The executors must be shut down, or run nothing, while the
  // runner is destroyed.
  struct Environment {
    runtime::Executor* control = nullptr;
    runtime::Executor* compute = nullptr;
    client::ParameterClient* client = nullptr;
    log::Logger* logger = nullptr;
    metrics::Registry* registry = nullptr;
    fault::Failpoints* failpoints = nullptr;     // may be null
    const Clock* clock = nullptr;                // if null, pushes are not announced in advance
    const sdk::Registry* functions = nullptr;    // null if no function is registered
    std::vector<const JobKind*> more_job_kinds;  // in addition to training and functions
    std::function<bool(v1::TaskMessage)> send;   // client::SessionClient::Send
    // The runner calls this function when an attempt has been reported as Failed because the device
    // has failed. All later steps would fail, too. May be null.
    std::function<void(const absl::Status&)> on_device_lost = nullptr;
  };
  struct Options {
    // BackendOptions::device, BackendOptions::cuda_library.
    std::string device = "auto", cuda_library = {};
    int threads = 1;
    bool bind_threads = false;  // BackendOptions::bind
    std::uint32_t prefetch_batches_max = 8;
    std::uint64_t prefetch_bytes_max = 64ull << 20;
    std::uint64_t data_bytes_max = 8ull << 30;  // memory limit of one data source
    fs::Roots data_roots = {};                  // folders that hold jobs' data files
    ObjectCache* data_cache = nullptr;          // DataOptions::cache; may be null
    // The limit of step records between two heartbeats; older records are dropped and counted.
    std::uint32_t step_records_max = 4096;
    std::chrono::milliseconds call_deadline{10000};
    std::chrono::milliseconds backoff_min{10}, backoff_max{1000};
    std::chrono::milliseconds drain_step_max{5000}, drain_done_max{2000};
    // The time limit of a drain without a session. Without a session no result can be reported.
    std::chrono::milliseconds drain_alone_max{500};
    // The limit of a message of the session; a larger Done could never be sent.
    std::uint64_t message_bytes_max = 4ull << 20;
    // If true, an update with NaN or Inf is skipped and counted. If false, it is a user error.
    bool skip_not_finite = false;
    std::string host;  // host name, reported with exported files
  };

  Runner(Environment environment, Options options);
  ~Runner();

  // --- session
  // Sets the identity, which is "0" before. The caller sets the identity at the latest when the
  // worker has registered.
  void SetIdentity(const std::string& identity);
  // Replaces Options::data_roots for jobs that begin from now on.
  void SetDataRoots(const fs::Roots& roots);
  // Fills highest_term, life_id and every held attempt [26].
  void FillHello(v1::Hello* hello) const;
  void OnRegistered(const v1::Registered& registered);
  void OnLost();  // handles the end of the session; held attempts continue [17]
  void OnMessage(const v1::CoordinatorMessage& message);
  v1::WorkerProgress Progress();  // takes the step records since the last call

  // Drains the worker: hands back the attempts that have not begun, finishes or drops the running
  // step, waits a bounded time until the coordinator has answered the reports of finished attempts,
  // and then calls `done` once. Without a session nothing can be reported, so attempts that have
  // not settled within drain_alone_max are dropped. The runner accepts no new work from now on. A
  // second call is ignored.
  void Drain(std::function<void()> done);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // posted tasks have weak pointers to it
};

}  // namespace evergrad::worker
