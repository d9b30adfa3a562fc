// Measures dense pushes and pulls as a worker makes them, with one server and one client. The
// measured path is ParameterClient, frame, credits, ledger, an SGD update, and the values read
// back. In each round every rival is measured in turn. TCP is compared with a raw TCP connection
// that carries the same bytes, shared memory with our own TCP path, and TLS with a bare gRPC stream
// under the same mutual TLS. Prints one JSON object a line.
//
//   dense_bench [PART]                       only the figures whose name contains PART
//   dense_bench --servers HOST:PORT [PART]   over TCP, with a bench_server that already runs there
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <deque>
#include <memory>
#include <sstream>

#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/transport/grpc/grpc_transport.h"
#include "coordinator/psctl/cert.h"
#include "tests/bench/parties.h"
#include "tests/bench/shard_server.h"
#include "tests/support/temp_folder.h"

namespace evergrad {
namespace {

using namespace bench;

constexpr std::uint64_t kMb = 1u << 20;

// ---------------------------------------------------------------- a parameter server, its client

void ServeShards(int out, const transport::TlsFiles& tls) {
  transport::TuneAllocator();
  const ShardServer server("127.0.0.1:0", {kDenseJob}, tls);
  SayLine(out, server.address());
  for (;;) pause();
}

class ShardClient {
 public:
  ShardClient(const std::string& address, transport::ChannelOptions options)
      : client_(transport_.get(), std::move(options), "worker/0"),
        gradient_(std::make_shared<tensor::AlignedBuffer>(kDenseBytes[1])) {
    endpoint_.set_address(address);
    std::memset(gradient_->data(), 0, kDenseBytes[1]);
    // An earlier run against the same server has left its job there. The job of this run must
    // differ from it.
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    next_ = static_cast<std::uint64_t>(now) << 26;
  }
  Measured Measure(const Wish& wish) {
    wish_ = wish;
    const auto start = Steady::now();
    end_ = start + std::chrono::nanoseconds(static_cast<std::int64_t>(wish.seconds * 1e9));
    done_ = 0;
    {
      MutexLock lock(&mu_);
      live_ = wish.in_flight;
    }
    for (int i = 0; i < wish.in_flight; ++i) Send();
    MutexLock lock(&mu_);
    while (live_ > 0) idle_.Wait(&mu_);
    Measured measured;
    measured.calls = static_cast<double>(done_.load());
    measured.seconds = std::chrono::duration<double>(Steady::now() - start).count();
    return measured;
  }

 private:
  void Send() {
    const std::uint32_t shard = std::max(wish_.push, wish_.pull) == kDenseBytes[1] ? 1 : 0;
    v1::RequestHeader header;
    header.set_job_uid(kDenseJob);
    std::vector<tensor::SharedBytes> payloads;
    if (wish_.push > 0) {
      const std::uint64_t n = next_.fetch_add(1);
      v1::PushSection& push = *header.add_pushes();
      push.set_shard(shard);
      *push.mutable_epoch() = client::ToProto(kEpoch);
      push.set_closure(n / kUpdatesPerClosureMax);
      push.set_update(static_cast<std::uint32_t>(n % kUpdatesPerClosureMax));
      *push.mutable_attempt() = client::ToProto(Attempt{1, 1});
      push.set_kind(v1::GRADIENT);
      push.set_dtype(v1::DTYPE_FLOAT32);
      push.set_rows(kDenseBytes[shard] / 4096);
      payloads.push_back({gradient_, {gradient_->data(), kDenseBytes[shard]}});
    }
    if (wish_.pull > 0) {
      v1::PullSection& pull = *header.add_pulls();
      pull.set_shard(shard);
      *pull.mutable_epoch() = client::ToProto(kEpoch);
    }
    client_.Send(endpoint_, std::move(header), std::move(payloads), wish_.pull,
                 std::chrono::seconds(20),
                 [this](absl::StatusOr<client::ParameterClient::Answer> answer) {
                   EG_CHECK_MSG(answer.ok(), answer.status().ToString());
                   if (wish_.push > 0) EG_CHECK(answer->header->pushes(0).answer() == v1::APPLIED);
                   if (wish_.pull > 0) EG_CHECK(answer->payloads[0].size() == wish_.pull);
                   *answer = {};  // frees its memory for the next request
                   ++done_;
                   if (Steady::now() < end_) return Send();
                   MutexLock lock(&mu_);
                   if (--live_ == 0) idle_.NotifyAll();
                 });
  }

