// Tests how long `job watch` waits for a disconnected coordinator, under a manual clock.
#include "coordinator/psctl/watch.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/client/protocol.h"
#include "coordinator/psctl/control_client.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/manual_executor.h"

namespace evergrad::psctl {
namespace {

using std::chrono::milliseconds;

// A coordinator that answers the first `answers` calls with a running job, and the next `errors`
// calls with Unavailable. It never answers later calls.
class AwayCoordinator {
 public:
  AwayCoordinator(transport::Transport* transport, int answers, int errors) {
    transport::Handlers handlers;
    handlers.unary = [this, answers, errors](const transport::PeerInfo&, absl::string_view,
                                             std::string,
                                             std::unique_ptr<transport::UnaryResponder> responder) {
      MutexLock lock(&mu_);
      ++calls_;
      if (calls_ <= answers) {
        v1::GetJobResponse response;
        response.mutable_job()->set_state("RUNNING");
        return responder->Answer(response.SerializeAsString());
      }
      if (calls_ <= answers + errors)
        return responder->Answer(absl::UnavailableError("connection reset"));
      unanswered_.push_back(std::move(responder));
    };
    transport::ServerOptions options;
    options.listen = "127.0.0.1:4000";
    auto server = transport->Listen(options, std::move(handlers));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }

 private:
  Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<transport::UnaryResponder>> unanswered_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<transport::Server> server_;
};

// The result of a watch. `waited` is the time on the clock from the first tick without an answer of
// the coordinator to the end of the watch.
struct Watched {
  int code = -1;
  milliseconds waited{0};
  std::string err;
};
Watched Watch(int answers, int errors, milliseconds patience) {
  const auto transport = transport::MakeInprocTransport(nullptr);
  AwayCoordinator coordinator(transport.get(), answers, errors);
  ManualClock clock;
  Inbox<Happening> inbox;
  std::atomic<bool> handles_signals{false};
  std::ostringstream out, err;
  Context context{out, err};
  context.transport = transport.get();
  context.clock = &clock;
  context.inbox = &inbox;
  context.handles_signals = &handles_signals;
  Connection connection;
  connection.coordinator = "127.0.0.1:4000";
  auto client = ControlClient::Connect(context, connection);
  REQUIRE(client.ok());
  WatchOptions options;
  options.job = "job";
  options.reconnect_timeout = patience;
  options.tick = [&](ProgressPrinter&) -> std::optional<WatchOptions::Broken> {
    if (clock.Now() > std::chrono::minutes(5)) return WatchOptions::Broken{99, "it waits for ever"};
    clock.Advance(milliseconds(100));
    return std::nullopt;
  };
  Watched watched;
  watched.code = WatchJob(context, **client, options).exit_code;
  watched.waited = std::chrono::duration_cast<milliseconds>(clock.Now());
  watched.err = err.str();
  return watched;
}

TEST_CASE("the option --reconnect-timeout ends the wait for an unreachable coordinator") {
  const Watched watched = Watch(1, 1, milliseconds(3000));
  CHECK(watched.code == kUnreachable);
  CHECK(watched.waited >= milliseconds(3000));
  CHECK(watched.waited <= milliseconds(6000));  // although the call itself may take 11 s
  CHECK(watched.err.find("connection reset") != std::string::npos);
}

TEST_CASE(
    "a coordinator that delays its answer is awaited for --reconnect-timeout beyond the announced "
    "duration") {
  const Watched watched = Watch(1, 0, milliseconds(3000));
  CHECK(watched.code == kUnreachable);
  CHECK(watched.waited >= milliseconds(4000));
  CHECK(watched.waited <= milliseconds(7000));
  CHECK(watched.err.find("it does not answer") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::psctl
