// The rules between common options, separate from daemon.cc so that tests need not start a daemon.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/daemon/daemon.h"

namespace evergrad::daemon {
namespace {

struct HostPort {
  std::string host;
  std::string port;
};

// Splits "host:port" or "[::1]:port". Returns nullopt for anything else.
std::optional<HostPort> Split(absl::string_view host_port) {
  const std::size_t colon = host_port.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == host_port.size()) return std::nullopt;
  absl::string_view host = host_port.substr(0, colon);
  const absl::string_view port = host_port.substr(colon + 1);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != absl::string_view::npos ||
      std::stoul(std::string(port)) > 65535)
    return std::nullopt;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != absl::string_view::npos)
    return std::nullopt;
  if (host.empty()) return std::nullopt;
  return HostPort{std::string(host), std::string(port)};
}

bool IsWildcard(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

absl::Status Refuse(absl::string_view text) { return UserError(absl::InvalidArgumentError(text)); }

absl::Status CheckMetricsOptions(const CommonOptions& options) {
  if (options.insecure_metrics && options.metrics_listen.empty())
    return Refuse(
        "--insecure-metrics applies to the address of --metrics-listen; give --metrics-listen as "
        "well");
  if (MetricsDoorOf(options) != MetricsDoor::kPlainOffLoopback || options.insecure_metrics ||
      !options.insecure_listen.empty())
    return absl::OkStatus();
  return Refuse(absl::StrCat(
      "--metrics-listen: ", options.metrics_listen,
      " is not a loopback address. If the network itself is trusted, add --insecure-metrics to "
      "serve plain HTTP there. Otherwise give TLS (--tls-ca, --tls-cert, --tls-key) to serve "
      "HTTPS, with a client certificate for /metrics"));
}

const std::string& BoundAddress(const CommonOptions& options) {
  return options.insecure_listen.empty() ? options.listen : options.insecure_listen;
}

absl::Status CheckAddresses(const CommonOptions& options) {
  for (const auto& [flag, value] :
       {std::pair<const char*, const std::string&>{"listen", options.listen},
        {"insecure-listen", options.insecure_listen},
        {"metrics-listen", options.metrics_listen},
        {"advertise", options.advertise},
        {"coordinator", options.coordinator}}) {
    if (!value.empty() && !Split(value))
      return Refuse(absl::StrCat("--", flag, ": expected host:port, got `", value, "`"));
  }
  // Peers dial these addresses, so their port must not be 0: no process can listen on port 0.
  for (const auto& [flag, value] :
       {std::pair<const char*, const std::string&>{"coordinator", options.coordinator},
        {"advertise", options.advertise}}) {
    if (!value.empty() && std::stoul(Split(value)->port) == 0)
      return Refuse(absl::StrCat(
          "--", flag, ": expected host:port with a port from 1 to 65535, got `", value, "`"));
  }
  return absl::OkStatus();
}

// Checks the address that a daemon serves on. All three TLS files are given, or none.
absl::Status CheckListener(const CommonOptions& options) {
  if (options.listen.empty()) return Refuse("--listen: expected host:port, got nothing");
  const bool tls = !options.tls.ca.empty();
  if (tls && !options.insecure_listen.empty())
    return Refuse("--insecure-listen and TLS cannot both be set: remove one of them");
  if (!tls && !IsLoopback(options.listen)) {
    return Refuse(
        absl::StrCat("--listen: an address that is not a loopback address needs TLS (--tls-ca, "
                     "--tls-cert, --tls-key; `psctl cert init` makes them), or "
                     "--insecure-listen ",
                     options.listen, " if the network itself is trusted"));
  }
  const std::string& bound = BoundAddress(options);
  // `none` arms no failpoint, and only lets the daemon accept counting jobs. With TLS, only the
  // owner of the certificates can submit such a job, so a test on several machines may use `none`.
  if (!options.failpoints.empty() && !IsLoopback(bound) && !(tls && options.failpoints == "none"))
    return Refuse(
        absl::StrCat("--failpoints is for tests on loopback only: listen=", bound,
                     ". At any other address only --failpoints none with TLS is accepted"));
  return absl::OkStatus();
}

}  // namespace

Program ProgramOf(Role role) {
  Program program;
  program.role = RoleName(role);
  switch (role) {
    case Role::kCoordinator: program.name = "evergrad-coordinator"; break;
    case Role::kPsServer: program.name = "evergrad-ps-server"; break;
    case Role::kWorker: program.name = "evergrad-worker"; break;
  }
  program.has_coordinator = role != Role::kCoordinator;
  return program;
}

bool IsLoopback(absl::string_view host_port) {
  const auto split = Split(host_port);
  if (!split) return false;
  if (split->host == "localhost" || split->host == "::1") return true;
  // A host name may begin with "127.", too. Therefore only a text of digits and points counts as an
  // address.
  return absl::StartsWith(split->host, "127.") &&
         split->host.find_first_not_of("0123456789.") == std::string::npos;
}

MetricsDoor MetricsDoorOf(const CommonOptions& options) {
  if (options.metrics_listen.empty()) return MetricsDoor::kOff;
  if (IsLoopback(options.metrics_listen)) return MetricsDoor::kPlainOnLoopback;
  return options.insecure_metrics || options.tls.empty() ? MetricsDoor::kPlainOffLoopback
                                                         : MetricsDoor::kTls;
}

bool IsLocalOnly(const CommonOptions& options) {
  return options.tls.empty() && IsLoopback(BoundAddress(options)) &&
         (options.coordinator.empty() || IsLoopback(options.coordinator));
}

absl::Status CheckCommonOptions(Role role, const CommonOptions& options) {
  return CheckCommonOptions(ProgramOf(role), options);
}

absl::Status CheckCommonOptions(const Program& program, const CommonOptions& options) {
  EG_RETURN_IF_ERROR(CheckAddresses(options));
  const int tls_files =
      !options.tls.ca.empty() + !options.tls.cert.empty() + !options.tls.key.empty();
  if (tls_files != 0 && tls_files != 3)
    return Refuse("TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  if (program.serves) EG_RETURN_IF_ERROR(CheckListener(options));
  EG_RETURN_IF_ERROR(CheckMetricsOptions(options));
  if (program.hands_over) EG_RETURN_IF_ERROR(preemption::CheckSettings(options.preemption));
  const std::string& bound = BoundAddress(options);
  if (program.serves && program.has_coordinator && IsWildcard(Split(bound)->host) &&
      options.advertise.empty()) {
    return Refuse(absl::StrCat("--advertise is needed: peers cannot dial ", bound));
  }
  if (program.has_coordinator && options.coordinator.empty())
    return Refuse("--coordinator is missing: give the address of evergrad-coordinator, host:port");
  return absl::OkStatus();
}

}  // namespace evergrad::daemon