  const std::unique_ptr<transport::Transport> transport_ = transport::MakeGrpcTransport(nullptr);
  client::ParameterClient client_;
  v1::Endpoint endpoint_;
  // Shared with the frames that are being sent, which may outlive a call.
  const std::shared_ptr<tensor::AlignedBuffer> gradient_;
  Wish wish_;
  Steady::time_point end_;
  std::atomic<std::uint64_t> next_{0}, done_{0};
  Mutex mu_;
  CondVar idle_;
  int live_ ABSL_GUARDED_BY(mu_) = 0;
};

Client ConnectShards(const std::string& line, const transport::ChannelOptions& options) {
  transport::TuneAllocator();
  const auto client = std::make_shared<ShardClient>(line, options);
  return [client](const Wish& wish) { return client->Measure(wish); };
}

// ---------------------------------------------------------------- a bare gRPC stream under TLS

enum class Op : std::intptr_t { kStart, kRead, kWrite, kEnd };
void* Tag(Op op) { return reinterpret_cast<void*>(op); }
constexpr std::size_t kChunk = 512u << 10;

std::string Text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Sends the requests (client) or the answers (server) from one buffer, without a copy: heads of 16
// bytes, which are the sizes (push, pull), and chunks of bytes.
class Sender {
 public:
  void AddHead(const Wish& wish) {
    const std::uint64_t head[] = {wish.push, wish.pull};
    messages_.push_back(grpc::Slice(head, sizeof head));
  }
  void AddBytes(std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kChunk)
      messages_.push_back(grpc::Slice(buffer_.data() + at,
                                      std::min<std::uint64_t>(kChunk, bytes - at),
                                      grpc::Slice::STATIC_SLICE));
  }
  template <class Stream>
  void Pump(Stream& stream) {
    if (writing_ || messages_.empty()) return;
    writing_ = true;
    stream.Write(grpc::ByteBuffer(&messages_.front(), 1), Tag(Op::kWrite));
    messages_.pop_front();
  }
  void Written() { writing_ = false; }
  bool idle() const { return !writing_ && messages_.empty(); }

 private:
  std::vector<char> buffer_ = std::vector<char>(kDenseBytes[1], 1);
  std::deque<grpc::Slice> messages_;
  bool writing_ = false;
};

// Reads what a Sender sends: heads, each followed by the number of bytes that it announces.
class Receiver {
 public:
  // Returns the head of the request that `message` completes, if it completes one.
  std::optional<Wish> Take(const grpc::ByteBuffer& message, bool bytes_are_pull) {
    if (left_ == 0) {
      std::vector<grpc::Slice> slices;
      EG_CHECK(message.Dump(&slices).ok());
      std::string bytes;
      for (const auto& slice : slices)
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      std::uint64_t head[2] = {};
      EG_CHECK(bytes.size() == sizeof head);
      std::memcpy(head, bytes.data(), sizeof head);
      wish_.push = head[0];
      wish_.pull = head[1];
      left_ = bytes_are_pull ? wish_.pull : wish_.push;
    } else {
      left_ -= message.Length();
    }
    if (left_ > 0) return std::nullopt;
    return wish_;
  }

 private:
  Wish wish_;
  std::uint64_t left_ = 0;
};

void ServeBare(int out, const transport::TlsFiles& tls) {
  transport::TuneAllocator();
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = Text(tls.ca);
  ssl.pem_key_cert_pairs.push_back({Text(tls.key), Text(tls.cert)});
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(ssl), &port);
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  EG_CHECK(server != nullptr);
  SayLine(out, std::to_string(port));
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream(&context);
  grpc::ByteBuffer incoming;
  Sender sender;
  Receiver receiver;
  service.RequestCall(&context, &stream, queue.get(), queue.get(), Tag(Op::kStart));
  void* tag = nullptr;
  for (bool ok = false; queue->Next(&tag, &ok) && ok;) {
    switch (static_cast<Op>(reinterpret_cast<std::intptr_t>(tag))) {
      case Op::kRead:
        if (const auto wish = receiver.Take(incoming, false)) {
          sender.AddHead(*wish);
          sender.AddBytes(wish->pull);
        }
        [[fallthrough]];
      case Op::kStart:
        incoming.Clear();
        stream.Read(&incoming, Tag(Op::kRead));
        break;
      case Op::kWrite: sender.Written(); break;
      case Op::kEnd: return;
    }
    sender.Pump(stream);
  }
}

