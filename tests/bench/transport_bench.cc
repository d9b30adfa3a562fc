// Measures bare data streams: the speed of the transport alone, without shards. TCP over loopback
// is compared with a raw TCP connection that carries the same bytes. A unix socket and shared
// memory are compared with our own TCP path. It is also measured how much a worker gains if it
// announces a push early. Each round measures all of them. Prints one JSON object a line.
//
//   transport_bench [PART]       only the figures whose name contains PART
#include <atomic>
#include <memory>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/transport.h"
#include "tests/bench/parties.h"
#include "tests/support/temp_folder.h"

namespace evergrad {
namespace {

using namespace bench;
using namespace transport;

std::shared_ptr<tensor::AlignedBuffer> Touched(std::size_t bytes) {
  auto buffer = std::make_shared<tensor::AlignedBuffer>(bytes);
  std::memset(buffer->data(), 1, bytes);
  return buffer;
}
constexpr std::size_t kMb = 1u << 20, kLargest = 64 * kMb;

// ---------------------------------------------------------------- the server

void ServeStreams(int out, const std::string& unix_path) {
  TuneAllocator();
  const auto source = Touched(kLargest);
  auto transport = MakeGrpcTransport(nullptr);
  Handlers handlers;
  handlers.data = [source](const PeerInfo&, ReceivedFrame frame,
                           std::unique_ptr<DataResponder> responder) {
    std::uint64_t pull = 0;
    EG_CHECK(frame.bytes.size() >= sizeof pull);
    std::memcpy(&pull, frame.bytes.data(), sizeof pull);
    frame = {};
    responder->Answer({{{source, {source->data(), pull}}}});
  };
  ServerOptions options;
  options.unix_path = unix_path;
  options.budget_bytes_max = 512u << 20;
  options.lane_bytes_max = 64u << 20;
  auto server = transport->Listen(options, std::move(handlers));
  EG_CHECK_MSG(server.ok(), server.status().ToString());
  SayLine(out, (*server)->address());
  for (;;) pause();
}

// ---------------------------------------------------------------- the client

struct Dialled {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Channel> channel;
  std::unique_ptr<DataStream> data;
};
std::shared_ptr<Dialled> Dial(const Address& address, const ChannelOptions& options) {
  TuneAllocator();
  auto dialled = std::make_shared<Dialled>();
  dialled->transport = MakeGrpcTransport(nullptr);
  auto channel = dialled->transport->Dial(address, options);
  EG_CHECK_MSG(channel.ok(), channel.status().ToString());
  dialled->channel = *std::move(channel);
  dialled->data = dialled->channel->OpenData();
  return dialled;
}

Measured MeasureStream(DataStream& data, const Wish& wish) {
  struct State {
    Mutex mu;
    CondVar idle;
    int live ABSL_GUARDED_BY(mu) = 0;
    std::uint64_t done = 0;
    Steady::time_point end;
  };
  const auto state = std::make_shared<State>();
  const auto body = Touched(std::max<std::size_t>(wish.push, 8));
  std::memcpy(body->data(), &wish.pull, sizeof wish.pull);
  const auto start = Steady::now();
  state->end = start + std::chrono::nanoseconds(static_cast<std::int64_t>(wish.seconds * 1e9));
  {
    MutexLock lock(&state->mu);
    state->live = wish.in_flight;
  }
  std::function<void()> issue = [&] {
    data.Call(0, {{{body, {body->data(), std::max<std::size_t>(wish.push, 8)}}}},
              {.response_bytes_max = wish.pull}, [&, state](absl::StatusOr<ReceivedFrame> result) {
                EG_CHECK_MSG(result.ok(), result.status().ToString());
                EG_CHECK(result->bytes.size() == wish.pull);
                *result = {};
                ++state->done;
                if (Steady::now() < state->end) return issue();
                MutexLock lock(&state->mu);
                if (--state->live == 0) state->idle.NotifyAll();
              });
  };
  for (int i = 0; i < wish.in_flight; ++i) issue();
  MutexLock lock(&state->mu);
  while (state->live > 0) state->idle.Wait(&state->mu);
  Measured measured;
  measured.calls = static_cast<double>(state->done);
  measured.seconds = std::chrono::duration<double>(Steady::now() - start).count();
  return measured;
}

Client ConnectStream(const Address& address, const ChannelOptions& options) {
  return [dialled = Dial(address, options)](const Wish& wish) {
    return MeasureStream(*dialled->data, wish);
  };
}

// Imitates a worker's step: it computes, then pushes and pulls. Returns steps per second. With
// `early` it announces the push before the computing begins.
double MeasureSteps(DataStream& data, std::size_t bytes, std::chrono::microseconds compute,
                    bool early, double seconds) {
  const auto body = Touched(bytes);
  const std::uint64_t wanted = bytes;
  std::memcpy(body->data(), &wanted, sizeof wanted);
  const DataOptions options{.response_bytes_max = bytes};
  const auto start = Steady::now();
  int steps = 0;
  for (; std::chrono::duration<double>(Steady::now() - start).count() < seconds; ++steps) {
    const std::uint64_t ticket = early ? data.Announce(bytes, options) : 0;
    for (const auto computed = Steady::now() + compute; Steady::now() < computed;) {
    }
    runtime::WaitableEvent answered;
    data.Call(ticket, {{{body, {body->data(), bytes}}}}, options,
              [&](absl::StatusOr<ReceivedFrame> result) {
                EG_CHECK_MSG(result.ok(), result.status().ToString());
                answered.Set();
              });
    answered.Wait();
  }
  return steps / std::chrono::duration<double>(Steady::now() - start).count();
}

// The fields of Wish have another meaning here. A step sends `push` bytes in both directions and
// computes for `pull` microseconds. With `in_flight` 2 the pushes are announced early.
Client ConnectSteps(const Address& address) {
  return [dialled = Dial(address, {})](const Wish& wish) {
    Measured measured;
    measured.calls = MeasureSteps(*dialled->data, wish.push, std::chrono::microseconds(wish.pull),
                                  wish.in_flight == 2, wish.seconds);
    measured.seconds = 1;
    return measured;
  };
}

// ---------------------------------------------------------------- the figures

void CompareEarly(const std::string& only, const std::string& name, Party& party,
                  std::uint64_t bytes, std::uint64_t compute_us) {
  if (name.find(only) == std::string::npos) return;
  std::vector<double> early, late, ratios;
  for (int round = 0; round < 8; ++round) {
    const double a = party.Measure({bytes, compute_us, 2, 0.25}).rate(),
                 b = party.Measure({bytes, compute_us, 1, 0.25}).rate();
    if (round == 0) continue;
    early.push_back(a);
    late.push_back(b);
    ratios.push_back(a / b);
  }
  Print(name, Median(early), "steps/s", "announced by the call", Median(late), Median(ratios),
        kNoReach);
}

int Main(const std::string& only) {
  const test::TempFolder folder;
  const std::string path = folder / "bench.sock";
  ChannelOptions by_socket, by_executor;
  by_socket.use_unix = true;
  by_executor.lane_ring_bytes = 2 * kMb;
  Party raw(ServeRaw, ConnectRaw);
  Party tcp([](int out) { ServeStreams(out, ""); },
            [](const std::string& line) {
              return ConnectStream({line, ""}, {});
            });
  Party by_unix([&](int out) { ServeStreams(out, path); },
                [&](const std::string& line) {
                  return ConnectStream({line, path}, by_socket);
                });
  Party lane([](int out) { ServeStreams(out, ""); },
             [&](const std::string& line) {
               return ConnectStream({line, ""}, by_executor);
             });
  Party steps([](int out) { ServeStreams(out, ""); },
              [](const std::string& line) {
                return ConnectSteps({line, ""});
              });

  const struct {
    const char* name;
    std::uint64_t bytes;
    int in_flight;
  } sizes[] = {
      {"64 KB", 64u << 10, 16}, {"1 MB", kMb, 8}, {"4 MB", 4 * kMb, 4}, {"64 MB", 64 * kMb, 2}};
  for (const auto& size : sizes) {
    for (const bool push : {true, false}) {
      const std::string what = std::string("stream, ") + (push ? "push " : "pull ") + size.name;
      if (what.find(only) == std::string::npos) continue;
      const Wish wish{push ? size.bytes : 0, push ? 0 : size.bytes, size.in_flight, 0.2};
      const double gb = static_cast<double>(size.bytes) * 1e-9;
      std::vector<double> rates[4], ratios[3];
      for (int round = 0; round < 6; ++round) {
        double got[4];
        int i = 0;
        for (Party* party : {&raw, &tcp, &by_unix, &lane})
          got[i++] = party->Measure(wish).rate() * gb;
        if (round == 0) continue;  // the warm-up
        for (i = 0; i < 4; ++i) rates[i].push_back(got[i]);
        ratios[0].push_back(got[1] / got[0]);
        ratios[1].push_back(got[2] / got[1]);
        ratios[2].push_back(got[3] / got[1]);
      }
      Print(what + ", TCP", Median(rates[1]), "GB/s", "raw TCP, same bytes", Median(rates[0]),
            Median(ratios[0]), kNoReach);
      Print(what + ", unix socket", Median(rates[2]), "GB/s", "our TCP path", Median(rates[1]),
            Median(ratios[1]), kNoReach);
      Print(what + ", shared memory", Median(rates[3]), "GB/s", "our TCP path", Median(rates[1]),
            Median(ratios[2]), kNoReach);
    }
  }
  CompareEarly(only, "step of 2 ms and a PushPull of 512 KB, announced early", steps, kMb / 2,
               2000);
  CompareEarly(only, "step of 20 ms and a PushPull of 4 MB, announced early", steps, 4 * kMb,
               20000);
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc > 1 ? argv[1] : ""); }
