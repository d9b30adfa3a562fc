// evergrad-operator: makes training jobs of the TrainingJob objects of a Kubernetes namespace.
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/daemon/daemon.h"
#include "common/http/interruption.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/tls/tls_files.h"
#include "kubernetes/config.h"
#include "kubernetes/operator.h"

namespace {

using namespace evergrad;

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

int main(int argc, char** argv) {
  daemon::Daemon daemon({.name = "evergrad-operator",
                         .role = "operator",
                         .serves = false,
                         .hands_over = false,
                         .has_coordinator = true},
                        "Makes training jobs of the TrainingJob objects of a Kubernetes namespace, "
                        "and writes their status.");
  kubernetes::Config config;
  kubernetes::AddOptions(&config, &daemon.options());
  if (const auto code = daemon.Start(argc, argv)) return *code;
  if (const absl::Status status = kubernetes::Resolve(Variable, &config); !status.ok())
    return daemon.Fail(status);
  daemon.logger().SetTask("operator");

  kubernetes::ControllerOptions options;
  options.name_space = config.name_space;
  options.poll = config.poll;
  options.status_every = config.status_every;
  options.environment = kubernetes::VariablesForObjects(environ);
  if (!daemon.common().tls.empty()) {
    auto task = transport::TaskOfCertificateFile(daemon.common().tls.cert);
    if (!task.ok()) return daemon.Fail(task.status());
    options.owner = *std::move(task);
  }

  const RealClock clock;
  http::Interruption interruption;
  auto api = kubernetes::MakeHttpApi({.server = config.api_server,
                                      .ca_file = config.api_ca,
                                      .token_file = config.api_token,
                                      .name_space = config.name_space,
                                      .interruption = &interruption});
  if (!api.ok()) return daemon.Fail(api.status());
  const auto transport = transport::MakeGrpcTransport(&daemon.failpoints(), &daemon.health());
  auto coordinator = kubernetes::MakeCoordinatorCalls(transport.get(), daemon.common().coordinator,
                                                      daemon.channel_options());
  if (!coordinator.ok()) return daemon.Fail(coordinator.status());

  kubernetes::OperatorMetrics metrics{daemon.registry()};
  auto& readiness = daemon.health().readiness();
  const std::string metrics_url = daemon.metrics_url();
  daemon.logger().Info(
      absl::StrCat("watching TrainingJobs: namespace=", config.name_space,
                   " api_server=", config.api_server, " coordinator=", daemon.common().coordinator,
                   metrics_url.empty() ? "" : absl::StrCat(", metrics at ", metrics_url)));
  {
    const kubernetes::Operator running(
        std::move(options),
        {.api = api->get(),
         .coordinator = coordinator->get(),
         .interruption = &interruption,
         .clock = &clock,
         .logger = &daemon.logger(),
         .metrics = &metrics,
         .api_ready = readiness.Add("api_server", "the TrainingJobs are not listed yet"),
         .coordinator_ready =
             readiness.Add("coordinator", "the coordinator has not answered yet")});
    daemon.WaitForEnd();
  }
  return daemon::kExitOk;
}