class BareClient {
 public:
  BareClient(const std::string& port, const transport::TlsFiles& tls) {
    grpc::SslCredentialsOptions ssl{Text(tls.ca), Text(tls.key), Text(tls.cert)};
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    grpc::GenericStub stub(
        grpc::CreateCustomChannel("127.0.0.1:" + port, grpc::SslCredentials(ssl), arguments));
    stream_ = stub.PrepareCall(&context_, "/bare/Stream", &queue_);
    stream_->StartCall(Tag(Op::kStart));
    EG_CHECK(Wait() == Op::kStart);
    stream_->Read(&incoming_, Tag(Op::kRead));
  }
  Measured Measure(const Wish& wish) {
    const auto start = Steady::now();
    const auto end =
        start + std::chrono::nanoseconds(static_cast<std::int64_t>(wish.seconds * 1e9));
    Measured measured;
    int live = 0;
    const auto send_one = [&] {
      sender_.AddHead(wish);
      sender_.AddBytes(wish.push);
      ++live;
    };
    for (int i = 0; i < wish.in_flight; ++i) send_one();
    while (live > 0 || !sender_.idle()) {
      sender_.Pump(*stream_);
      switch (Wait()) {
        case Op::kWrite: sender_.Written(); break;
        case Op::kRead:
          if (receiver_.Take(incoming_, true)) {
            ++measured.calls;
            --live;
            if (Steady::now() < end) send_one();
          }
          incoming_.Clear();
          stream_->Read(&incoming_, Tag(Op::kRead));
          break;
        case Op::kStart:
        case Op::kEnd: break;
      }
    }
    measured.seconds = std::chrono::duration<double>(Steady::now() - start).count();
    return measured;
  }

 private:
  Op Wait() {
    void* tag = nullptr;
    bool ok = false;
    EG_CHECK_MSG(queue_.Next(&tag, &ok) && ok, "the bare stream has ended");
    return static_cast<Op>(reinterpret_cast<std::intptr_t>(tag));
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer incoming_;
  Sender sender_;
  Receiver receiver_;
};

// ---------------------------------------------------------------- the figures

struct Figures {
  std::vector<double> rate, cpu, faults;
  void Add(const Measured& m, double gb) {
    rate.push_back(m.rate() * gb);
    cpu.push_back((m.client.cpu + m.server.cpu) / (m.calls * gb));
    faults.push_back((m.client.faults + m.server.faults) / (m.calls * gb));
  }
};

void Compare(const std::string& name, const char* unit, const std::vector<double>& ours,
             const std::string& rival, const std::vector<double>& its, double reach) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / std::max(its[i], 1e-12));
  Print(name, Median(ours), unit, rival, Median(its), Median(ratios), reach);
}

constexpr int kRounds = 7;

void CompareTcp(const std::string& what, const Wish& wish, const Figures& ours,
                const Figures& raw) {
  Compare(what + (wish.push > 0 ? ", SGD applied, TCP" : ", TCP"), "GB/s", ours.rate,
          "raw TCP, same bytes", raw.rate, wish.push > 0 ? 0.6 : 0.7);
}

void ForEachFigure(
    const std::string& only,
    const std::function<void(const std::string& what, const Wish& wish, double gb)>& measure) {
  for (const std::uint64_t bytes : kDenseBytes) {
    for (const bool push : {true, false}) {
      const std::string what =
          std::string("dense ") + (push ? "push " : "pull ") + std::to_string(bytes / kMb) + " MB";
      if (what.find(only) == std::string::npos) continue;
      measure(what, {push ? bytes : 0, push ? 0 : bytes, bytes == kDenseBytes[0] ? 4 : 2, 0.25},
              static_cast<double>(bytes) * 1e-9);
    }
  }
}

// Measures over TCP, against a bench_server at `address`.
int MeasureElsewhere(const std::string& address, const std::string& only) {
  Party raw(RawAddressOf(address), ConnectRaw);
  Party tcp(address, [](const std::string& line) { return ConnectShards(line, {}); });
  ForEachFigure(only, [&](const std::string& what, const Wish& wish, double gb) {
    Figures of_raw, of_tcp;
    for (int round = 0; round < kRounds + 1; ++round) {
      const Measured a = raw.Measure(wish), b = tcp.Measure(wish);
      if (round == 0) continue;  // a warm-up, for connections and page faults
      of_raw.Add(a, gb);
      of_tcp.Add(b, gb);
    }
    CompareTcp(what, wish, of_tcp, of_raw);
    Compare(what + ", TCP: CPU of this side", "s/GB", of_tcp.cpu, "raw TCP", of_raw.cpu, -1);
  });
  return 0;
}

