// Tests promise P10: without flags that allow more, a daemon serves only its own host.
#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "common/daemon/daemon.h"

namespace evergrad::daemon {
namespace {

CommonOptions Task() {
  CommonOptions options;
  options.coordinator = "127.0.0.1:4000";
  return options;
}

std::string Refusal(const CommonOptions& options, Role role = Role::kWorker) {
  const absl::Status status = CheckCommonOptions(role, options);
  CHECK(BlameOf(status) == Blame::kUser);
  return std::string(status.message());
}

TEST_CASE("only addresses of this machine are loopback addresses") {
  for (const char* address : {"127.0.0.1:0", "127.8.9.1:5", "localhost:80", "[::1]:9"})
    CHECK(IsLoopback(address));
  for (const char* address :
       {"0.0.0.0:1", "10.0.0.1:5", "127.evil.org:80", "[::]:9", "::1:9", "127.0.0.1", ""})
    CHECK_FALSE(IsLoopback(address));
}

TEST_CASE(
    "P10: an address that is not loopback needs TLS or the insecure flag, and the refusal names "
    "both") {
  CommonOptions options = Task();
  options.listen = "10.0.0.7:4000";
  CHECK_THAT(Refusal(options),
             Catch::Contains("--tls-ca") && Catch::Contains("--insecure-listen 10.0.0.7:4000"));
  options.tls = {"ca", "cert", "key"};
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  options = Task();
  options.insecure_listen = "10.0.0.7:4000";
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  options.tls = {"ca", "cert", "key"};
  CHECK_THAT(Refusal(options), Catch::Contains("and TLS cannot both be set"));
}

TEST_CASE(
    "P10: metrics outside of loopback use HTTPS with TLS or need a flag, which the refusal names") {
  CommonOptions options = Task();
  CHECK(MetricsDoorOf(options) == MetricsDoor::kOff);
  options.metrics_listen = "127.0.0.1:0";
  CHECK(MetricsDoorOf(options) == MetricsDoor::kPlainOnLoopback);
  options.tls = {"ca", "cert", "key"};
  CHECK(MetricsDoorOf(options) == MetricsDoor::kPlainOnLoopback);

  options.metrics_listen = "10.0.0.7:9100";
  CHECK(MetricsDoorOf(options) == MetricsDoor::kTls);
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  options.insecure_metrics = true;
  CHECK(MetricsDoorOf(options) == MetricsDoor::kPlainOffLoopback);
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());

  options = Task();
  options.metrics_listen = "10.0.0.7:9100";
  CHECK_THAT(Refusal(options), Catch::Contains("10.0.0.7:9100") &&
                                   Catch::Contains("--insecure-metrics") &&
                                   Catch::Contains("--tls-ca"));
  options.insecure_metrics = true;
  CHECK(MetricsDoorOf(options) == MetricsDoor::kPlainOffLoopback);
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  options.insecure_metrics = false;
  options.insecure_listen = "10.0.0.7:4000";
  CHECK(MetricsDoorOf(options) == MetricsDoor::kPlainOffLoopback);
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());

  options = Task();
  options.insecure_metrics = true;
  CHECK_THAT(Refusal(options),
             Catch::StartsWith("--insecure-metrics") && Catch::Contains("give --metrics-listen"));
}

TEST_CASE("P10: failpoints can be armed on loopback only") {
  CommonOptions options = Task();
  options.failpoints = "push.duplicate=on";
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  options.insecure_listen = "10.0.0.7:4000";
  CHECK_THAT(Refusal(options), Catch::StartsWith("--failpoints is for tests on loopback only"));
  options.failpoints = "none";
  CHECK_THAT(Refusal(options), Catch::StartsWith("--failpoints is for tests on loopback only"));
}

TEST_CASE("P10: off loopback the failpoints `none`, which arm nothing, need TLS") {
  CommonOptions options = Task();
  options.listen = "10.0.0.7:4000";
  options.tls = {"ca", "cert", "key"};
  options.failpoints = "none";
  CHECK(CheckCommonOptions(Role::kWorker, options).ok());
  for (const char* armed : {"push.duplicate=on", "none;push.duplicate=on", " none"}) {
    options.failpoints = armed;
    CHECK_THAT(Refusal(options), Catch::StartsWith("--failpoints is for tests on loopback only"));
  }
}

TEST_CASE("only this machine is involved if all addresses are loopback and TLS is off") {
  CHECK(IsLocalOnly(Task()));
  CHECK(IsLocalOnly(CommonOptions()));  // a coordinator dials no other task
  CommonOptions options = Task();
  options.coordinator = "10.0.0.1:4000";
  CHECK_FALSE(IsLocalOnly(options));
  options = Task();
  options.coordinator = "localhost.evil.org:4000";
  CHECK_FALSE(IsLocalOnly(options));
  options = Task();
  options.insecure_listen = "10.0.0.7:4000";
  CHECK_FALSE(IsLocalOnly(options));
  options = Task();
  options.tls = {"ca", "cert", "key"};
  CHECK_FALSE(IsLocalOnly(options));
  options.listen = "10.0.0.7:4000";
  CHECK_FALSE(IsLocalOnly(options));
}

