// Measures what a small update costs beyond its transport. The ParameterClient sends PushPulls of 1
// KB to the shards of a parameter server; the path is frame, credits, fence, ledger, SGD, and
// values read back. The rival sends an empty message and gets one back, over a bare bidirectional
// byte-buffer stream of gRPC's completion-queue API. Both have the same number of calls in flight,
// and each round measures both. After that, PushPulls of a million elements are measured in each
// wire type, and compared with float32. Prints one JSON object a line.
//
// A forked child runs the servers of both. Each side has one thread for its completion queue, and
// the server of the PushPulls also has the executor of its shards.
//
//   pushpull_bench [PART]       only the figures whose name contains PART
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
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/grants/grant_proof.h"
#include "common/tensor/convert.h"
#include "common/transport/grpc/grpc_transport.h"
#include "ps_server/service/shard_host.h"
#include "tests/bench/figures.h"

namespace evergrad {
namespace {

using bench::Median;

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kJob = 1;
constexpr char kGrantKey[] = "known to the coordinator and the servers";
constexpr ShardEpoch kEpoch{1, 1};
constexpr std::uint64_t kValues = 256;      // float32: 1 KB each way
constexpr std::uint64_t kLarge = 1u << 20;  // float32: 4 MB
// The size and wire type of each shard, by shard number.
struct Kind {
  std::uint64_t values;
  tensor::WireType wire;
};
constexpr Kind kShards[] = {{kValues, tensor::WireType::kFloat32},
                            {kLarge, tensor::WireType::kFloat32},
                            {kLarge, tensor::WireType::kBFloat16},
                            {kLarge, tensor::WireType::kFloat16}};
constexpr double kRoundSeconds = 0.3;

// The meaning of an event of the completion queue.
enum class Op : std::intptr_t { kStart, kRead, kWrite, kEnd };
void* Tag(Op op) { return reinterpret_cast<void*>(op); }

// ---------------------------------------------------------------- the child

// Echoes empty messages forever.
class PingServer {
 public:
  PingServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    EG_CHECK(server_ != nullptr);
  }
  int port() const { return port_; }

  void Run() {
    service_.RequestCall(&context_, &stream_, queue_.get(), queue_.get(), Tag(Op::kStart));
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok) && ok) {
      switch (static_cast<Op>(reinterpret_cast<std::intptr_t>(tag))) {
        case Op::kRead: ++owed_; [[fallthrough]];
        case Op::kStart: stream_.Read(&incoming_, Tag(Op::kRead)); break;
        case Op::kWrite: writing_ = false; break;
        case Op::kEnd: return;
      }
      if (owed_ == 0 || writing_) continue;
      --owed_;
      writing_ = true;
      stream_.Write(empty_, Tag(Op::kWrite));
    }
  }

 private:
  int port_ = 0;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer incoming_;
  const grpc::Slice nothing_;
  const grpc::ByteBuffer empty_{&nothing_, 1};
  int owed_ = 0;
  bool writing_ = false;
};

void ServeChild(int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PingServer ping;
  runtime::ThreadExecutor executor({"shards-0"});
  metrics::Registry registry;
  ps_server::ShardHost::Options options;
  options.executors.push_back(&executor);
  options.registry = &registry;
  ps_server::ShardHost host(std::move(options));
  host.jobs().Learn(JobUid(kJob), MapVersion{1, 1}, std::size(kShards));
  host.jobs().SetGrantKey(JobUid(kJob), kGrantKey);  // as in a cluster, each push proves its grant
  for (std::uint32_t i = 0; i < std::size(kShards); ++i) {
    ps_server::ShardSettings shard;
    shard.job = JobUid(kJob);
    shard.shard = ShardId(i);
    shard.variable = "dense/kernel";
    shard.variable_shape = tensor::Shape{kShards[i].values, 1};
    shard.row_end = kShards[i].values;
    shard.optimizer.type = "sgd";
    shard.wire = kShards[i].wire;
    runtime::WaitableEvent assigned;
    host.shard_executor(ShardId(i))
        .Assign(shard, kEpoch, MapVersion{0, 0}, {},
                [&](const ps_server::ShardExecutor::Loaded& loaded) {
                  EG_CHECK_MSG(loaded.status.ok(), loaded.status.ToString());
                  assigned.Set();
                });
    assigned.Wait();
  }

  auto transport = transport::MakeGrpcTransport(nullptr);
  transport::Handlers handlers;
  handlers.data = [&](const transport::PeerInfo&, transport::ReceivedFrame frame,
                      std::unique_ptr<transport::DataResponder> responder) {
    host.Handle(std::move(frame), std::move(responder));
  };
  auto server = transport->Listen({}, std::move(handlers));
  EG_CHECK_MSG(server.ok(), server.status().ToString());
  const std::string ports = std::to_string(ping.port()) + " " + (*server)->address() + "\n";
  EG_CHECK(write(out, ports.data(), ports.size()) == static_cast<ssize_t>(ports.size()));
  ping.Run();
}

