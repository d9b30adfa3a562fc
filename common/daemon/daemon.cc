#include "common/daemon/daemon.h"

#include <google/protobuf/stubs/logging.h>

#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/daemon/version.h"
#include "common/fs/file.h"
#include "common/metrics/process_metrics.h"
#include "common/preemption/metadata_client.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/tls/tls_files.h"

namespace evergrad::daemon {
namespace {

log::Level LevelOf(absl::string_view name) {
  for (const log::Level level :
       {log::Level::kDebug, log::Level::kInfo, log::Level::kWarning, log::Level::kError})
    if (log::LevelName(level) == name) return level;
  return log::Level::kInfo;
}

// Writes to stderr before there is a logger: one line per mistake, each with the program's name.
void SayOnStderr(absl::string_view program, absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n'))
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(),
                 Escaped(line).c_str());
}

}  // namespace

Daemon::Daemon(Role role, std::string summary) : Daemon(ProgramOf(role), std::move(summary)) {}

Daemon::Daemon(Program program, std::string summary)
    : program_(std::move(program)), table_(program_.name, std::move(summary)) {
  if (program_.serves) AddServingOptions();
  if (program_.has_coordinator)
    table_.Add("coordinator", &common_.coordinator, "address of evergrad-coordinator, host:port");
  if (program_.hands_over) AddPreemptionOptions();
  AddMetricsOptions();
  table_.AddChoice("log_format", &common_.log_format, {"text", "json"},
                   "format of a log message: one line, or one JSON object");
  table_.AddChoice("log_level", &common_.log_level, {"debug", "info", "warning", "error"},
                   "lowest level of the messages that are logged");
  table_.Add("log_file", &common_.log_file,
             "append the log to this file. Empty means standard error");
  AddTlsOptions();
  if (!program_.serves) return;
  std::string names;
  for (const fault::KnownFailpoint& known : fault::Failpoints::Known())
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  table_.Add(
      "failpoints", &common_.failpoints,
      absl::StrCat("for tests, on a loopback address only: name=action;name=action with the names ",
                   names,
                   "; or `none`, which arms nothing and lets the daemon accept counting jobs, and "
                   "is also allowed with TLS on other addresses"));
  table_.Add("failpoint_seed", &common_.failpoint_seed,
             "seed of failpoints that act with a probability");
  table_.Add("address_file", &common_.address_file,
             "write the bound address to this file once the daemon listens");
}

void Daemon::AddMetricsOptions() {
  table_.Add(
      "metrics_listen", &common_.metrics_listen,
      absl::StrCat(
          "serve Prometheus text at ADDRESS/metrics, the health of this daemon at "
          "ADDRESS/livez and /readyz, and `ok` at /healthz. The protocol is plain HTTP on "
          "a loopback address",
          program_.serves ? " and with --insecure-listen" : "",
          ". On other addresses with TLS the protocol is HTTPS, and only /metrics requires a "
          "client certificate. Empty means off"));
  table_.Add("insecure_metrics", &common_.insecure_metrics,
             absl::StrCat("serve --metrics-listen as plain HTTP, WITHOUT encryption or "
                          "authentication, even if other machines can reach the address",
                          program_.serves ? " and even if --listen uses TLS" : ""));
}

void Daemon::AddServingOptions() {
  table_.Add("listen", &common_.listen,
             "address to serve on; port 0 selects a free port, which is logged");
  table_.Add("advertise", &common_.advertise,
             "address under which peers reach this daemon, if it differs from the bound address");
  table_.Add("insecure_listen", &common_.insecure_listen,
             "serve on this address instead of --listen, WITHOUT encryption or authentication, "
             "even if other machines can reach it");
}

void Daemon::AddPreemptionOptions() {
  preemption::Settings& preemption = common_.preemption;
  table_.AddChoice("preemption_source", &preemption.source,
                   {"none", "file", "gce", "aws", "azure", "auto"},
                   "where to watch for the notice that this machine will be reclaimed. After a "
                   "notice the daemon hands over its work and ends, as after SIGTERM. gce, aws and "
                   "azure ask the cloud's metadata service, and auto finds out which cloud it is; "
                   "with none or file no metadata address is contacted");
  table_.Add("preemption_notice_file", &preemption.notice_file,
             "file whose creation is the notice (--preemption-source file, which this flag "
             "implies); its contents are ignored. Empty means no file");
  table_.Add("preemption_metadata_url", &preemption.metadata_url,
             absl::StrCat("address of the metadata service, as http://ADDRESS:PORT. Empty means ",
                          preemption::kMetadataUrl));
  table_.AddChoice("on_rebalance", &preemption.on_rebalance, {"ignore", "drain"},
                   "response to EC2's recommendation to leave this machine: only show and count "
                   "it, or hand over the work and end. Many recommendations are not followed by a "
                   "notice");
}

void Daemon::AddTlsOptions() {
  table_.Add("tls.ca", &common_.tls.ca,
             "PEM file of the authority that signed the certificates of all tasks. The file "
             "enables mutual TLS on every listener and channel");
  table_.Add("tls.cert", &common_.tls.cert, "PEM file of this task's certificate");
  table_.Add("tls.key", &common_.tls.key, "PEM file of this task's private key");
}

