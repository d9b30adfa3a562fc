// Tests the start of a daemon's process, before its role begins.
#include "common/daemon/daemon.h"

#include <google/protobuf/stubs/logging.h>

#include <catch2/catch.hpp>
#include <string>

#include "common/daemon/exit_codes.h"

namespace evergrad::daemon {
namespace {

TEST_CASE("strings of a peer that are not UTF-8 cause no output on a daemon's stderr") {
  Daemon daemon(Role::kWorker, "test");
  const char* const arguments[] = {"evergrad-worker", "--version"};
  CHECK(daemon.Start(2, arguments) == std::optional<int>(kExitOk));
  // SetLogHandler returns the previous handler. It must be null, which is the handler that drops
  // every line.
  CHECK(google::protobuf::SetLogHandler(nullptr) == nullptr);
}

TEST_CASE("the help of a program that serves nothing has no flag of a listener") {
  Daemon caller({"evergrad-caller", "caller", /*serves=*/false, /*hands_over=*/false,
                 /*has_coordinator=*/true},
                "test");
  const std::string help = caller.options().Help();
  for (const char* flag :
       {"--listen", "--insecure-listen", "--advertise", "--address-file", "--failpoints",
        "--failpoint-seed", "--preemption-source", "--preemption-notice-file",
        "--preemption-metadata-url", "--on-rebalance"})
    CHECK_THAT(help, !Catch::Contains(flag));
  for (const char* flag : {"--coordinator", "--metrics-listen", "--insecure-metrics", "--tls-ca",
                           "--tls-cert", "--tls-key", "--log-format", "--log-level", "--log-file"})
    CHECK_THAT(help, Catch::Contains(flag));
  Daemon worker(Role::kWorker, "test");
  for (const char* flag : {"--listen", "--advertise", "--failpoints", "--preemption-source"})
    CHECK_THAT(worker.options().Help(), Catch::Contains(flag));
}

}  // namespace
}  // namespace evergrad::daemon
