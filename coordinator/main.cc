#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/build_info.h"
#include "common/daemon/daemon.h"
#include "common/daemon/this_host.h"
#include "common/fs/host.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "coordinator/config.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/state_store.h"
#include "coordinator/store/sqlite_state_store.h"

namespace {

using namespace evergrad;

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Opens the journal. Adds a condition of readiness, which the control plane fulfils later.
absl::StatusOr<std::unique_ptr<coordinator::StateStore>> OpenStore(
    coordinator::SqliteStoreOptions* options, const Clock* clock, daemon::Daemon* daemon) {
  daemon->health().readiness().Add("journal", "the journal is not open yet");
  // Without a folder the journal of this process is in memory. A restarted coordinator then knows
  // no job, and chooses a term above all terms that tasks report.
  if (options->folder.empty()) return std::make_unique<coordinator::MemoryStateStore>();
  options->holder = absl::StrCat("pid ", ::getpid(), " on host ", fs::HostName());
  return coordinator::SqliteStateStore::Open(*options, {.clock = clock,
                                                        .logger = &daemon->logger(),
                                                        .registry = &daemon->registry(),
                                                        .failpoints = &daemon->failpoints()});
}

}  // namespace

int main(int argc, char** argv) {
  daemon::Daemon daemon(
      Role::kCoordinator,
      "runs jobs: registers tasks, grants closures to workers, assigns shards to servers");
  coordinator::Options options;
  coordinator::AddOptions(&options, &daemon.options());
  if (const auto code = daemon.Start(argc, argv)) return *code;
  if (absl::Status status = coordinator::CheckOptions(options); !status.ok())
    return daemon.Fail(status);
  if (absl::Status status =
          coordinator::ResolveRoots(daemon::IsLocalOnly(daemon.common()), &options);
      !status.ok())
    return daemon.Fail(status);
  daemon.logger().SetTask("coordinator/0");
  options.control.counting_allowed = daemon.failpoints_allowed();
  options.control.local_only = daemon::IsLocalOnly(daemon.common());
  options.control.insecure_listen = daemon.insecure();
  options.control.build_id = BuildId();
  options.control.recommendation = [&daemon] { return daemon.recommendation(); };
  options.control.unreachable_endpoint = [](const std::string& peer, const std::string& endpoint) {
    return daemon::IsLoopback(endpoint) && daemon::WhereIsPeer(peer) == daemon::Where::kElsewhere;
  };

  RealClock clock;
  auto store = OpenStore(&options.store, &clock, &daemon);
  if (!store.ok()) {
    const int code = daemon.Fail(store.status());
    return absl::IsDataLoss(store.status()) ? daemon::kExitJournal : code;
  }
  const auto transport = transport::MakeGrpcTransport(&daemon.failpoints(), &daemon.health());
  coordinator::Coordinator::Parts parts;
  parts.transport = transport.get();
  parts.clock = &clock;
  parts.logger = &daemon.logger();
  parts.registry = &daemon.registry();
  parts.failpoints = &daemon.failpoints();
  parts.store = store->get();
  parts.health = &daemon.health();
  parts.variables = Variable;
  absl::Status ended;  // the reason for the stop; it is set before the stop begins
  parts.on_end = [&](const absl::Status& why) {
    ended = why;
    daemon.signals().RequestStop();
  };
  options.control.forget_unknown_jobs = options.store.forget_unknown_jobs;
  auto coordinator = coordinator::Coordinator::Create(options, daemon.server_options(), parts);
  if (!coordinator.ok()) return daemon.Fail(coordinator.status());
  if (absl::Status status = daemon.ReportListening((*coordinator)->address()); !status.ok())
    return daemon.Fail(status);
  (*coordinator)->Start(daemon.advertised_address(), daemon.metrics_address());
  const daemon::Daemon::End end = daemon.WaitForEnd();
  daemon.logger().Info("stopping");
  (*coordinator)->Stop();
  if (!ended.ok()) {
    daemon.Fail(ended);
    return daemon::kExitJournal;
  }
  // The journal is closed before ReportHandedOver, after which the machine may be taken away.
  coordinator->reset();
  store->reset();
  if (end.kind == daemon::Daemon::End::Kind::kDrain) daemon.ReportHandedOver();
  return daemon::kExitOk;
}
