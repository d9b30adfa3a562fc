// evergrad-ps-server: holds shards of dense variables and of embedding tables, and applies each
// update to them exactly once.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/ids.h"
#include "common/daemon/daemon.h"
#include "common/daemon/memory_limit.h"
#include "common/daemon/this_host.h"
#include "common/fs/host.h"
#include "common/fs/roots.h"
#include "common/http/interruption.h"
#include "common/object_store/file_systems.h"
#include "common/random/philox.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "ps_server/config.h"
#include "ps_server/server.h"

namespace {

using namespace evergrad;

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::unique_ptr<fs::FileSystem> OpenFiles(const ps_server::Config& config, const fs::Roots& roots,
                                          const Clock& clock, http::Interruption* interruption,
                                          daemon::Daemon* daemon) {
  return object_store::MakeFileSystem(
      {.local = {.failpoints = &daemon->failpoints(), .roots = &roots},
       .store = config.stores,
       .variables = Variable,
       .clock = &clock,
       .interruption = interruption,
       .registry = &daemon->registry()});
}

}  // namespace

int main(int argc, char** argv) {
  daemon::Daemon daemon(Role::kPsServer,
                        "Holds shards of training jobs' variables and applies workers' updates to "
                        "them, each exactly once.");
  ps_server::Config config;
  ps_server::AddOptions(&daemon.options(), &config);
  if (const auto code = daemon.Start(argc, argv)) return *code;
  if (const absl::Status status = ps_server::Resolve(
          fs::HostName(), std::thread::hardware_concurrency(), daemon::MemoryLimitBytes(), &config);
      !status.ok())
    return daemon.Fail(status);

  const daemon::CommonOptions& common = daemon.common();
  const std::string& bound =
      common.insecure_listen.empty() ? common.listen : common.insecure_listen;
  if (const absl::Status status = daemon::CheckServerAddress(
          common.advertise.empty() ? bound : common.advertise, common.coordinator, daemon::WhereIs);
      !status.ok())
    return daemon.Fail(status);

  const RealClock clock;
  const auto transport = transport::MakeGrpcTransport(&daemon.failpoints(), &daemon.health());
  const fs::Roots roots =
      config.checkpoint_roots.empty()
          ? fs::Roots()
          : fs::Roots::Only(
                config.checkpoint_roots,
                "to allow another folder, start the server with one more --checkpoint-root FOLDER");
  http::Interruption interruption;  // ends retries of an object store when this process stops
  const auto files = OpenFiles(config, roots, clock, &interruption, &daemon);
  auto server = ps_server::Server::Listen(
      {transport.get(), &daemon.logger(), &daemon.registry(), &clock, &daemon.failpoints(),
       random::EntropyFromOs(), files.get(), &daemon.health()},
      config, daemon.server_options());
  if (!server.ok()) return daemon.Fail(server.status());
  if (const absl::Status status = daemon.ReportListening((*server)->address()); !status.ok())
    return daemon.Fail(status);

  ps_server::Server::Identity identity{client::ThisProcess(), {}};
  identity.coordinator_address = daemon.common().coordinator;
  identity.advertised_address = daemon.advertised_address();
  identity.metrics_address = daemon.metrics_address();
  identity.insecure_listen = daemon.insecure();
  client::SessionClient::Options session;
  session.channel = daemon.channel_options();
  session.recommendation = [&daemon] { return daemon.recommendation(); };
  std::atomic<int> refused_code{daemon::kExitRefused};
  (*server)->Join(
      std::move(identity), std::move(session),
      [&](const std::string& kind) {
        refused_code = daemon::ExitCodeOfRefusal(kind);
        daemon.signals().RequestStop();
      },
      [&daemon](const std::string& reason) { daemon.RequestDrain(reason); });

  const daemon::Daemon::End end = daemon.WaitForEnd();
  // The coordinator refused this process permanently; the log has the reason.
  if (end.kind == daemon::Daemon::End::Kind::kRefused) {
    interruption.Interrupt();
    (*server)->Stop("refused");
    return refused_code;
  }
  if (end.kind == daemon::Daemon::End::Kind::kDrain) (*server)->Drain(end.reason);
  interruption.Interrupt();
  (*server)->Stop(end.reason);
  if (end.kind == daemon::Daemon::End::Kind::kDrain) daemon.ReportHandedOver();
  return daemon::kExitOk;
}