TEST_CASE("incompatible settings are refused before anything starts") {
  CommonOptions options = Task();
  options.preemption.source = "file";
  CHECK(Refusal(options) == "--preemption-source file needs --preemption-notice-file FILE");
  CHECK_FALSE(Refusal(options, Role::kCoordinator).empty());
  options = Task();
  options.tls.ca = "ca";
  CHECK(Refusal(options) == "TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  options = Task();
  options.coordinator.clear();
  CHECK_THAT(Refusal(options), Catch::StartsWith("--coordinator is missing"));
  CHECK(CheckCommonOptions(Role::kCoordinator, options).ok());
  options = Task();
  options.insecure_listen = "0.0.0.0:4000";
  CHECK(Refusal(options) == "--advertise is needed: peers cannot dial 0.0.0.0:4000");
  options = Task();
  options.coordinator = "somewhere";
  CHECK(Refusal(options) == "--coordinator: expected host:port, got `somewhere`");
  options = Task();
  options.metrics_listen = "10.0.0.1:9100";
  CHECK_THAT(Refusal(options),
             Catch::StartsWith("--metrics-listen: 10.0.0.1:9100 is not a loopback address"));
  options = Task();
  options.coordinator = "127.0.0.1:99999";
  CHECK(Refusal(options) == "--coordinator: expected host:port, got `127.0.0.1:99999`");
  options.coordinator = "127.0.0.1:0";
  CHECK(Refusal(options) ==
        "--coordinator: expected host:port with a port from 1 to 65535, got `127.0.0.1:0`");
  options = Task();
  options.advertise = "10.0.0.1:0";
  CHECK(Refusal(options) ==
        "--advertise: expected host:port with a port from 1 to 65535, got `10.0.0.1:0`");
  options = Task();
  options.listen = "127.0.0.1:70000";
  CHECK(Refusal(options) == "--listen: expected host:port, got `127.0.0.1:70000`");
}

// A program such as evergrad-operator, which only calls others.
Program Caller() {
  return {"evergrad-caller", "caller", /*serves=*/false, /*hands_over=*/false,
          /*has_coordinator=*/true};
}

std::string CallerRefusal(const CommonOptions& options) {
  const absl::Status status = CheckCommonOptions(Caller(), options);
  CHECK(BlameOf(status) == Blame::kUser);
  return std::string(status.message());
}

TEST_CASE("a program that serves nothing needs no TLS to call a coordinator on another host") {
  CommonOptions options;
  options.coordinator = "10.0.0.7:4000";
  CHECK(CheckCommonOptions(Caller(), options).ok());
  options.tls = {"ca", "cert", "key"};
  CHECK(CheckCommonOptions(Caller(), options).ok());
}

TEST_CASE("a program that serves nothing keeps the rules that do not depend on a listener") {
  CHECK_THAT(CallerRefusal({}), Catch::StartsWith("--coordinator is missing"));
  CommonOptions options = Task();
  options.coordinator = "somewhere";
  CHECK(CallerRefusal(options) == "--coordinator: expected host:port, got `somewhere`");
  options = Task();
  options.tls.ca = "ca";
  CHECK(CallerRefusal(options) == "TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  options = Task();
  options.metrics_listen = "10.0.0.7:9100";
  CHECK_THAT(CallerRefusal(options), Catch::Contains("--insecure-metrics"));
  options.tls = {"ca", "cert", "key"};
  CHECK(CheckCommonOptions(Caller(), options).ok());
  options = Task();
  options.insecure_metrics = true;
  CHECK_THAT(CallerRefusal(options), Catch::Contains("give --metrics-listen"));
}

TEST_CASE("a program without a coordinator, or without work to hand over, has no such rules") {
  Program alone = Caller();
  alone.has_coordinator = false;
  CHECK(CheckCommonOptions(alone, {}).ok());
  CommonOptions options = Task();
  options.preemption.source = "file";  // a mistake, for programs that have the flag
  CHECK(CheckCommonOptions(Caller(), options).ok());
}

TEST_CASE("each role has the program of its name, and only the coordinator calls no coordinator") {
  const std::pair<Role, const char*> roles[] = {{Role::kCoordinator, "evergrad-coordinator"},
                                                {Role::kPsServer, "evergrad-ps-server"},
                                                {Role::kWorker, "evergrad-worker"}};
  for (const auto& [role, name] : roles) {
    CAPTURE(name);
    const Program program = ProgramOf(role);
    CHECK(program.name == name);
    CHECK(program.role == RoleName(role));
    CHECK(program.serves);
    CHECK(program.hands_over);
    CHECK(program.has_coordinator == (role != Role::kCoordinator));
  }
}

}  // namespace
}  // namespace evergrad::daemon
