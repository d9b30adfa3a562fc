// Measures pulls and pushes of rows of an embedding table over the wire; the pushes use Adagrad. A
// request has 13,312 different ids in 128 slots, and four requests are in flight. The requests go
// to a parameter server's shards in another process (frame, credits, fence, ledger, table), over
// TCP or over a shared-memory lane, as between tasks of one host. The rival is one thread that
// finds the same rows in a plain table of its own process, without any network (plain_table.h).
// Each round measures both, and the figures are medians of the rounds. The ids are spread evenly
// over the table.
//
// Each request is built when it is sent, as a worker does it, from ids that are already grouped by
// slot. (A worker's SlotRows groups them while its batch is read; ps-lite's keys are sorted, too.)
// The rows of the answers are not copied. The gradient of the first push to a row depends on the
// row's id, so that the row's values show to which id it belongs. Before the rounds, every batch is
// pulled over each path, and every number is compared. Until the pushes are measured, one number of
// each pull is still compared. (Servers that were started elsewhere may have rows of an earlier
// run, so only the sizes of their answers are compared.)
//
//   rows_bench [--seconds S] [PART]
//       only the figures whose name contains PART; S seconds a round, for a profiler
//   rows_bench --servers HOST:PORT,… [PART]
//       over TCP, with bench_servers that already run elsewhere; the slots are spread over them
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/client/parameter_client.h"
#include "common/client/protocol.h"
#include "common/sharding/slots.h"
#include "common/transport/grpc/grpc_transport.h"
#include "tests/bench/figures.h"
#include "tests/bench/parties.h"
#include "tests/bench/plain_table.h"
#include "tests/bench/shard_server.h"

namespace evergrad {
namespace {

using bench::Median;

using Clock = std::chrono::steady_clock;
using bench::kEpoch, bench::kLaneRingBytes, bench::kSlots, bench::kTable;

constexpr std::size_t kIds = 13312, kBatches = 48;
constexpr int kInFlight = 4, kRounds = 5;

double MyCpu() { return bench::UsageOf(getpid()).cpu; }
double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// ---------------------------------------------------------------- the server

// The server for one table size. It is in another process, so that its memory is freed when that
// process ends.
class Child {
 public:
  Child() {
    int pipe_ends[2];
    EG_CHECK(pipe(pipe_ends) == 0);
    pid_ = fork();  // before gRPC has a thread here
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int raw = bench::ListenRaw("127.0.0.1:0");
      EG_CHECK(raw >= 0);
      if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench::ServeRawForEver(raw);
      }
      const bench::ShardServer server("127.0.0.1:0", {16, 64});
      bench::SayLine(pipe_ends[1], bench::AddressOf(raw) + " " + server.address());
      for (;;) pause();
    }
    close(pipe_ends[1]);
    std::string line;
    for (char c; read(pipe_ends[0], &c, 1) == 1 && c != '\n';) line += c;
    close(pipe_ends[0]);
    const std::size_t space = line.find(' ');
    EG_CHECK_MSG(space != std::string::npos, "the child did not start");
    raw_ = line.substr(0, space);
    address_ = line.substr(space + 1);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }
  double cpu() const { return bench::UsageOf(pid_).cpu; }

  // Returns the rate of one raw stream in GB/s, with messages of 1 MiB.
  double Raw() const {
    const double rate =
        bench::ConnectRaw(raw_)({.push = 1 << 20, .in_flight = 8, .seconds = 0.7}).rate() *
        (1 << 20) * 1e-9;
    std::fprintf(stderr, "raw TCP: %.2f GB/s\n", rate);
    return rate;
  }

 private:
  pid_t pid_ = 0;
  std::string raw_, address_;
};

// ---------------------------------------------------------------- ids

// The ids of one batch, grouped by slot.
struct Batch {
  std::shared_ptr<tensor::AlignedBuffer> ids;  // shared with the requests that carry them
  std::vector<std::uint32_t> first;            // index of each slot's first id, and the end
  const std::int64_t* data() const { return reinterpret_cast<const std::int64_t*>(ids->data()); }
};