Daemon::~Daemon() = default;

std::optional<int> Daemon::Start(int argc, const char* const* argv) {
  // Allocator settings apply to later allocations, so this call precedes the first large allocation
  // and every thread.
  transport::TuneAllocator();
  // Protobuf writes a line to stderr for each string that is not UTF-8, so any peer could fill the
  // disk. The code that parses a message reports the failure.
  google::protobuf::SetLogHandler(nullptr);
  runtime::SignalWaiter::Install();
  auto outcome = table_.Parse(argc, argv);
  if (!outcome.ok()) {
    SayOnStderr(table_.program(), outcome.status().message());
    return kExitUsage;
  }
  if (outcome->stop) {
    std::fputs(outcome->text.c_str(), stdout);
    return kExitOk;
  }
  if (program_.hands_over) common_.preemption.source_is_set = table_.IsSet("preemption_source");
  if (const absl::Status status = CheckCommonOptions(program_, common_); !status.ok()) {
    SayOnStderr(table_.program(), status.message());
    return kExitUsage;
  }
  common_.tls.task = program_.role;
  failpoints_ = std::make_unique<fault::Failpoints>();
  if (!common_.failpoints.empty()) {
    if (const absl::Status status = failpoints_->Arm(common_.failpoints, common_.failpoint_seed);
        !status.ok()) {
      SayOnStderr(table_.program(), absl::StrCat("--failpoints: ", status.message()));
      return kExitUsage;
    }
  }
  log::Options log_options;
  log_options.json = common_.log_format == "json";
  log_options.level = LevelOf(common_.log_level);
  log_options.file = common_.log_file;
  logger_ = std::make_unique<log::Logger>(log_options);
  registry_ = std::make_unique<metrics::Registry>();
  metrics::AddProcessMetrics(*registry_);
  if (program_.hands_over) preemption::Watch::AddMetrics(registry_.get(), program_.role);
  health_ = std::make_unique<health::Health>(&clock_);
  health_time_ =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{"health"});
  health_->liveness().MeasureTimeOn(health_time_.get());
  if (program_.serves)
    listening_ = health_->readiness().Add("listening", "this daemon does not listen yet");
  const absl::Status tls = OpenTlsWatch();
  if (const absl::Status status = StartExporter(tls); !status.ok()) return Fail(status);
  if (common_.tls.watch != nullptr) tls_watches_.Add(common_.tls.watch);
  logger_->Info(VersionLine(table_.program()));
  if (failpoints_->AnyArmed())
    logger_->Warning(absl::StrCat("failpoints are armed: failpoints=", common_.failpoints,
                                  " seed=", common_.failpoint_seed));
  return std::nullopt;
}

absl::Status Daemon::OpenTlsWatch() {
  absl::Status status;
  if (!common_.tls.empty()) {
    auto watch = transport::TlsWatch::Open(
        common_.tls,
        {[this](const transport::TlsPems& pems) { OnTlsReload(pems); },
         [this](const absl::Status& why) {
           logger_->Warning(absl::StrCat(
               "cannot reload the certificates, the old ones stay in use: ", why.message()));
         }});
    status = watch.status();
    if (watch.ok()) common_.tls.watch = *std::move(watch);
  }
  AddTlsMetrics();
  return status;
}

void Daemon::AddTlsMetrics() {
  const std::string prefix = absl::StrCat("evergrad_", program_.role, "_tls_");
  const auto watch = common_.tls.watch;
  const auto stats = [watch] {
    return watch == nullptr ? transport::TlsWatch::Stats{} : watch->stats();
  };
  registry_->AddCallbackCounter(
      absl::StrCat(prefix, "reloads_total"),
      "changes of the TLS files after which new connections use the new contents", {},
      [stats] { return stats().reloads; });
  registry_->AddCallbackCounter(
      absl::StrCat(prefix, "reload_failures_total"),
      "checks that found changed TLS files which cannot be used (the log has the reason)", {},
      [stats] { return stats().failures; });
  registry_->AddCallbackGauges(
      absl::StrCat(prefix, "certificate_expiry_timestamp_seconds"),
      "time at which the certificate in use expires, in seconds since 1970-01-01 UTC; only with "
      "TLS",
      [watch, stats]() -> metrics::Registry::Samples {
        if (watch == nullptr) return {};
        return {{{}, static_cast<double>(stats().expiry_seconds)}};
      });
}

void Daemon::OnTlsReload(const transport::TlsPems& pems) {
  logger_->Info(absl::StrCat(
      "reloaded the certificates, new connections use them: cert=", common_.tls.cert, " expires=",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                       absl::FromUnixSeconds(transport::ExpirySeconds(pems.cert)),
                       absl::UTCTimeZone())));
  if (exporter_ == nullptr || !exporter_->tls()) return;
  const absl::Status status = exporter_->ReplaceCertificate({pems.ca, pems.cert, pems.key});
  if (!status.ok())
    logger_->Warning(absl::StrCat(
        "cannot reload the certificates of the metrics listener, the old ones stay in use: ",
        status.message()));
}