// ---------------------------------------------------------------- the two clients

class PushPulls {
 public:
  PushPulls(transport::Transport* transport, std::string address, std::uint32_t shard)
      : client_(transport, {}, "worker/0"), shard_(shard) {
    endpoint_.set_address(std::move(address));
    const std::vector<float> gradient(kShards[shard].values, 1e-3f);
    auto bytes = std::make_shared<std::vector<std::byte>>(gradient.size() *
                                                          tensor::WireBytes(kShards[shard].wire));
    tensor::Narrow(kShards[shard].wire, gradient.data(), gradient.size(), bytes->data());
    gradient_ = std::move(bytes);
  }
  // Returns the calls per second with `in_flight` outstanding calls.
  double Measure(int in_flight) {
    const auto start = Clock::now();
    end_ = start + std::chrono::nanoseconds(static_cast<std::int64_t>(kRoundSeconds * 1e9));
    const std::uint64_t before = next_;
    {
      MutexLock lock(&mu_);
      live_ = in_flight;
    }
    // This loop makes the first calls. After that, each answer makes the next call, on the
    // transport's thread.
    for (int i = 0; i < in_flight; ++i) {
      v1::RequestHeader first = Next();
      Send(std::move(first));
    }
    MutexLock lock(&mu_);
    while (live_ > 0) idle_.Wait(&mu_);
    return static_cast<double>(next_ - before) /
           std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  v1::RequestHeader Next() {
    const std::uint64_t n = next_.fetch_add(1);
    v1::RequestHeader header;
    header.set_job_uid(kJob);
    v1::GrantProof& grant = *header.add_grants();
    grant.set_closure(n / 4096);
    *grant.mutable_attempt() = client::ToProto(Attempt{1, 1 + n / 4096});
    grant.set_mac(ProofOf(n / 4096));
    v1::PushSection& push = *header.add_pushes();
    push.set_shard(shard_);
    *push.mutable_epoch() = client::ToProto(kEpoch);
    push.set_closure(n / 4096);
    push.set_update(static_cast<std::uint32_t>(n % 4096));
    *push.mutable_attempt() = grant.attempt();
    push.set_kind(v1::GRADIENT);
    push.set_dtype(static_cast<v1::DType>(kShards[shard_].wire));
    push.set_rows(kShards[shard_].values);
    v1::PullSection& pull = *header.add_pulls();
    pull.set_shard(shard_);
    *pull.mutable_epoch() = client::ToProto(kEpoch);
    return header;
  }
  // Returns the proof that a worker receives with its grant.
  std::string ProofOf(std::uint64_t closure) {
    MutexLock lock(&mu_);
    if (proof_.empty() || proof_of_ != closure) {
      proof_ = grants::MakeProof(kGrantKey, JobUid(kJob), ClosureId(closure),
                                 Attempt{1, 1 + closure}, "0");
      proof_of_ = closure;
    }
    return proof_;
  }
  void Send(v1::RequestHeader header) {
    client_.Send(endpoint_, std::move(header), {{gradient_, *gradient_}}, gradient_->size() + 64,
                 std::chrono::seconds(10),
                 [this](absl::StatusOr<client::ParameterClient::Answer> answer) {
                   EG_CHECK_MSG(answer.ok(), answer.status().ToString());
                   EG_CHECK(answer->header->pushes(0).answer() == v1::APPLIED &&
                            answer->payloads[0].size() == gradient_->size());
                   if (Clock::now() < end_) return Send(Next());
                   MutexLock lock(&mu_);
                   if (--live_ == 0) idle_.NotifyAll();
                 });
  }

  client::ParameterClient client_;
  v1::Endpoint endpoint_;
  const std::uint32_t shard_;
  // The gradient in its wire type. It is shared with the frames that are being sent.
  std::shared_ptr<const std::vector<std::byte>> gradient_;
  std::atomic<std::uint64_t> next_{0};
  Clock::time_point end_;
  Mutex mu_;
  CondVar idle_;
  std::string proof_ ABSL_GUARDED_BY(mu_);
  std::uint64_t proof_of_ ABSL_GUARDED_BY(mu_) = 0;
  int live_ ABSL_GUARDED_BY(mu_) = 0;
};

class Pings {
 public:
  explicit Pings(const std::string& port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    grpc::GenericStub stub(grpc::CreateCustomChannel(
        "127.0.0.1:" + port, grpc::InsecureChannelCredentials(), arguments));
    stream_ = stub.PrepareCall(&context_, "/ping/Stream", &queue_);
    stream_->StartCall(Tag(Op::kStart));
    EG_CHECK(Wait() == Op::kStart);
    stream_->Read(&incoming_, Tag(Op::kRead));
  }
  ~Pings() {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, Tag(Op::kEnd));
    queue_.Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue_.Next(&tag, &ok);) {
    }
  }
  double Measure(int in_flight) {
    const auto start = Clock::now();
    const auto end =
        start + std::chrono::nanoseconds(static_cast<std::int64_t>(kRoundSeconds * 1e9));
    std::uint64_t done = 0;
    int unsent = in_flight, live = in_flight;
    bool writing = false;
    while (live > 0 || writing) {
      if (unsent > 0 && !writing) {
        --unsent;
        writing = true;
        stream_->Write(empty_, Tag(Op::kWrite));
      }
      switch (Wait()) {
        case Op::kWrite: writing = false; break;
        case Op::kRead:
          ++done;
          if (Clock::now() < end) {
            ++unsent;
          } else {
            --live;
          }
          stream_->Read(&incoming_, Tag(Op::kRead));
          break;
        case Op::kStart:
        case Op::kEnd: break;
      }
    }
    return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  Op Wait() {
    void* tag = nullptr;
    bool ok = false;
    EG_CHECK(queue_.Next(&tag, &ok) && ok);
    return static_cast<Op>(reinterpret_cast<std::intptr_t>(tag));
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer incoming_;
  const grpc::Slice nothing_;
  const grpc::ByteBuffer empty_{&nothing_, 1};
};

void Compare(const std::string& only, const std::string& name, PushPulls& ours, Pings& rival,
             int in_flight) {
  if (name.find(only) == std::string::npos) return;
  std::vector<double> a, b, ratios;
  for (int round = 0; round < 8; ++round) {
    const double x = ours.Measure(in_flight) * 1e-3, y = rival.Measure(in_flight) * 1e-3;
    if (round == 0) continue;  // the warm-up
    a.push_back(x);
    b.push_back(y);
    ratios.push_back(x / y);
  }
  bench::Print(name, Median(a), "k/s",
               "empty stream ping, gRPC byte buffers, same number in flight", Median(b),
               Median(ratios), 0.8);
}

void CompareTypes(const std::string& only, const std::string& name, PushPulls& ours,
                  PushPulls& rival) {
  if (name.find(only) == std::string::npos) return;
  std::vector<double> a, b, ratios;
  for (int round = 0; round < 8; ++round) {
    const double x = ours.Measure(2) * kLarge * 1e-6, y = rival.Measure(2) * kLarge * 1e-6;
    if (round == 0) continue;  // the warm-up
    a.push_back(x);
    b.push_back(y);
    ratios.push_back(x / y);
  }
  bench::Print(name, Median(a), "M elements/s", "the same as float32", Median(b), Median(ratios),
               1.2);
}

int Main(const std::string& only) {
  transport::TuneAllocator();
  signal(SIGPIPE, SIG_IGN);
  int pipe_ends[2];
  EG_CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();  // before gRPC has threads in this process
  if (child == 0) {
    ServeChild(pipe_ends[1]);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string line;
  for (char c; read(pipe_ends[0], &c, 1) == 1 && c != '\n';) line += c;
  const std::size_t space = line.find(' ');
  EG_CHECK_MSG(space != std::string::npos, "the child did not start");
  {
    auto transport = transport::MakeGrpcTransport(nullptr);
    const std::string address = line.substr(space + 1);
    PushPulls ours(transport.get(), address, 0);
    Pings rival(line.substr(0, space));
    Compare(only, "1 KB PushPulls, 64 in flight", ours, rival, 64);
    Compare(only, "1 KB PushPulls, 1 in flight", ours, rival, 1);
    PushPulls plain(transport.get(), address, 1), bf16(transport.get(), address, 2),
        fp16(transport.get(), address, 3);
    CompareTypes(only, "PushPulls of 1 M elements as bf16, 2 in flight", bf16, plain);
    CompareTypes(only, "PushPulls of 1 M elements as fp16, 2 in flight", fp16, plain);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc > 1 ? argv[1] : ""); }
