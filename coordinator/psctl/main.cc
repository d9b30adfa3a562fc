// psctl. This file creates the real clock, transport, terminal, environment and signal handlers.
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "coordinator/psctl/context.h"

extern char** environ;

namespace {

// Returns a line of the terminal if one is complete, without waiting.
std::optional<std::string> ReadLine() {
  static std::string pending;
  for (;;) {
    if (const std::size_t end = pending.find('\n'); end != std::string::npos) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return line;
    }
    struct pollfd fd = {STDIN_FILENO, POLLIN, 0};
    if (::poll(&fd, 1, 0) <= 0) return std::nullopt;
    char buffer[256];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n <= 0 || pending.size() > 4096) return "";  // the terminal is closed, which counts as "no"
    pending.append(buffer, static_cast<std::size_t>(n));
  }
}

std::size_t Columns() {
  struct winsize size {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 80;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace evergrad;
  transport::TuneAllocator();
  runtime::SignalWaiter::Install();
  runtime::SignalWaiter signals;
  RealClock clock;
  psctl::Inbox<psctl::Happening> inbox;
  std::atomic<bool> handles_signals{false};
  int code = 0;
  {
    const auto transport = transport::MakeGrpcTransport(nullptr);
    psctl::Context context{std::cout, std::cerr};
    context.transport = transport.get();
    context.clock = &clock;
    std::error_code error;
    context.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
    if (error) context.program = std::filesystem::absolute(argv[0]).string();
    context.folder = std::filesystem::current_path(error).string();
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (const std::size_t equals = text.find('='); equals != std::string::npos)
        context.environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
    const auto variable = context.environment.find("TERM");
    const bool dumb = variable == context.environment.end() || variable->second == "dumb";
    context.in_terminal = ::isatty(STDIN_FILENO) == 1;
    context.out_terminal = ::isatty(STDOUT_FILENO) == 1 && !dumb;
    context.columns = Columns();
    context.inbox = &inbox;
    context.handles_signals = &handles_signals;
    context.read_line = ReadLine;
    runtime::Thread watcher("signals", [&] {
      for (;;) {
        const int signal = signals.Wait();
        if (signal == 0) return;
        // Verbs that only read have nothing to clean up, so they end here, in the middle of a call.
        if (!handles_signals.load()) std::_Exit(psctl::kInterrupted);
        psctl::Happening happening;
        happening.signal = signal;
        inbox.Put(std::move(happening));
      }
    });
    code = psctl::RunPsctl(context, std::vector<std::string>(argv + 1, argv + argc));
    std::cout.flush();
    signals.RequestStop();
  }
  return code;
}
