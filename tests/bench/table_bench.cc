// Measures embedding tables alone, on one core: find-or-insert with Adagrad, and find with gather,
// over ten million rows of dimension 16. They are compared with the plain loops of plain_table.h. A
// batch has 13,312 different ids, as a worker with 26 features and 512 examples sends them. The ids
// are drawn in two ways: by Zipf's law (exponent 1.05), and evenly. After that, three more things
// are measured: how the growth of a table slows single reads, the memory of a row, and the memory
// bandwidth of the update rules compared with STREAM's triad. Each round measures both sides, and
// the figures are medians. Prints one JSON object a line.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/base/check.h"
#include "common/sharding/slots.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/storage/embedding_table.h"
#include "tests/bench/figures.h"
#include "tests/bench/plain_table.h"

namespace evergrad {
namespace {

using bench::kNoReach, bench::Median, bench::Print;

using ps_server::storage::EmbeddingTable;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kDimension = 16, kBatch = 13312, kBatches = 48, kRounds = 7;

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Measures the CPU time of this thread only. The benchmark describes one core, and other processes
// that use the core must not change its figures.
class CpuTimer {
 public:
  double Seconds() const { return Now() - begin_; }

 private:
  static double Now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  const double begin_ = Now();
};

// ---------------------------------------------------------------- ids

std::int64_t IdOfRank(std::uint64_t rank) {
  return static_cast<std::int64_t>(sharding::Mix64(rank * 0x9e3779b97f4a7c15ull + 12345));
}

// Draws ranks by Zipf's law, by rejection-inversion (Hormann and Derflinger, 1996).
class Zipf {
 public:
  Zipf(double exponent, std::uint64_t n)
      : s_(exponent), n_(static_cast<double>(n)), h_least_(H(1.5) - 1), h_most_(H(n_ + 0.5)) {}
  std::uint64_t operator()(std::mt19937_64& random) const {
    for (;;) {
      const double u =
          h_most_ + std::uniform_real_distribution<double>()(random) * (h_least_ - h_most_);
      const double x = std::pow((1 - s_) * u + 1, 1 / (1 - s_)),
                   k = std::clamp(std::floor(x + 0.5), 1.0, n_);
      if (u >= H(k + 0.5) - std::pow(k, -s_)) return static_cast<std::uint64_t>(k) - 1;
    }
  }

 private:
  double H(double x) const { return (std::pow(x, 1 - s_) - 1) / (1 - s_); }
  const double s_, n_, h_least_, h_most_;
};

template <class Draw>
std::vector<std::int64_t> Batches(Draw draw) {
  std::vector<std::int64_t> all;
  for (std::size_t b = 0; b < kBatches; ++b) {
    std::unordered_set<std::uint64_t> seen;
    while (seen.size() < kBatch) {
      const std::uint64_t rank = draw();
      if (seen.insert(rank).second) all.push_back(IdOfRank(rank));
    }
  }
  return all;
}

ps_server::storage::TableSettings Settings() {
  ps_server::storage::TableSettings s;
  s.name = "table";
  s.dimension = kDimension;
  s.optimizer = {.type = "adagrad", .learning_rate = 0.01};
  return s;
}

void Push(EmbeddingTable* table, const std::int64_t* ids, std::size_t n, const float* gradient,
          std::uint64_t step = 0) {
  EG_CHECK(table->Prepare({ids, n}, step).ok());
  while (table->applying()) table->Apply(gradient, ~0ull);
}

// ---------------------------------------------------------------- figures

// Our table and the plain loop. Measures the seconds that one thread takes for the same work with
// each of them.
class Rivals {
 public:
  enum Work { kPush, kRead };
  struct Times {
    double ours = 0, theirs = 0;
  };
  explicit Rivals(std::uint64_t rows) : plain_(rows) {
    for (float& g : gradient_) g = static_cast<float>(random() % 1000) * 0.001f - 0.5f;
  }
  // Makes all rows. The ids are in the order of their ranks in Zipf's law, the most frequent first.
  Times Fill(std::uint64_t rows) {
    std::vector<std::int64_t> ids(kBatch);
    Times times;
    for (std::uint64_t rank = 0; rank < rows;) {
      const std::size_t n = std::min<std::uint64_t>(kBatch, rows - rank);
      for (std::size_t i = 0; i < n; ++i) ids[i] = IdOfRank(rank++);
      times.ours += Ours(kPush, ids.data(), n);
      times.theirs += Theirs(kPush, ids.data(), n);
    }
    return times;
  }
  // Does the work with our table and with the plain loop. For every second batch our table comes
  // first, and for the others the plain loop.
  Times Run(Work work, const std::vector<std::int64_t>& batches) {
    Times times;
    for (std::size_t b = 0; b < kBatches; ++b) {
      const std::int64_t* const batch = batches.data() + b * kBatch;
      if (b % 2 == 0) times.ours += Ours(work, batch, kBatch);
      times.theirs += Theirs(work, batch, kBatch);
      if (b % 2 != 0) times.ours += Ours(work, batch, kBatch);
    }
    return times;
  }
  auto stats() const { return table_->stats(); }