// Returns the gradient of the first push to `id` for element k.
float FirstGradient(std::int64_t id, std::size_t k) {
  const std::uint64_t mixed = sharding::Mix64(static_cast<std::uint64_t>(id) + k);
  // The result is between -1 and 1, and differs between elements.
  return static_cast<float>(static_cast<std::int32_t>(mixed >> 32)) * 0x1p-31f;
}
// Returns the weight after that push by Adagrad, from a weight of 0 and an accumulator of 0.1.
float FirstWeight(std::int64_t id, std::size_t k) {
  const double g = FirstGradient(id, k);
  return static_cast<float>(-0.01 * g / (std::sqrt(0.1 + g * g) + 1e-7));
}
void CheckWeight(float got, std::int64_t id, std::size_t k) {
  EG_CHECK_MSG(std::abs(got - FirstWeight(id, k)) <= 1e-8f,
               "a row has the wrong contents: id=" + std::to_string(id) +
                   " element=" + std::to_string(k) + " got=" + std::to_string(got) +
                   " want=" + std::to_string(FirstWeight(id, k)));
}

std::int64_t IdOfRank(std::uint64_t rank) {
  return static_cast<std::int64_t>(sharding::Mix64(rank * 0x9e3779b97f4a7c15ull + 12345));
}

Batch BatchOf(const std::vector<std::int64_t>& ids) {
  const std::uint64_t key = sharding::SlotKey(kTable);
  Batch batch{std::make_shared<tensor::AlignedBuffer>(ids.size() * sizeof(std::int64_t)),
              std::vector<std::uint32_t>(kSlots + 1)};
  for (const std::int64_t id : ids) ++batch.first[sharding::SlotOf(key, id, kSlots) + 1];
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) batch.first[slot + 1] += batch.first[slot];
  std::vector<std::uint32_t> next = batch.first;
  auto* const to = reinterpret_cast<std::int64_t*>(batch.ids->data());
  for (const std::int64_t id : ids) to[next[sharding::SlotOf(key, id, kSlots)]++] = id;
  return batch;
}

// ---------------------------------------------------------------- the client

class Wire {
 public:
  Wire(transport::Transport* transport, transport::ChannelOptions options,
       const std::vector<std::string>& servers, std::uint32_t dimension, std::uint64_t part)
      : client_(transport, std::move(options), "worker/0"),
        dimension_(dimension),
        gradient_(std::make_shared<tensor::AlignedBuffer>(kIds * dimension * sizeof(float))) {
    for (const std::string& address : servers) endpoints_.emplace_back().set_address(address);
    for (float& g : gradient_->floats()) g = 0.25f;
    // An earlier run against the same servers has left its job there. The job of this run must
    // differ from it.
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    next_update_ = static_cast<std::uint64_t>(now) << 26 | part << 25;
  }

  // Sends `batches` repeatedly for `seconds`, and returns rows/s. With `seconds` 0 it sends each
  // batch once, and a push then carries FirstGradients. `known` means that the rows still have the
  // values of these first pushes, so that pulled rows can be compared.
  double Measure(const std::vector<Batch>& batches, bool push, double seconds, bool known = false) {
    const auto begin = Clock::now();
    batches_ = &batches;
    push_ = push;
    known_ = known;
    once_ = seconds == 0;
    end_ = begin + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
    next_batch_ = 0;
    rows_ = 0;
    {
      MutexLock lock(&mu_);
      live_ = kInFlight;
    }
    for (int i = 0; i < kInFlight; ++i) SendNext();
    MutexLock lock(&mu_);
    while (live_ > 0) idle_.Wait(&mu_);
    return static_cast<double>(rows_.load()) / Seconds(begin);
  }

  std::uint64_t rows() const { return rows_; }  // the rows of the last Measure

