// The main function of every worker. evergrad-worker registers no functions; a user's program
// registers the functions of its closures (worker/sdk/sdk.h).
#include "worker/sdk/sdk.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/daemon/daemon.h"
#include "common/fs/host.h"
#include "common/http/interruption.h"
#include "common/object_store/file_systems.h"
#include "common/random/philox.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/config.h"
#include "worker/counting/counting_kind.h"
#include "worker/data/object_cache.h"
#include "worker/worker.h"

namespace evergrad::sdk {
namespace {

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string CacheFolder(const worker::Config& config) {
  if (!config.data_cache.empty()) return config.data_cache;
  return absl::StrCat(Variable("TMPDIR").value_or("/tmp"), "/evergrad-data-", ::getuid());
}

}  // namespace

int WorkerMain(int argc, char** argv, Registry functions) {
  worker::PrepareThreadPools(std::getenv("OMP_WAIT_POLICY"), argv);
  worker::KeepIsaLimit(std::getenv("ONEDNN_MAX_CPU_ISA"));
  daemon::Daemon daemon(
      Role::kWorker,
      "Runs closures of training jobs: pulls values from the servers, computes, pushes gradients.");
  worker::Config config;
  worker::AddOptions(&daemon.options(), &config);
  if (const auto code = daemon.Start(argc, argv)) return *code;
  if (!functions.status().ok()) return daemon.Fail(functions.status());
  if (const absl::Status status = worker::Resolve(
          fs::HostName(), std::thread::hardware_concurrency(), &config, random::EntropyFromOs());
      !status.ok())
    return daemon.Fail(status);
  daemon.logger().Info(absl::StrCat("this worker computes on ", config.device_text));

  const RealClock clock;
  const auto transport = transport::MakeGrpcTransport(&daemon.failpoints(), &daemon.health());
  http::Interruption interruption;  // ends retries of an object store when this process stops
  const auto files = object_store::MakeFileSystem({.local = {.failpoints = &daemon.failpoints()},
                                                   .store = config.stores,
                                                   .variables = Variable,
                                                   .clock = &clock,
                                                   .interruption = &interruption,
                                                   .registry = &daemon.registry()});
  worker::ObjectCache data_cache({.folder = CacheFolder(config),
                                  .bytes_max = config.data_cache_bytes_max,
                                  .files = files.get(),
                                  .interruption = &interruption});
  auto worker = worker::Worker::Listen(
      {transport.get(), &daemon.logger(), &daemon.registry(), &clock, &daemon.failpoints(),
       random::EntropyFromOs(), &daemon.health(), &data_cache},
      config, daemon.server_options());
  if (!worker.ok()) return daemon.Fail(worker.status());
  if (const absl::Status status = daemon.ReportListening((*worker)->address()); !status.ok())
    return daemon.Fail(status);

  worker::Worker::Identity identity{client::ThisProcess(), {}};
  identity.advertised_address = daemon.advertised_address();
  identity.metrics_address = daemon.metrics_address();
  identity.insecure_listen = daemon.insecure();
  if (daemon.failpoints_allowed()) identity.more_job_kinds = {&worker::CountingJobs()};
  identity.functions = &functions;
  identity.local_only = daemon::IsLocalOnly(daemon.common());
  client::SessionClient::Options session;
  session.coordinator_address = daemon.common().coordinator;
  session.channel = daemon.channel_options();
  session.recommendation = [&daemon] { return daemon.recommendation(); };
  std::atomic<int> refused_code{daemon::kExitRefused};
  (*worker)->Join(
      std::move(identity), std::move(session),
      [&](const std::string& kind) {
        refused_code = worker::ExitCodeOf(kind);
        daemon.signals().RequestStop();
      },
      [&daemon](const std::string& reason) { daemon.RequestDrain(reason); });

  const daemon::Daemon::End end = daemon.WaitForEnd();
  // The coordinator refused this process permanently; the log has the reason.
  if (end.kind == daemon::Daemon::End::Kind::kRefused) {
    interruption.Interrupt();
    (*worker)->Stop(refused_code == daemon::kExitDevice ? "the device of the worker has failed"
                                                        : "refused");
    return refused_code;
  }
  interruption.Interrupt();
  (*worker)->Stop(end.reason);
  if (end.kind == daemon::Daemon::End::Kind::kDrain) daemon.ReportHandedOver();
  return daemon::kExitOk;
}

}  // namespace evergrad::sdk