  std::mt19937_64 random{1};

 private:
  double Ours(Work work, const std::int64_t* ids, std::size_t n) {
    const CpuTimer timer;
    if (work == kPush) {
      Push(table_.get(), ids, n, gradient_.data());
    } else {
      table_->Read({ids, n}, out_.data());
    }
    return timer.Seconds();
  }
  double Theirs(Work work, const std::int64_t* ids, std::size_t n) {
    const CpuTimer timer;
    if (work == kPush) {
      plain_.Update(ids, n, gradient_.data());
    } else {
      plain_.Read(ids, n, out_.data());
    }
    return timer.Seconds();
  }

  const std::unique_ptr<EmbeddingTable> table_ =
      EmbeddingTable::Create(Settings(), nullptr).value();
  bench::PlainTable<kDimension> plain_;
  std::vector<float> gradient_ = std::vector<float>(kBatch * kDimension), out_ = gradient_;
};

void PrintRates(const std::string& name, const std::vector<double>& ours,
                const std::vector<double>& theirs) {
  const auto rate = [](const std::vector<double>& seconds) {
    return static_cast<double>(kBatches * kBatch) / Median(seconds) * 1e-6;
  };
  Print(name, rate(ours), "M rows/s", "plain prefetched open-addressing loop", rate(theirs),
        rate(ours) / rate(theirs), 0.8);
}

void MeasureTable(std::uint64_t rows) {
  Rivals rivals(rows);
  const std::string size = std::to_string(rows / 1000000) + " M rows of 16";
  const auto count = static_cast<double>(rows);
  const Rivals::Times made = rivals.Fill(rows);
  Print("table: " + size + " made (zeros, Adagrad), growing from none", count / made.ours * 1e-6,
        "M rows/s", "plain loop, made in its final size", count / made.theirs * 1e-6,
        made.theirs / made.ours, kNoReach);
  for (const bool zipf : {true, false}) {
    const Zipf by_rank(1.05, rows);
    const std::vector<std::int64_t> batches =
        Batches([&] { return zipf ? by_rank(rivals.random) : rivals.random() % rows; });
    std::vector<double> ours[2], theirs[2];
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (const Rivals::Work work : {Rivals::kPush, Rivals::kRead}) {
        const Rivals::Times times = rivals.Run(work, batches);
        ours[work].push_back(times.ours), theirs[work].push_back(times.theirs);
      }
    }
    const std::string law = zipf ? ", Zipf 1.05" : ", even";
    PrintRates("table: find or insert + Adagrad, " + size + law, ours[Rivals::kPush],
               theirs[Rivals::kPush]);
    PrintRates("table: find + gather, " + size + law, ours[Rivals::kRead], theirs[Rivals::kRead]);
  }
  const auto stats = rivals.stats();
  const double per_row = static_cast<double>(stats.index_bytes) / count;
  Print("table: index and key of a row, load " + std::to_string(stats.index_load()).substr(0, 4),
        per_row, "bytes", "allowed at 80 % load", 20, 20 / (per_row * stats.index_load() / 0.8),
        0.98);
}

double Percentile(std::vector<double>* v, double p) {
  const auto at = static_cast<std::size_t>(p * static_cast<double>(v->size() - 1));
  std::nth_element(v->begin(), v->begin() + static_cast<std::ptrdiff_t>(at), v->end());
  return (*v)[at];
}

// Measures single reads between pushes of 20 ids each, in two cases. In one case the ids are new,
// so that the table grows from one million rows to three. In the other case the ids are known.
// There are several rounds on one core, each with a new table, so that one disturbed round does not
// decide.
void MeasureGrowth() {
  constexpr std::uint64_t kBegin = 1000000, kReads = 100000, kPush = 20;
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(static_cast<std::size_t>(std::max(0, sched_getcpu())), &here);
  sched_setaffinity(0, sizeof here, &here);
  std::vector<float> gradient(kBatch * kDimension, 0.5f), out(kDimension);
  std::vector<std::int64_t> ids(kBatch);
  struct Figure {
    std::vector<double> with, without, ratio;
    void Add(double a, double b) {
      with.push_back(a), without.push_back(b), ratio.push_back(b / a);
    }
  } middle, tail, push_tail;
  for (std::size_t round = 0; round < kRounds; ++round) {
    auto table = EmbeddingTable::Create(Settings(), nullptr).value();
    std::uint64_t made = 0;
    while (made < kBegin) {
      const std::size_t n = std::min<std::uint64_t>(kBatch, kBegin - made);
      for (std::size_t i = 0; i < n; ++i) ids[i] = IdOfRank(made++);
      Push(table.get(), ids.data(), n, gradient.data());
    }
    std::vector<double> reads[2], pushes[2];
    for (auto* figures : {reads, pushes}) figures[0].reserve(kReads), figures[1].reserve(kReads);
    std::mt19937_64 random(2 + round);
    for (const int growing : {0, 1}) {
      for (std::uint64_t i = 0; i < kReads; ++i) {
        for (std::uint64_t k = 0; k < kPush; ++k)
          ids[k] = IdOfRank(growing != 0 ? made++ : random() % made);
        auto begin = Clock::now();
        Push(table.get(), ids.data(), kPush, gradient.data());
        pushes[growing].push_back(Seconds(begin) * 1e6);
        const std::int64_t id = IdOfRank(random() % made);
        begin = Clock::now();
        table->Read({&id, 1}, out.data());
        reads[growing].push_back(Seconds(begin) * 1e6);
      }
    }
    middle.Add(Percentile(&reads[1], 0.5), Percentile(&reads[0], 0.5));
    tail.Add(Percentile(&reads[1], 0.999), Percentile(&reads[0], 0.999));
    push_tail.Add(Percentile(&pushes[1], 0.999), Percentile(&pushes[0], 0.999));
  }
  const auto print = [](const std::string& name, const Figure& f, const char* reference,
                        double reach) {
    Print(name, Median(f.with), "us", reference, Median(f.without), Median(f.ratio), reach);
  };
  print("table: a single read while it grows, median", middle, "the same without growth", kNoReach);
  print("table: a single read while it grows, p99.9", tail, "the same without growth", 0.5);
  print("table: a push of 20 new ids, p99.9", push_tail, "of 20 known ids", kNoReach);
}

// Measures the longest pieces of work that an executor does in one turn: a push that evicts rows,
// and a slice of a cut.
void MeasureTurns() {
  ps_server::storage::TableSettings s = Settings();
  constexpr std::uint64_t kRows = 80000;
  s.evict_lru = true;
  s.bytes_max = EmbeddingTable::Create(s, nullptr).value()->bytes_of(kRows, 0);
  auto table = EmbeddingTable::Create(s, nullptr).value();
  std::vector<float> gradient(kBatch * kDimension, 0.5f);
  std::vector<std::int64_t> ids(100);
  std::uint64_t made = 0, step = 0;
  std::vector<double> evicting, plain;
  for (int push = 0; push < 4000; ++push) {
    for (std::int64_t& id : ids) id = IdOfRank(made++);
    const std::uint64_t before = table->stats().evicted_lru;
    const auto begin = Clock::now();
    Push(table.get(), ids.data(), ids.size(), gradient.data(), ++step);
    (table->stats().evicted_lru > before ? evicting : plain).push_back(Seconds(begin) * 1e6);
  }
  const double turn = Median(evicting), usual = Median(plain);
  Print("table: a push of 100 new ids that drops the oldest 1/64 of 80,000 rows", turn, "us",
        "the same when there is room", usual, usual / turn, kNoReach);
  std::vector<double> slices;
  table->BeginCut(~0ull);
  ps_server::storage::TableSlice slice;
  for (bool more = true; more;) {
    const auto begin = Clock::now();
    more = table->NextSlice(1u << 20, &slice);
    slices.push_back(Seconds(begin) * 1e6);
  }
  table->EndCut();
  Print("table: a slice of 1 MiB of a cut, 80,000 rows", Median(slices), "us", "", 0, 0, kNoReach);
}

void MeasureKernels(std::size_t bytes) {
  const std::size_t floats = bytes / sizeof(float);
  const bench::Pages<float> pages(floats + 65536);
  float* const memory = pages.get();
  for (std::size_t i = 0; i < floats + 65536; ++i) memory[i] = 0.25f;
  const auto triad = [&] {
    const std::size_t n = floats / 3;
    float *a = memory, *b = a + n, *c = b + n;
    const CpuTimer timer;
    for (std::size_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
    __asm__ volatile("" : : "r"(a) : "memory");
    return static_cast<double>(n) * 12 / timer.Seconds() * 1e-9;
  };
  struct Rule {
    const char* name;
    double momentum;
  };
  for (const Rule& rule : {Rule{"sgd", 0}, Rule{"sgd", 0.9}, Rule{"adagrad", 0}, Rule{"rmsprop", 0},
                           Rule{"adam", 0}, Rule{"adamw", 0}, Rule{"ftrl", 0}}) {
    optimizers::Settings settings;
    settings.type = rule.name;
    settings.learning_rate = 1e-6;
    settings.momentum = rule.momentum;
    const auto optimizer = ps_server::optimizer::Optimizer::Create(settings).value();
    const auto states = static_cast<std::size_t>(optimizer.states()),
               n = floats / (2 + states) / 65536 * 65536,
               apart = n + 1040;  // the arrays must not all fall on the same cache sets
    const auto update = [&] {
      const CpuTimer timer;
      const auto step = optimizer.Begin(1);
      for (std::size_t at = 0; at < n; at += 65536) {  // chunk by chunk, as a shard does it
        ps_server::optimizer::ElementSpan span{
            65536, memory + at, memory + apart + at, memory + apart + at, {}, {}};
        for (std::size_t k = 0; k < states; ++k)
          span.state_from[k] = span.state_to[k] = memory + (2 + k) * apart + at;
        optimizer.Apply(step, span);
      }
      return static_cast<double>(n) * static_cast<double>(4 * (3 + 2 * states)) / timer.Seconds() *
             1e-9;
    };
    std::vector<double> ours, theirs;
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < floats + 65536; ++i) memory[i] = 0.25f;
      ours.push_back(update());
      theirs.push_back(triad());
    }
    Print(std::string("optimizer: ") + rule.name + (rule.momentum != 0 ? " with momentum" : "") +
              " over " + std::to_string(bytes >> 20) + " MB",
          Median(ours), "GB/s", "STREAM triad, bytes moved", Median(theirs),
          Median(ours) / Median(theirs), 0.8);
  }
}

}  // namespace
}  // namespace evergrad

// Usage: table_bench [table] [growth] [turns] [kernels]; without arguments all of them run.
int main(int argc, char** argv) {
  const auto wanted = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [name](const char* arg) {
             return std::strcmp(arg, name) == 0;
           });
  };
  if (wanted("table")) evergrad::MeasureTable(10000000);
  if (wanted("growth")) evergrad::MeasureGrowth();
  if (wanted("turns")) evergrad::MeasureTurns();
  if (wanted("kernels")) {
    evergrad::MeasureKernels(64u << 20);
    evergrad::MeasureKernels(1u << 30);
  }
  return 0;
}
