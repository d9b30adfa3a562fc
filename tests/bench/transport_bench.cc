// Data streams over loopback against raw TCP for the same bytes, in one run, interleaved. One JSON object a line.
//
// A forked child serves both: the transport under test, and a socket that reads into one buffer. Pushes carry the bytes in the
// request, pulls in the answer. Medians of the rounds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc_transport.h"
#include "common/transport/transport.h"

namespace evergrad {
namespace {

using namespace transport;
using Clock = std::chrono::steady_clock;

struct Request {  // Of the raw protocol: `push` bytes follow, `pull` bytes are wanted.
  std::uint64_t push = 0, pull = 0;
};

void ReadAll(int fd, void* out, std::size_t n) {
  auto* p = static_cast<char*>(out);
  while (n > 0) {
    const ssize_t k = recv(fd, p, n, 0);
    if (k <= 0) _exit(0);
    p += k;
    n -= static_cast<std::size_t>(k);
  }
}
void WriteAll(int fd, const void* from, std::size_t n) {
  const auto* p = static_cast<const char*>(from);
  while (n > 0) {
    const ssize_t k = send(fd, p, std::min<std::size_t>(n, 1 << 20), MSG_NOSIGNAL);
    if (k <= 0) _exit(0);
    p += k;
    n -= static_cast<std::size_t>(k);
  }
}

std::shared_ptr<tensor::AlignedBuffer> Touched(std::size_t bytes) {
  auto buffer = std::make_shared<tensor::AlignedBuffer>(bytes);
  std::memset(buffer->data(), 1, bytes);
  return buffer;
}
constexpr std::size_t kLargest = 64u << 20;

// ---------------------------------------------------------------- the child

void ServeRaw(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const auto sink = Touched(kLargest), source = Touched(kLargest);
  for (;;) {
    Request request;
    ReadAll(fd, &request, sizeof request);
    ReadAll(fd, sink->data(), request.push);
    WriteAll(fd, &request, sizeof request);
    WriteAll(fd, source->data(), request.pull);
  }
}

void ServeChild(int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EG_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(listener, 4) == 0);
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);

  const auto source = Touched(kLargest);
  auto transport = MakeGrpcTransport(nullptr);
  Handlers handlers;
  handlers.data = [source](const PeerInfo&, ReceivedFrame frame, std::unique_ptr<DataResponder> responder) {
    std::uint64_t pull = 0;
    EG_CHECK(frame.bytes.size() >= sizeof pull);
    std::memcpy(&pull, frame.bytes.data(), sizeof pull);
    frame = {};
    responder->Answer({{{source, {source->data(), pull}}}});
  };
  auto server = transport->Listen({.budget_bytes_max = 512u << 20}, std::move(handlers));
  EG_CHECK_MSG(server.ok(), server.status().ToString());
  const std::string ports = std::to_string(ntohs(address.sin_port)) + " " + (*server)->address() + "\n";
  EG_CHECK(write(out, ports.data(), ports.size()) == static_cast<ssize_t>(ports.size()));
  ServeRaw(listener);
}

// ---------------------------------------------------------------- the two clients

// Calls per second with `in_flight` outstanding, for `seconds`.
double MeasureStream(DataStream& data, std::size_t push, std::size_t pull, int in_flight, double seconds) {
  struct State {
    Mutex mu;
    CondVar idle;
    int live = 0;
    std::uint64_t done = 0;
    Clock::time_point end;
  };
  const auto state = std::make_shared<State>();
  const auto body = Touched(std::max<std::size_t>(push, 8));
  const std::uint64_t wanted = pull;
  std::memcpy(body->data(), &wanted, sizeof wanted);
  const auto start = Clock::now();
  state->end = start + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  state->live = in_flight;
  std::function<void()> issue = [&] {
    data.Call(0, {{{body, {body->data(), std::max<std::size_t>(push, 8)}}}}, {.response_bytes_max = pull},
              [&, state](absl::StatusOr<ReceivedFrame> result) {
                EG_CHECK_MSG(result.ok(), result.status().ToString());
                EG_CHECK(result->bytes.size() == pull);
                ++state->done;
                if (Clock::now() < state->end) return issue();
                MutexLock lock(&state->mu);
                if (--state->live == 0) state->idle.NotifyAll();
              });
  };
  for (int i = 0; i < in_flight; ++i) issue();
  MutexLock lock(&state->mu);
  while (state->live > 0) state->idle.Wait(&state->mu);
  return static_cast<double>(state->done) / std::chrono::duration<double>(Clock::now() - start).count();
}

