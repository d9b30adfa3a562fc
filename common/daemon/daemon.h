// The part of every daemon's main.cc that runs before its role: settings, allocator, signals,
// logger, metrics, failpoints, and the checks of promise P10 (closed by default).
//
//   int main(int argc, char** argv) {
//     daemon::Daemon daemon(Role::kWorker, "runs closures of training jobs");
//     worker::Options options;
//     daemon.options().Add("threads", &options.threads, "number of compute threads");
//     if (const auto code = daemon.Start(argc, argv)) return *code;
//     … make the role with daemon.logger(), .registry(), .failpoints(), .health(),
//     … .server_options(), .channel_options(), and let it add its conditions of readiness
//     if (absl::Status status = daemon.ReportListening(server->address()); !status.ok())
//       return daemon.Fail(status);
//     daemon.WaitForEnd();
//     … stop the role …
//     daemon.ReportHandedOver();
//     return 0;
//   }
//
// The exit codes are listed in common/daemon/exit_codes.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/daemon/exit_codes.h"
#include "common/daemon/option_table.h"
#include "common/fault/failpoints.h"
#include "common/health/health.h"
#include "common/log/log.h"
#include "common/metrics/http_exporter.h"
#include "common/metrics/metrics.h"
#include "common/preemption/watch.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/tls/tls_watches.h"
#include "common/transport/transport.h"

namespace evergrad::daemon {

struct CommonOptions {
  std::string listen = "127.0.0.1:0";
  std::string advertise;          // "" for the bound address
  std::string insecure_listen;    // "", or the address to serve without TLS, in place of `listen`
  std::string coordinator;        // tasks only
  std::string metrics_listen;     // "" for off
  bool insecure_metrics = false;  // plain HTTP even if other machines reach metrics_listen
  std::string log_format = "text", log_level = "info", log_file;
  transport::TlsFiles tls;  // Start sets `task` and `watch`.
  preemption::Settings preemption;
  std::string failpoints;
  std::uint64_t failpoint_seed = 1;
  std::string address_file;
};

// The properties of a program on which the common options depend.
struct Program {
  std::string name;    // "evergrad-worker"
  std::string role;    // for the names of metrics, and of the certificate: "worker"
  bool serves = true;  // serves RPCs: has --listen and its like, --failpoints and --address-file
  bool hands_over = true;       // has work to hand over before it ends: has --preemption-source
  bool has_coordinator = true;  // calls a coordinator: has --coordinator
};
// Returns the program of a role: evergrad-coordinator, evergrad-ps-server or evergrad-worker.
Program ProgramOf(Role role);
// Returns whether only this machine can reach "host:port": 127.0.0.0/8, ::1, localhost.
bool IsLoopback(absl::string_view host_port);
// The ways in which --metrics-listen is served.
enum class MetricsDoor { kOff, kPlainOnLoopback, kPlainOffLoopback, kTls };
MetricsDoor MetricsDoorOf(const CommonOptions& options);
// Checks the rules between options. By P10, any address except a loopback address needs TLS or
// --insecure-listen. Failpoints need a loopback address; `none` is also allowed with TLS. Either
// all three TLS files are given, or none. Tasks need --coordinator. A wildcard address needs
// --advertise. Pure.
absl::Status CheckCommonOptions(const Program& program, const CommonOptions& options);
absl::Status CheckCommonOptions(Role role, const CommonOptions& options);

// Returns whether only this machine is involved: the daemon listens on loopback, dials a
// coordinator on loopback, and does not use TLS. Pure. CheckCommonOptions must have succeeded.
bool IsLocalOnly(const CommonOptions& options);

class Daemon {
 public:
  Daemon(Role role, std::string summary);
  Daemon(Program program, std::string summary);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns the table; roles add their own options before Start.
  OptionTable& options() { return table_; }
  const CommonOptions& common() const { return common_; }

  // Starts the daemon, after the options are declared and before any thread exists. If Start
  // returns a code, main must exit with this code; messages have been printed.
  std::optional<int> Start(int argc, const char* const* argv);
  // Reports `status` on stderr and in the log, and returns its exit code (2 for a user's
  // InvalidArgument, else 1).
  int Fail(const absl::Status& status);

