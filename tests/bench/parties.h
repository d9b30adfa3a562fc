// Runs competitors in separate processes. Each competitor is a client process and a server process.
// It shares no process with another competitor, so that CPU, page faults and threads are measured
// separately. The processes must be forked before there are threads. This file uses POSIX only, and
// no gRPC.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/figures.h"

namespace evergrad::bench {

using Steady = std::chrono::steady_clock;

// Calls to make: each carries `push` bytes to the server and `pull` bytes back. `in_flight` calls
// are outstanding at a time, and new calls begin for at least `seconds`.
struct Wish {
  std::uint64_t push = 0, pull = 0;
  int in_flight = 1;
  double seconds = 0.25;
};

struct Usage {
  double cpu = 0, faults = 0;
};

struct Measured {
  double calls = 0, seconds = 0;
  Usage client, server;
  double rate() const { return calls / seconds; }
};

// Returns the CPU seconds and minor page faults of a process.
inline Usage UsageOf(pid_t pid) {
  Usage usage;
  clockid_t clock;
  timespec now{};
  EG_CHECK(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &now) == 0);
  usage.cpu = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  std::getline(in, word, ')');  // skips the pid and the name in parentheses
  for (int field = 3; field <= 10; ++field) in >> word;
  usage.faults = std::stod(word);
  return usage;
}

// Makes calls for at least `wish.seconds`. Returns the number of calls and the duration.
using Client = std::function<Measured(const Wish&)>;

inline void SayLine(int out, const std::string& text) {
  const std::string line = text + "\n";
  EG_CHECK(write(out, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

class Party {
 public:
  // `serve` runs in the server's process. It writes one line with its addresses to the file
  // descriptor `out`, then serves until it is killed. `connect` runs in the client's process. It
  // gets that line and returns the client.
  Party(const std::function<void(int out)>& serve,
        const std::function<Client(const std::string& line)>& connect) {
    int to[2], from[2];
    EG_CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGPIPE, SIG_IGN);
      close(to[1]);
      close(from[0]);
      Run(serve, connect, to[0], from[1]);
      _exit(0);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  // Starts only a client, for a server that already runs elsewhere; `line` has its addresses. The
  // usage of the server stays 0.
  Party(const std::string& line, const std::function<Client(const std::string& line)>& connect)
      : Party([line](int out) { SayLine(out, line), pause(); }, connect) {}
  ~Party() {
    kill(pid_, SIGKILL);  // The server of this client dies with it.
    waitpid(pid_, nullptr, 0);
    close(to_);
    close(from_);
  }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  Measured Measure(const Wish& wish) {
    Measured measured;
    EG_CHECK(write(to_, &wish, sizeof wish) == static_cast<ssize_t>(sizeof wish));
    EG_CHECK_MSG(read(from_, &measured, sizeof measured) == static_cast<ssize_t>(sizeof measured),
                 "a party has died");
    return measured;
  }

 private:
  static void Run(const std::function<void(int)>& serve,
                  const std::function<Client(const std::string&)>& connect, int in, int out) {
    int lines[2];
    EG_CHECK(pipe(lines) == 0);
    const pid_t server = fork();
    if (server == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(lines[0]);
      serve(lines[1]);
      _exit(0);
    }
    close(lines[1]);
    std::string line;
    for (char c; read(lines[0], &c, 1) == 1 && c != '\n';) line += c;
    EG_CHECK_MSG(!line.empty(), "a server did not start");
    const Client client = connect(line);
    for (Wish wish; read(in, &wish, sizeof wish) == static_cast<ssize_t>(sizeof wish);) {
      const Usage mine = UsageOf(getpid()), its = UsageOf(server);
      Measured measured = client(wish);
      const Usage mine_after = UsageOf(getpid()), its_after = UsageOf(server);
      measured.client = {mine_after.cpu - mine.cpu, mine_after.faults - mine.faults};
      measured.server = {its_after.cpu - its.cpu, its_after.faults - its.faults};
      if (write(out, &measured, sizeof measured) != static_cast<ssize_t>(sizeof measured)) break;
    }
  }

  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

// The raw competitor: one TCP connection, and both sides read every byte into one buffer. A line is
// "HOST:PORT", IPv4.
Client ConnectRaw(const std::string& line);
void ServeRaw(int out);
// ListenRaw, AddressOf and the server's loop are the parts of ServeRaw. ListenRaw returns a
// listening socket, or -1. AddressOf returns the address of that socket. The server handles each
// connection in a separate process.
int ListenRaw(const std::string& address);
std::string AddressOf(int listener);
[[noreturn]] void ServeRawForEver(int listener);
std::string CongestionOf(int socket);

}  // namespace evergrad::bench
