// Tests the start of a daemon's process, before its role begins.
#include "common/daemon/daemon.h"

#include <google/protobuf/stubs/logging.h>

#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace evergrad::daemon