  // The following objects exist after Start.
  log::Logger& logger() { return *logger_; }
  metrics::Registry& registry() { return *registry_; }
  fault::Failpoints& failpoints() { return *failpoints_; }
  // The health that the pages /livez and /readyz show from Start on. The role adds its own
  // conditions and executors before ReportListening. Before ReportListening the daemon is not
  // ready.
  health::Health& health() { return *health_; }
  runtime::SignalWaiter& signals() { return signals_; }

  // The reason why a task must end.
  struct End {
    enum class Kind {
      kDrain,   // SIGTERM, a preemption notice or RequestDrain: the task first hands over its work
      kAtOnce,  // SIGINT: the task ends at once
      // signals().RequestStop() was called without a signal, because the coordinator refuses the
      // task permanently.
      kRefused,
    };
    Kind kind = Kind::kRefused;
    std::string reason;  // "SIGTERM", …; "" if refused
  };
  // Blocks until the task must end, and watches for a preemption notice from this call on
  // (--preemption-source). The program calls it once, after Start.
  End WaitForEnd();
  // Tells the cloud that this task has handed over its work (Azure only). Call it after
  // WaitForEnd, when nothing is left to do. Blocks for 2 s at most.
  void ReportHandedOver();
  // Thread-safe; only the first call has an effect.
  void RequestDrain(absl::string_view reason);
  // Returns the cloud's latest recommendation that this task leave its machine. Returns "" if none
  // arrived. Thread-safe.
  std::string recommendation();
  // Returns whether the daemon was started with --failpoints.
  bool failpoints_allowed() const { return !common_.failpoints.empty(); }
  bool insecure() const { return !common_.insecure_listen.empty(); }
  std::string metrics_address() const;  // the bound address; "" if off
  std::string metrics_url() const;      // http or https; "" if off
  // Returns options with listen, insecure_listen and TLS filled in.
  transport::ServerOptions server_options() const;
  transport::ChannelOptions channel_options() const;

  // The role calls this function once the daemon listens, if it serves. Logs the address (with a
  // warning for
  // --insecure-listen), reports that the readiness condition `listening` is met, and writes
  // --address-file atomically.
  absl::Status ReportListening(const std::string& bound_address);
  // Returns the address under which peers reach this daemon: --advertise, or else the bound
  // address. Valid after ReportListening.
  const std::string& advertised_address() const { return advertised_; }

 private:
  void AddServingOptions();
  void AddMetricsOptions();
  void AddPreemptionOptions();
  void AddTlsOptions();

  const Program program_;
  CommonOptions common_;
  OptionTable table_;
  // Opens the watch of the TLS files, which all listeners and channels of the process share. If the
  // files cannot be used, returns the error of LoadTls, and there is no watch. The role's own
  // listener then has the same error.
  absl::Status OpenTlsWatch();
  // `tls` is the result of OpenTlsWatch.
  absl::Status StartExporter(const absl::Status& tls);
  void AddTlsMetrics();
  void StartWatch();  // for preemption notices
  void OnTlsReload(const transport::TlsPems& pems);

  RealClock clock_;
  std::unique_ptr<log::Logger> logger_;
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<fault::Failpoints> failpoints_;
  std::unique_ptr<health::Health> health_;
  std::unique_ptr<runtime::ThreadExecutor>
      health_time_;  // measures the time for the liveness checks
  health::Condition listening_;
  std::unique_ptr<metrics::HttpExporter> exporter_;
  transport::TlsWatches tls_watches_;  // destroyed before exporter_, because it calls OnTlsReload
  runtime::SignalWaiter signals_;
  Mutex mu_;
  std::string drain_reason_ ABSL_GUARDED_BY(mu_);
  std::string recommendation_ ABSL_GUARDED_BY(mu_);
  std::string advertised_;
  std::unique_ptr<preemption::Watch> watch_;  // destroyed first, because it calls RequestDrain
};

}  // namespace evergrad::daemon