 private:
  // Sends one batch to all servers. When the last of their answers arrives, it sends the next
  // batch, on the transport's thread.
  void SendNext() {
    const std::size_t number = next_batch_.fetch_add(1);
    if (once_ ? number >= batches_->size() : Clock::now() >= end_) {
      MutexLock lock(&mu_);
      if (--live_ == 0) idle_.NotifyAll();
      return;
    }
    const Batch& batch = (*batches_)[number % batches_->size()];
    const std::uint64_t update = push_ ? next_update_.fetch_add(1) : 0;
    // The number of answers that are still missing. The handlers of all answers share it.
    const auto missing = std::make_shared<std::atomic<std::size_t>>(endpoints_.size());
    const std::shared_ptr<tensor::AlignedBuffer> gradient =
        push_ && once_ ? FirstGradients(batch) : gradient_;  // shared with the frame
    for (std::size_t s = 0; s < endpoints_.size(); ++s) {
      auto packed = wire::Packed<v1::RequestHeader>::OfSections(kSlots / endpoints_.size());
      v1::RequestHeader& header = *packed;
      header.set_job_uid(dimension_);
      std::vector<tensor::SharedBytes> payloads, ids;
      std::uint64_t rows = 0;
      for (std::uint32_t slot = static_cast<std::uint32_t>(s); slot < kSlots;
           slot += static_cast<std::uint32_t>(endpoints_.size())) {
        const std::size_t first = batch.first[slot], count = batch.first[slot + 1] - first;
        if (count == 0) continue;
        rows += count;
        ids.push_back(
            {batch.ids,
             {batch.ids->data() + first * sizeof(std::int64_t), count * sizeof(std::int64_t)}});
        if (push_) {
          v1::PushSection& section = *header.add_pushes();
          section.set_closure(update / kUpdatesPerClosureMax);
          section.set_update(static_cast<std::uint32_t>(update % kUpdatesPerClosureMax));
          *section.mutable_attempt() = client::ToProto(Attempt{1, 1});
          section.set_kind(v1::GRADIENT);
          section.set_dtype(v1::DTYPE_FLOAT32);
          section.set_rows(count);
          Fill(slot, count, &section);
          payloads.push_back({gradient,
                              {gradient->data() + first * dimension_ * sizeof(float),
                               count * dimension_ * sizeof(float)}});
        } else {
          Fill(slot, count, header.add_pulls());
        }
      }
      const std::uint64_t answer_bytes =
          push_ ? 0 : (rows * dimension_ * sizeof(float) + kSlots * 64);
      client_.Send(
          endpoints_[s], std::move(header), std::move(payloads), answer_bytes,
          std::chrono::seconds(30),
          [this, &batch, s, number, rows,
           missing](absl::StatusOr<client::ParameterClient::Answer> answer) {
            EG_CHECK_MSG(answer.ok(), answer.status().ToString());
            std::uint64_t bytes = 0;
            for (const auto& result : answer->header->pushes())
              EG_CHECK_MSG(result.answer() == v1::APPLIED, result.message());
            for (const auto& result : answer->header->pulls())
              EG_CHECK_MSG(result.answer() == v1::VALUES, result.message());
            for (const auto& payload : answer->payloads) bytes += payload.size();
            EG_CHECK(push_ || bytes == rows * dimension_ * sizeof(float));
            if (!push_ && known_) Compare(batch, s, answer->payloads, number);
            rows_ += rows;
            if (missing->fetch_sub(1) == 1) SendNext();
          },
          nullptr, std::move(ids));
    }
  }
  std::shared_ptr<tensor::AlignedBuffer> FirstGradients(const Batch& batch) const {
    auto gradient = std::make_shared<tensor::AlignedBuffer>(
        batch.ids->size() / sizeof(std::int64_t) * dimension_ * sizeof(float));
    const std::span<float> to = gradient->floats();
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = FirstGradient(batch.data()[i / dimension_], i % dimension_);
    return gradient;
  }
  // Compares the rows of `batch` that server `s` has sent. If the Measure has `seconds` 0, all
  // their numbers are compared. Otherwise one number is compared, at a place that depends on
  // `number`.
  void Compare(const Batch& batch, std::size_t s,
               const std::vector<std::span<const std::byte>>& payloads, std::size_t number) const {
    std::size_t section = 0;
    for (std::size_t slot = s; slot < kSlots; slot += endpoints_.size()) {
      const std::size_t first = batch.first[slot], count = batch.first[slot + 1] - first;
      if (count == 0) continue;
      const auto* const rows = reinterpret_cast<const float*>(payloads[section++].data());
      if (once_) {
        for (std::size_t i = 0; i < count * dimension_; ++i)
          CheckWeight(rows[i], batch.data()[first + i / dimension_], i % dimension_);
      } else if (slot / endpoints_.size() == number % (kSlots / endpoints_.size())) {
        const std::size_t i = number * 7919 % (count * dimension_);
        CheckWeight(rows[i], batch.data()[first + i / dimension_], i % dimension_);
      }
    }
  }
  template <class Section>
  static void Fill(std::uint32_t slot, std::size_t count, Section* section) {
    section->set_shard(slot);
    *section->mutable_epoch() = client::ToProto(kEpoch);
    section->add_tables(0);
    section->add_table_rows(static_cast<std::uint32_t>(count));
  }