double MeasureRaw(int fd, std::size_t push, std::size_t pull, int in_flight, double seconds) {
  static const auto source = Touched(kLargest), sink = Touched(kLargest);
  const Request request{push, pull};
  const auto start = Clock::now();
  const auto end = start + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  std::uint64_t done = 0;
  int flying = 0;
  const auto send_one = [&] {
    WriteAll(fd, &request, sizeof request);
    WriteAll(fd, source->data(), push);
    ++flying;
  };
  // Large pulls are asked for one ahead, and pushes are simply written: both keep the wire full.
  for (int i = 0; i < in_flight; ++i) send_one();
  while (flying > 0) {
    Request answer;
    ReadAll(fd, &answer, sizeof answer);
    ReadAll(fd, sink->data(), pull);
    --flying;
    ++done;
    if (Clock::now() < end) send_one();
  }
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const std::string& only, const char* name, DataStream& data, int raw, std::size_t push, std::size_t pull, int in_flight, double scale,
             const char* unit, double reach) {
  if (std::string(name).find(only) == std::string::npos) return;
  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < 6; ++round) {
    const double a = MeasureStream(data, push, pull, in_flight, 0.25) * scale;
    const double b = MeasureRaw(raw, push, pull, in_flight, 0.25) * scale;
    if (round == 0) continue;  // Warm-up: connections, page faults.
    ours.push_back(a);
    theirs.push_back(b);
    ratios.push_back(a / b);
  }
  std::printf(
      "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"reference_name\": \"raw TCP loopback, same bytes\", \"reference_value\": %.4g, "
      "\"ratio\": %.3f, \"reach\": %.2f}\n",
      name, Median(ours), unit, Median(theirs), Median(ratios), reach);
  std::fflush(stdout);
}

// A worker's step by itself: computes, then pushes and pulls. Steps per second; `early` announces before the computing begins.
double MeasureSteps(DataStream& data, std::size_t bytes, std::chrono::microseconds compute, bool early, double seconds) {
  const auto body = Touched(bytes);
  const std::uint64_t wanted = bytes;
  std::memcpy(body->data(), &wanted, sizeof wanted);
  const DataOptions options{.response_bytes_max = bytes};
  const auto start = Clock::now();
  int steps = 0;
  for (; std::chrono::duration<double>(Clock::now() - start).count() < seconds; ++steps) {
    const std::uint64_t ticket = early ? data.Announce(bytes, options) : 0;
    for (const auto computed = Clock::now() + compute; Clock::now() < computed;) {
    }
    runtime::Event answered;
    data.Call(ticket, {{{body, {body->data(), bytes}}}}, options, [&](absl::StatusOr<ReceivedFrame> result) {
      EG_CHECK_MSG(result.ok(), result.status().ToString());
      answered.Set();
    });
    answered.Wait();
  }
  return steps / std::chrono::duration<double>(Clock::now() - start).count();
}

void CompareEarly(const std::string& only, const std::string& name, DataStream& data, std::size_t bytes, std::chrono::microseconds compute) {
  if (name.find(only) == std::string::npos) return;
  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < 8; ++round) {
    const double a = MeasureSteps(data, bytes, compute, true, 0.25), b = MeasureSteps(data, bytes, compute, false, 0.25);
    if (round == 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
    ratios.push_back(a / b);
  }
  std::printf(
      "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"steps/s\", \"reference_name\": \"announced by the call\", \"reference_value\": %.4g, "
      "\"ratio\": %.3f, \"reach\": null}\n",
      name.c_str(), Median(ours), Median(theirs), Median(ratios));
  std::fflush(stdout);
}

int Main(const std::string& only) {
  TuneAllocator();
  signal(SIGPIPE, SIG_IGN);
  int pipe_ends[2];
  EG_CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    ServeChild(pipe_ends[1]);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string line;
  for (char c; read(pipe_ends[0], &c, 1) == 1 && c != '\n';) line += c;
  const std::size_t space = line.find(' ');
  EG_CHECK_MSG(space != std::string::npos, "the child did not start");

  const int raw = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(line)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EG_CHECK(connect(raw, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const int one = 1;
  setsockopt(raw, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  char congestion[32] = {};
  socklen_t size = sizeof congestion;
  getsockopt(raw, IPPROTO_TCP, TCP_CONGESTION, congestion, &size);
  std::fprintf(stderr, "TCP congestion control of both: %s\n", congestion);

  {
    auto transport = MakeGrpcTransport(nullptr);
    auto channel = transport->Dial({.host_port = line.substr(space + 1)}, {});
    EG_CHECK(channel.ok());
    auto data = (*channel)->OpenData();
    const std::size_t mb = 1u << 20;
    Compare(only, "dense push 4 MB", *data, raw, 4 * mb, 0, 4, 4 * static_cast<double>(mb) * 1e-9, "GB/s", 0.5);
    Compare(only, "dense pull 4 MB", *data, raw, 0, 4 * mb, 4, 4 * static_cast<double>(mb) * 1e-9, "GB/s", 0.5);
    Compare(only, "dense push 64 MB", *data, raw, 64 * mb, 0, 2, 64 * static_cast<double>(mb) * 1e-9, "GB/s", 0.5);
    Compare(only, "dense pull 64 MB", *data, raw, 0, 64 * mb, 2, 64 * static_cast<double>(mb) * 1e-9, "GB/s", 0.5);
    CompareEarly(only, "step of 2 ms and a PushPull of 512 KB, announced early", *data, mb / 2, std::chrono::microseconds(2000));
    CompareEarly(only, "step of 20 ms and a PushPull of 4 MB, announced early", *data, 4 * mb, std::chrono::microseconds(20000));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace evergrad

// An argument runs only the figures whose name contains it.
int main(int argc, char** argv) { return evergrad::Main(argc > 1 ? argv[1] : ""); }
