#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/check.h"
#include "common/runtime/executor.h"

namespace evergrad::runtime {
namespace {

// Returns the signals to wait for. A process that was started with SIGINT ignored keeps ignoring
// it, as is usual for shells: psctl's children share its process group, and psctl itself handles a
// Ctrl-C at the terminal. (A blocked signal is queued even if it is ignored.)
sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  struct sigaction interrupt {};
  if (::sigaction(SIGINT, nullptr, &interrupt) != 0 || interrupt.sa_handler != SIG_IGN)
    sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void SignalWaiter::Install() {
  const sigset_t set = StopSignals();
  EG_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  EG_CHECK(::signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

void SignalWaiter::ResetInChild() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

SignalWaiter::SignalWaiter() {
  const sigset_t set = StopSignals();
  signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  EG_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
}

SignalWaiter::~SignalWaiter() {
  ::close(signal_fd_);
  ::close(stop_fd_);
}

int SignalWaiter::Wait() {
  for (;;) {
    if (const int signal = WaitFor(std::chrono::hours(1)); signal != kTimedOut) return signal;
  }
}

int SignalWaiter::WaitFor(std::chrono::milliseconds timeout) {
  const RealClock clock;
  const MonoTime until = clock.Now() + timeout;
  for (;;) {
    struct pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock.Now()).count();
    const int n = ::poll(fds, 2, static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
    EG_CHECK(n >= 0 || errno == EINTR);
    if (n > 0 && fds[0].revents != 0) {
      struct signalfd_siginfo info;
      if (::read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)))
        return static_cast<int>(info.ssi_signo);
    }
    if (n > 0 && fds[1].revents != 0) return 0;
    if (clock.Now() >= until) return kTimedOut;
  }
}

void SignalWaiter::RequestStop() {
  const std::uint64_t one = 1;
  EG_CHECK(::write(stop_fd_, &one, sizeof(one)) == static_cast<ssize_t>(sizeof(one)));
}

}  // namespace evergrad::runtime