absl::Status Daemon::StartExporter(const absl::Status& tls) {
  const MetricsDoor door = MetricsDoorOf(common_);
  if (door == MetricsDoor::kOff) return absl::OkStatus();
  metrics::ExporterOptions options;
  options.listen = common_.metrics_listen;
  options.plain_off_loopback = door == MetricsDoor::kPlainOffLoopback;
  if (door == MetricsDoor::kTls) {
    EG_RETURN_IF_ERROR(tls);
    const auto pems = common_.tls.watch->pems();
    options.tls = metrics::TlsPems{pems->ca, pems->cert, pems->key};
  }
  auto exporter =
      metrics::HttpExporter::Start(std::move(options), registry_.get(), &clock_, health_.get());
  if (!exporter.ok())
    return absl::Status(exporter.status().code(),
                        absl::StrCat("--metrics-listen: ", exporter.status().message()));
  exporter_ = *std::move(exporter);
  return absl::OkStatus();
}

void Daemon::RequestDrain(absl::string_view reason) {
  {
    MutexLock lock(&mu_);
    if (drain_reason_.empty()) drain_reason_ = std::string(reason);
  }
  signals_.RequestStop();
}

std::string Daemon::recommendation() {
  MutexLock lock(&mu_);
  return recommendation_;
}

void Daemon::StartWatch() {
  watch_ = std::make_unique<preemption::Watch>(
      common_.preemption,
      preemption::Watch::Parts{&clock_, logger_.get(), registry_.get(), program_.role},
      preemption::Watch::Events{[this](const std::string& reason) { RequestDrain(reason); },
                                [this](const std::string& text) {
                                  MutexLock lock(&mu_);
                                  recommendation_ = text;
                                }});
}

Daemon::End Daemon::WaitForEnd() {
  if (program_.hands_over) StartWatch();
  const int signal = signals_.Wait();
  End end;
  if (signal == 0) {
    MutexLock lock(&mu_);
    end = {drain_reason_.empty() ? End::Kind::kRefused : End::Kind::kDrain, drain_reason_};
  } else {
    end = signal == SIGTERM ? End{End::Kind::kDrain, "SIGTERM"} : End{End::Kind::kAtOnce, "SIGINT"};
  }
  if (end.kind != End::Kind::kRefused) logger_->Info(absl::StrCat("leaving: ", end.reason));
  return end;
}

void Daemon::ReportHandedOver() {
  if (watch_ != nullptr) watch_->AcknowledgeNotice();
}

int Daemon::Fail(const absl::Status& status) {
  // The log may be a file, but a person who starts the daemon by hand reads stderr.
  if (logger_ == nullptr || !common_.log_file.empty())
    SayOnStderr(table_.program(), status.message());
  if (logger_ != nullptr) logger_->Error(status.message());
  return BlameOf(status) == Blame::kUser || status.code() == absl::StatusCode::kInvalidArgument
             ? kExitUsage
             : kExitFailed;
}

std::string Daemon::metrics_address() const {
  return exporter_ == nullptr ? "" : exporter_->address();
}

std::string Daemon::metrics_url() const {
  return exporter_ == nullptr ? ""
                              : absl::StrCat(exporter_->tls() ? "https://" : "http://",
                                             exporter_->address(), "/metrics");
}

transport::ServerOptions Daemon::server_options() const {
  transport::ServerOptions options;
  options.listen = common_.listen;
  options.insecure_listen = common_.insecure_listen;
  options.tls = common_.tls;
  return options;
}

transport::ChannelOptions Daemon::channel_options() const {
  transport::ChannelOptions options;
  options.tls = common_.tls;
  return options;
}

absl::Status Daemon::ReportListening(const std::string& bound_address) {
  advertised_ = common_.advertise.empty() ? bound_address : common_.advertise;
  logger_->Info(absl::StrCat(
      "listening on ", bound_address,
      advertised_ == bound_address ? "" : absl::StrCat(", advertised as ", advertised_),
      exporter_ == nullptr ? "" : absl::StrCat(", metrics at ", metrics_url())));
  if (insecure())
    logger_->Warning(absl::StrCat("--insecure-listen: any host that reaches ", bound_address,
                                  " can read, change and stop everything in this daemon; TLS "
                                  "prevents this (psctl cert init)"));
  if (MetricsDoorOf(common_) == MetricsDoor::kPlainOffLoopback)
    logger_->Warning(absl::StrCat(
        common_.insecure_metrics ? "--insecure-metrics" : "--insecure-listen",
        ": any host that reaches ", metrics_address(), " can read this daemon's metrics"));
  listening_.Meet();
  if (!common_.address_file.empty())
    EG_RETURN_IF_ERROR(
        fs::WriteFileAtomic(common_.address_file, absl::StrCat(bound_address, "\n")));
  return absl::OkStatus();
}

}  // namespace evergrad::daemon
