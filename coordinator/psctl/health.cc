// psctl health: asks one daemon whether it is ready or live, over the gRPC health service on its
// listener. The verb is meant for health probes that run a command. The gRPC probe of Kubernetes
// cannot be used with TLS, because it presents no certificate.
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/daemon/option_table.h"
#include "common/transport/health_protocol.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

struct Probe {
  std::string address;
  bool live = false;
  transport::TlsFiles tls;
  std::chrono::milliseconds timeout{5000};
};

// Asks the daemon whether it is live, if `probe.live` is set, and otherwise whether it is ready.
// The daemon's certificate may name any task and any host, because a probe may also dial the
// loopback address of its own machine.
absl::StatusOr<bool> Ask(transport::Transport& transport, const Probe& probe) {
  transport::ChannelOptions options;
  options.tls = probe.tls;
  EG_ASSIGN_OR_RETURN(const auto channel, transport.Dial({probe.address, ""}, options));
  EG_ASSIGN_OR_RETURN(const std::string answer,
                      transport::UnaryAndWait(
                          *channel, transport::kHealthMethod,
                          transport::HealthRequest(probe.live ? "live" : "ready"), probe.timeout));
  return transport::ParseHealthResponse(answer);
}

absl::Status Check(const Probe& probe) {
  const std::optional<HostPort> parts = ParseHostPort(probe.address);
  if (!parts || parts->port == 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "--of: expected host:port with a port from 1 to 65535, got `", probe.address, "`"));
  const int files = !probe.tls.ca.empty() + !probe.tls.cert.empty() + !probe.tls.key.empty();
  if (files != 0 && files != 3)
    return absl::InvalidArgumentError(
        "TLS needs all three of --tls-ca, --tls-cert and --tls-key (psctl cert issue writes them)");
  return absl::OkStatus();
}

int Health(Context& context, const std::vector<std::string>& args) {
  Probe probe;
  daemon::OptionTable table("psctl health",
                            "asks one daemon whether it is ready. Exit codes: 0 ready, 1 not ready "
                            "or no answer, 2 bad usage or file",
                            daemon::OptionTable::Kind::kCommand);
  table.Add("of", &probe.address, "address of the daemon's listener (--listen), host:port");
  table.Add("live", &probe.live,
            "ask whether the daemon is live (like /livez) instead of ready (like /readyz)");
  table.Add("tls.ca", &probe.tls.ca,
            "PEM file of the authority; give all three --tls-… flags or none");
  table.Add("tls.cert", &probe.tls.cert,
            "PEM file of a certificate of this authority, for example the daemon's own");
  table.Add("tls.key", &probe.tls.key, "PEM file of its private key");
  table.Add("timeout", &probe.timeout, "time limit of the call", std::chrono::milliseconds(100),
            std::chrono::minutes(10));
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (const absl::Status status = Check(probe); !status.ok()) return Report(context, status);
  const absl::StatusOr<bool> answer = Ask(*context.transport, probe);
  const char* const what = probe.live ? "live" : "ready";
  if (!answer.ok()) {
    if (absl::IsInvalidArgument(answer.status())) return Report(context, answer.status());
    context.err << "psctl: no answer about health: address=" << Printable(probe.address)
                << " cause=" << Printable(answer.status().message()) << "\n";
    return kFailed;
  }
  if (*answer) {
    context.out << what << "\n";
    return kSucceeded;
  }
  context.out << "not " << what << ": the daemon gives the reason at /" << what
              << "z on its --metrics-listen\n";
  return kFailed;
}

}  // namespace

std::vector<Verb> HealthVerbs() {
  return {{"health", "", "ask one daemon whether it is ready or live", Health}};
}

}  // namespace evergrad::psctl
