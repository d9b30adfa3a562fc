// Measures how much snapshots slow a push. The ParameterClient pushes 16 MiB again and again over
// loopback to a parameter server that writes snapshots of its shards to disk without a pause. In
// turns with this, the same pushes are made while the server writes no snapshot. The shards use
// Adam, so a snapshot has three times the bytes of a push. The figures are 99th percentiles in
// milliseconds. The ratio is (time without snapshots / time with snapshots), and its target is 1 /
// 1.5. A forked child runs the server and writes the snapshots. Prints one JSON object a line.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/fs/file_system.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/grpc/grpc_transport.h"
#include "ps_server/service/shard_host.h"
#include "ps_server/snapshot/snapshot_writer.h"
#include "tests/bench/figures.h"

namespace evergrad {
namespace {

constexpr JobUid kJob(1);
constexpr ShardEpoch kEpoch{1, 1};
constexpr std::uint64_t kValues = 4u << 20;  // float32: 16 MiB

std::string ReadLine(int fd) {
  std::string line;
  for (char c; read(fd, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

// ---------------------------------------------------------------- the child

class Saver {
 public:
  Saver(ps_server::SnapshotWriter* writer, ps_server::ShardHost* host, std::string folder)
      : writer_(writer), host_(host), folder_(std::move(folder)) {}
  void Start(std::uint32_t shards) {
    stopping_ = false;
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      ++under_way_;
      Submit(ShardId(shard));
    }
  }
  void Stop() {
    stopping_ = true;
    MutexLock lock(&mu_);
    while (under_way_ > 0) idle_.Wait(&mu_);
  }

 private:
  void Submit(ShardId shard) {
    ps_server::SnapshotWriter::Order order;
    order.job = kJob;
    order.shard = shard;
    order.folder = folder_;
    order.plan_fingerprint = "plan";
    order.bytes = 3 * kValues * sizeof(float);
    order.take = [this, shard](ps_server::ShardExecutor::CutReady ready) {
      host_->shard_executor(shard).Cut({kJob, shard}, kEpoch, std::move(ready));
    };
    order.done = [this, shard](absl::StatusOr<ps_server::DurableCut> durable) {
      EG_CHECK_MSG(durable.ok(), durable.status().ToString());
      std::error_code ignored;
      if (!stopping_) {
        // Removes the previous snapshot file of this shard, as a real server does when the
        // coordinator orders it.
        std::filesystem::remove(folder_ + "/" + last_[shard.value()], ignored);
        last_[shard.value()] = durable->file;
        return Submit(shard);
      }
      MutexLock lock(&mu_);
      if (--under_way_ == 0) idle_.NotifyAll();
    };
    EG_CHECK(writer_->Submit(std::move(order)).ok());
  }

  ps_server::SnapshotWriter* const writer_;
  ps_server::ShardHost* const host_;
  const std::string folder_;
  std::atomic<bool> stopping_{false};
  std::string last_[16];  // only the writer's thread uses it
  Mutex mu_;
  CondVar idle_;
  std::atomic<int> under_way_{0};
};

void ServeChild(int in, int out, std::uint32_t shards, const std::string& folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  metrics::Registry registry;
  const RealClock clock;
  const auto files = fs::MakeLocalFileSystem();
  runtime::ThreadExecutor first({"shards-0"}), second({"shards-1"});
  ps_server::ShardHost::Options options;
  options.executors = {&first, &second};
  options.registry = &registry;
  ps_server::ShardHost host(std::move(options));
  host.jobs().Learn(kJob, MapVersion{1, 1}, shards);
  for (std::uint32_t i = 0; i < shards; ++i) {
    ps_server::ShardSettings shard;
    shard.job = kJob;
    shard.shard = ShardId(i);
    shard.variable = "dense/kernel";
    shard.variable_shape = tensor::Shape{kValues, 1};
    shard.row_begin = kValues / shards * i;
    shard.row_end = kValues / shards * (i + 1);
    shard.optimizer.type = "adam";
    runtime::WaitableEvent assigned;
    host.shard_executor(ShardId(i))
        .Assign(shard, kEpoch, MapVersion{0, 0}, {},
                [&](const ps_server::ShardExecutor::Loaded& loaded) {
                  EG_CHECK_MSG(loaded.status.ok(), loaded.status.ToString());
                  assigned.Set();
                });
    assigned.Wait();
  }
  ps_server::SnapshotWriter::Options writing;
  writing.files = files.get();
  writing.registry = &registry;
  writing.clock = &clock;
  writing.pool = host.pool();
  ps_server::SnapshotWriter writer(std::move(writing));
  Saver saver(&writer, &host, folder);

  auto transport = transport::MakeGrpcTransport(nullptr);
  transport::Handlers handlers;
  handlers.data = [&](const transport::PeerInfo&, transport::ReceivedFrame frame,
                      std::unique_ptr<transport::DataResponder> responder) {
    host.Handle(std::move(frame), std::move(responder));
  };
  auto server = transport->Listen({}, std::move(handlers));
  EG_CHECK_MSG(server.ok(), server.status().ToString());
  const auto say = [out](const std::string& line) {
    EG_CHECK(write(out, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  };
  say((*server)->address() + "\n");
  for (;;) {
    const std::string order = ReadLine(in);
    if (order == "save") saver.Start(shards);
    if (order == "stop") saver.Stop();
    if (order.empty()) _exit(0);  // the parent has ended
    say("done\n");
  }
}

// ---------------------------------------------------------------- the client

class Pushes {
 public:
  Pushes(transport::Transport* transport, std::string address, std::uint32_t shards)
      : client_(transport, {}, "worker/0"), shards_(shards) {
    endpoint_.set_address(std::move(address));
    gradient_ = std::make_shared<const std::vector<float>>(kValues / shards, 1e-3f);
  }
  double Milliseconds() {
    v1::RequestHeader header;
    header.set_job_uid(kJob.value());
    std::vector<tensor::SharedBytes> payloads;
    for (std::uint32_t i = 0; i < shards_; ++i) {
      v1::PushSection& push = *header.add_pushes();
      push.set_shard(i);
      *push.mutable_epoch() = client::ToProto(kEpoch);
      push.set_closure(next_ / 4096);
      push.set_update(static_cast<std::uint32_t>(next_ % 4096));
      *push.mutable_attempt() = client::ToProto(Attempt{1, 1});
      push.set_kind(v1::GRADIENT);
      push.set_dtype(v1::DTYPE_FLOAT32);
      push.set_rows(kValues / shards_);
      payloads.push_back({gradient_, std::as_bytes(std::span(*gradient_))});
    }
    ++next_;
    runtime::WaitableEvent answered;
    const MonoTime begin = clock_.Now();
    client_.Send(endpoint_, std::move(header), std::move(payloads), 0, std::chrono::seconds(30),
                 [&](absl::StatusOr<client::ParameterClient::Answer> answer) {
                   EG_CHECK_MSG(answer.ok(), answer.status().ToString());
                   for (const v1::PushResult& result : answer->header->pushes())
                     EG_CHECK(result.answer() == v1::APPLIED);
                   answered.Set();
                 });
    answered.Wait();
    return std::chrono::duration<double, std::milli>(clock_.Now() - begin).count();
  }

 private:
  const RealClock clock_;
  client::ParameterClient client_;
  const std::uint32_t shards_;
  v1::Endpoint endpoint_;
  // Shared with the frames that are being sent.
  std::shared_ptr<const std::vector<float>> gradient_;
  std::uint64_t next_ = 0;
};

double Percentile(std::vector<double>& values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values[values.size() * percent / 100];
}

// Measures in a separate process, which is forked before gRPC has threads.
void Measure(std::uint32_t shards) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "evergrad-snapshots-bench-XXXXXX").string();
  EG_CHECK(mkdtemp(folder.data()) != nullptr);
  int to[2], from[2];
  EG_CHECK(pipe(to) == 0 && pipe(from) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(to[1]);
    close(from[0]);
    ServeChild(to[0], from[1], shards, folder + "/job");
  }
  close(to[0]);
  close(from[1]);
  const std::string address = ReadLine(from[0]);
  EG_CHECK_MSG(!address.empty(), "the child did not start");
  const auto tell = [&](const std::string& order) {
    const std::string line = order + "\n";
    EG_CHECK(write(to[1], line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    EG_CHECK(ReadLine(from[0]) == "done");
  };
  std::vector<double> alone, beside;
  {
    auto transport = transport::MakeGrpcTransport(nullptr);
    Pushes pushes(transport.get(), address, shards);
    for (int i = 0; i < 50; ++i) pushes.Milliseconds();  // warm-up
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 50; ++i) alone.push_back(pushes.Milliseconds());
      tell("save");
      for (int i = 0; i < 50; ++i) beside.push_back(pushes.Milliseconds());
      tell("stop");
    }
  }
  const double with = Percentile(beside, 99), without = Percentile(alone, 99);
  std::fprintf(stderr, "%u shards: median %.1f ms beside snapshots, %.1f ms without\n", shards,
               Percentile(beside, 50), Percentile(alone, 50));
  bench::Print("p99 of a 16 MiB push to " + std::to_string(shards) +
                   (shards == 1 ? " shard" : " shards") + " beside snapshots",
               with, "ms", "the same without snapshots", without, without / with, 0.667);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
}

int Main() {
  signal(SIGPIPE, SIG_IGN);
  for (const std::uint32_t shards : {4u, 1u}) {
    const pid_t one = fork();
    if (one == 0) {
      transport::TuneAllocator();
      Measure(shards);
      _exit(0);
    }
    int status = 0;
    if (waitpid(one, &status, 0) != one || status != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace evergrad

int main() { return evergrad::Main(); }