  client::ParameterClient client_;
  std::vector<v1::Endpoint> endpoints_;
  const std::uint32_t dimension_;
  // Shared with the frames that are being sent.
  const std::shared_ptr<tensor::AlignedBuffer> gradient_;
  std::atomic<std::uint64_t> next_update_{0}, next_batch_{0}, rows_{0};
  const std::vector<Batch>* batches_ = nullptr;
  bool push_ = false, once_ = false, known_ = false;
  Clock::time_point end_;
  Mutex mu_;
  CondVar idle_;
  int live_ ABSL_GUARDED_BY(mu_) = 0;
};

// ---------------------------------------------------------------- figures

template <std::size_t kDimension>
void Measure(const std::string& only, std::uint64_t rows, const std::vector<std::string>& servers,
             double round_seconds) {
  const std::string name = " of dim " + std::to_string(kDimension) + ", " +
                           std::to_string(rows / 1000000) + " M rows, depth 4";
  struct Figure {
    std::string name;
    bool push = false, lane = false;
    // Rates are rows/s, and processor times are seconds per row.
    std::vector<double> ours, theirs, ratios, client_cpu, server_cpu, their_cpu;
  };
  std::vector<Figure> figures;
  for (const bool push : {false, true}) {
    for (const bool lane : {false, true}) {
      if (lane && !servers.empty()) continue;
      Figure f{
          (push ? "rows push (Adagrad)" : "rows pull") + name + (lane ? ", same host" : ", TCP"),
          push,
          lane,
          {},
          {},
          {},
          {},
          {},
          {}};
      if (f.name.find(only) != std::string::npos) figures.push_back(std::move(f));
    }
  }
  if (figures.empty()) return;

  std::unique_ptr<Child> child;
  if (servers.empty()) child = std::make_unique<Child>();
  const double raw = child != nullptr ? child->Raw() : 0;
  const auto transport = transport::MakeGrpcTransport(nullptr);
  const std::vector<std::string> addresses =
      child != nullptr ? std::vector<std::string>{child->address()} : servers;
  transport::ChannelOptions by_lane;
  by_lane.lane_ring_bytes = kLaneRingBytes;
  Wire tcp(transport.get(), {}, addresses, kDimension, 0),
      lane(transport.get(), by_lane, addresses, kDimension, 1);
  bench::PlainTable<kDimension> plain(rows);
  const std::vector<float> gradient(kIds * kDimension, 0.25f);
  std::vector<float> out(kIds * kDimension);

  {
    std::vector<Batch> all;
    for (std::uint64_t rank = 0; rank < rows;) {
      std::vector<std::int64_t> ids;
      while (rank < rows && ids.size() < kIds) ids.push_back(IdOfRank(rank++));
      plain.Update(ids.data(), ids.size(), gradient.data());
      all.push_back(BatchOf(ids));
    }
    tcp.Measure(all, /*push=*/true, 0);
  }
  std::mt19937_64 random(1);
  std::vector<Batch> batches;
  for (std::size_t b = 0; b < kBatches; ++b) {
    std::vector<std::int64_t> ids;
    // The table is divided into 13,312 equal parts, and one id is drawn from each part. All ids are
    // then different and spread over the table.
    const std::uint64_t first = random() % rows, stride = rows / kIds;
    for (std::uint64_t i = 0; i < kIds; ++i)
      ids.push_back(IdOfRank((first + i * stride + random() % stride) % rows));
    batches.push_back(BatchOf(ids));
  }

  if (child != nullptr) {
    for (const Figure& f : figures) {
      if (!f.push) (f.lane ? lane : tcp).Measure(batches, /*push=*/false, 0, /*known=*/true);
    }
  }
  const bool pushes =
      std::any_of(figures.begin(), figures.end(), [](const Figure& f) { return f.push; });

  const auto alone = [&](bool push) {
    const auto begin = Clock::now();
    std::uint64_t done = 0;
    for (; Seconds(begin) < round_seconds / 2; ++done) {
      const std::int64_t* const ids = batches[done % kBatches].data();
      push ? plain.Update(ids, kIds, gradient.data()) : plain.Read(ids, kIds, out.data());
    }
    return static_cast<double>(done * kIds) / Seconds(begin);
  };
  std::fprintf(stderr, "tables of %zu are filled\n", static_cast<std::size_t>(rows));
  for (int round = 0; round < kRounds + 1; ++round) {
    for (Figure& f : figures) {
      Wire& wire = f.lane ? lane : tcp;
      const double server_cpu = child != nullptr ? child->cpu() : 0, client_cpu = MyCpu();
      const double a = wire.Measure(batches, f.push, round_seconds, child != nullptr && !pushes);
      const double server_used = child != nullptr ? child->cpu() - server_cpu : 0,
                   client_used = MyCpu() - client_cpu;
      const double before = MyCpu(), b = alone(f.push), used = MyCpu() - before;
      if (round == 0) continue;  // warm-up
      f.client_cpu.push_back(client_used / static_cast<double>(wire.rows()));
      f.server_cpu.push_back(server_used / static_cast<double>(wire.rows()));
      f.their_cpu.push_back(used / (b * round_seconds / 2));
      f.ours.push_back(a);
      f.theirs.push_back(b);
      f.ratios.push_back(a / b);
    }
  }
  for (const Figure& f : figures) {
    const double rate = Median(f.ours);
    const char* const rival =
        f.push ? "one thread, find + Adagrad, no network" : "one thread, find + gather, no network";
    bench::Print(f.name, rate * 1e-6, "M rows/s", rival, Median(f.theirs) * 1e-6, Median(f.ratios),
                 f.push ? 0.35 : 0.45);
    if (child != nullptr) {
      const double cpu = (Median(f.client_cpu) + Median(f.server_cpu)) * 1e9,
                   its = Median(f.their_cpu) * 1e9;
      std::fprintf(stderr, "%s: CPU of a row: client %.1f ns, server %.1f ns\n", f.name.c_str(),
                   Median(f.client_cpu) * 1e9, Median(f.server_cpu) * 1e9);
      bench::Print(f.name + ": CPU of both sides", cpu, "ns/row", rival, its, cpu / its,
                   bench::kNoReach);
    }
    if (kDimension != 16) continue;
    // If this machine's loopback is slower than that of the machine on which ps-lite was measured,
    // the figure of ps-lite cannot be compared with ours.
    const double peer = f.push ? 8.7 : 9, reach = f.push ? 10 : 12;
    bench::Print(f.name + " against ps-lite", rate * 1e-6, "M rows/s", "ps-lite (published figure)",
                 peer, rate * 1e-6 / peer, raw >= 3.5 ? reach / peer : bench::kNoReach);
  }
}