int MeasureHere(const std::string& only) {
  const test::TempFolder folder;
  EG_CHECK(psctl::InitAuthority(folder.path(), "bench", 1).ok());
  const auto issued = [&](const std::string& name) {
    EG_CHECK(psctl::IssueCertificate({folder.path(), name, {"127.0.0.1"}, 1}).ok());
    return transport::TlsFiles{folder / "ca.pem", folder / (name + ".pem"),
                               folder / (name + ".key")};
  };
  const transport::TlsFiles server_tls = issued("ps-server-0"), worker_tls = issued("worker-0");
  transport::ChannelOptions by_tcp, by_lane, by_tls;
  by_lane.lane_ring_bytes = kLaneRingBytes;
  by_tls.tls = worker_tls;
  const auto serve_shards = [](int out) { ServeShards(out, {}); };
  Party raw(ServeRaw, ConnectRaw);
  Party tcp(serve_shards, [&](const std::string& line) { return ConnectShards(line, by_tcp); });
  Party lane(serve_shards, [&](const std::string& line) { return ConnectShards(line, by_lane); });
  Party tls([&](int out) { ServeShards(out, server_tls); },
            [&](const std::string& line) { return ConnectShards(line, by_tls); });
  Party bare([&](int out) { ServeBare(out, server_tls); },
             [&](const std::string& line) {
               transport::TuneAllocator();
               const auto client = std::make_shared<BareClient>(line, worker_tls);
               return Client([client](const Wish& wish) { return client->Measure(wish); });
             });

  ForEachFigure(only, [&](const std::string& what, const Wish& wish, double gb) {
    Figures of_raw, of_tcp, of_lane, of_tls, of_bare;
    for (int round = 0; round < kRounds + 1; ++round) {
      const Measured a = raw.Measure(wish), b = tcp.Measure(wish), c = lane.Measure(wish),
                     d = tls.Measure(wish), e = bare.Measure(wish);
      if (round == 0) continue;  // a warm-up, for connections and page faults
      of_raw.Add(a, gb);
      of_tcp.Add(b, gb);
      of_lane.Add(c, gb);
      of_tls.Add(d, gb);
      of_bare.Add(e, gb);
    }
    CompareTcp(what, wish, of_tcp, of_raw);
    Compare(what + ", same host", "GB/s", of_lane.rate, "our TCP path", of_tcp.rate, 1.0);
    Compare(what + ", mutual TLS", "GB/s", of_tls.rate, "bare gRPC stream, mutual TLS",
            of_bare.rate, 0.8);
    Compare(what + ", TCP: CPU of both sides", "s/GB", of_tcp.cpu, "raw TCP", of_raw.cpu, -1);
    Compare(what + ", same host: CPU of both sides", "s/GB", of_lane.cpu, "raw TCP", of_raw.cpu,
            -1);
    Compare(what + ", mutual TLS: CPU of both sides", "s/GB", of_tls.cpu,
            "bare gRPC stream, mutual TLS", of_bare.cpu, -1);
    const std::vector<double> all(of_tcp.faults.size(), 1e9 / 4096);
    Compare(what + ", TCP: page faults of both sides", "/GB", of_tcp.faults, "one for each page",
            all, -1);
    Compare(what + ", same host: page faults of both sides", "/GB", of_lane.faults,
            "one for each page", all, -1);
  });
  return 0;
}

int Main(int argc, char** argv) {
  std::string servers, only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--servers" && i + 1 < argc) {
      servers = argv[++i];
    } else if (argument.rfind("--", 0) == 0) {
      std::fprintf(stderr, "usage: dense_bench [--servers HOST:PORT] [PART]\n");
      return 2;
    } else {
      only = argument;
    }
  }
  if (servers.empty()) return MeasureHere(only);
  const std::vector<std::string> listed = SplitServers(servers);
  if (listed.size() != 1 || RawAddressOf(listed[0]).empty()) {
    std::fprintf(
        stderr, "dense_bench: --servers %s: want one HOST:PORT, the figure is that of one server\n",
        servers.c_str());
    return 2;
  }
  return MeasureElsewhere(listed[0], only);
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc, argv); }