int Main(int argc, char** argv) {
  transport::TuneAllocator();
  signal(SIGPIPE, SIG_IGN);
  std::string only;
  std::vector<std::string> servers;
  double round_seconds = 0.5;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--servers" && i + 1 < argc) {
      servers = bench::SplitServers(argv[++i]);
    } else if (argument == "--seconds" && i + 1 < argc && std::atof(argv[i + 1]) > 0) {
      round_seconds = std::atof(argv[++i]);
    } else if (argument.rfind("--", 0) == 0) {
      std::fprintf(stderr, "usage: rows_bench [--servers HOST:PORT,...] [--seconds S] [PART]\n");
      return 2;
    } else {
      only = argument;
    }
  }
  if (only.empty() && servers.empty()) {
    // Each part runs in a separate process. The part forks its server, which must happen before
    // gRPC has threads.
    for (const char* part : {"dim 16, 2 M", "dim 64, 2 M", "dim 16, 8 M", "dim 64, 8 M"}) {
      const std::string seconds = std::to_string(round_seconds);
      const char* const arguments[] = {argv[0], "--seconds", seconds.c_str(), part, nullptr};
      pid_t pid = 0;
      int status = 0;
      if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char* const*>(arguments),
                      environ) != 0 ||
          waitpid(pid, &status, 0) != pid || status != 0) {
        std::fprintf(stderr, "rows_bench: the part `%s` failed: status=%d\n", part, status);
        return 1;
      }
    }
    return 0;
  }
  for (const std::uint64_t rows : {2000000ull, 8000000ull}) {
    Measure<16>(only, rows, servers, round_seconds);
    Measure<64>(only, rows, servers, round_seconds);
  }
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc, argv); }
