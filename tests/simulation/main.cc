// Walks many seeds, and reports the first walk that breaks a rule.
//
//   evergrad-simulation --seeds 0:10000 [--threads 2]     exit code 0: no walk broke a rule; else 1
//   evergrad-simulation --seed 17 [--trace]               one walk
//   evergrad-mutants --mutant no_todo --seeds 0:100       exit code 0: a walk broke a rule; else 1
//
// evergrad-simulation is linked with the same objects as the daemons. evergrad-mutants is linked
// with the objects of tests/mutants, in which a mutant can break a rule.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "tests/mutants/mutant.h"
#include "tests/simulation/cluster.h"

namespace {

using namespace evergrad;
using simulation::WalkOptions;

constexpr bool kWithMutants = EVERGRAD_WITH_MUTANTS;

struct Args {
  std::uint64_t begin = 0, end = 1000;
  unsigned threads = 1;
  std::string mutant_name = "none";
  mutants::Mutant mutant = mutants::Mutant::kNone;
  bool trace = false;
};

int Usage() {
  std::fprintf(stderr, "usage: %s (--seeds BEGIN:END [--threads N] | --seed N [--trace])%s\n",
               kWithMutants ? "evergrad-mutants" : "evergrad-simulation",
               kWithMutants ? " [--mutant NAME]\nmutants:" : "");
  if (kWithMutants) {
    for (const mutants::MutantInfo& info : mutants::AllMutants())
      std::fprintf(stderr, "  %-26s line %-7s %s\n", info.name, info.line, info.error);
  }
  return 2;
}

std::optional<std::uint64_t> Number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 18)
    return std::nullopt;
  return std::strtoull(text.c_str(), nullptr, 10);
}

std::optional<Args> Parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--trace") {
      args.trace = true;
      continue;
    }
    if (++i == argc) return std::nullopt;
    const std::string value = argv[i];
    if (flag == "--seeds") {
      const std::size_t colon = value.find(':');
      if (colon == std::string::npos) return std::nullopt;
      const auto begin = Number(value.substr(0, colon)), end = Number(value.substr(colon + 1));
      if (!begin || !end || *begin >= *end) return std::nullopt;
      args.begin = *begin;
      args.end = *end;
    } else if (flag == "--seed") {
      const auto seed = Number(value);
      if (!seed) return std::nullopt;
      args.begin = *seed;
      args.end = *seed + 1;
    } else if (flag == "--threads") {
      const auto threads = Number(value);
      if (!threads || *threads < 1 || *threads > 64) return std::nullopt;
      args.threads = static_cast<unsigned>(*threads);
    } else if (flag == "--mutant" && kWithMutants) {
      const mutants::MutantInfo* const found = mutants::FindMutant(value);
      if (found == nullptr) return std::nullopt;
      args.mutant_name = found->name;
      args.mutant = found->mutant;
    } else {
      return std::nullopt;
    }
  }
  if (args.trace && args.end - args.begin != 1) return std::nullopt;
  return args;
}

struct Totals {
  Mutex mutex;
  std::map<std::string, std::uint64_t> counts ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::uint64_t> largest ABSL_GUARDED_BY(mutex);
  // number of violations of each kind
  std::map<std::string, std::uint64_t> violations ABSL_GUARDED_BY(mutex);
  std::uint64_t events ABSL_GUARDED_BY(mutex) = 0, failed ABSL_GUARDED_BY(mutex) = 0,
                       first ABSL_GUARDED_BY(mutex) = ~0ull;
  std::string first_violation ABSL_GUARDED_BY(mutex);
};

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = Parse(argc, argv);
  if (!parsed) return Usage();
  const Args args = *parsed;
  Totals totals;
  std::atomic<std::uint64_t> next{args.begin};
  const auto walk_all = [&] {
    const mutants::Activated active(args.mutant);
    std::map<std::string, std::uint64_t> counts, largest;
    std::uint64_t events = 0;
    for (std::uint64_t seed; (seed = next.fetch_add(1)) < args.end;) {
      WalkOptions options = WalkOptions::FromSeed(seed);
      options.trace = args.trace;
      const simulation::WalkResult result = simulation::Walk(options);
      for (const auto& [what, n] : result.counts) counts[what] += n;
      for (const auto& [what, n] : result.largest) largest[what] = std::max(largest[what], n);
      events += static_cast<std::uint64_t>(result.events);
      if (result.violation.empty()) continue;
      MutexLock lock(&totals.mutex);
      ++totals.failed;
      ++totals.violations[result.violation.substr(0, result.violation.find(':'))];
      if (seed < totals.first) {
        totals.first = seed;
        totals.first_violation = result.violation;
      }
    }
    MutexLock lock(&totals.mutex);
    for (const auto& [what, n] : counts) totals.counts[what] += n;
    for (const auto& [what, n] : largest) totals.largest[what] = std::max(totals.largest[what], n);
    totals.events += events;
  };
  {
    std::vector<runtime::Thread> threads;
    for (unsigned k = 1; k < args.threads; ++k) threads.emplace_back("walk", walk_all);
    walk_all();
  }
  MutexLock lock(&totals.mutex);
  std::printf("mutant=%s seeds=%llu:%llu events=%llu violations=%llu\n", args.mutant_name.c_str(),
              static_cast<unsigned long long>(args.begin),
              static_cast<unsigned long long>(args.end),
              static_cast<unsigned long long>(totals.events),
              static_cast<unsigned long long>(totals.failed));
  for (const auto& [what, n] : totals.counts)
    std::printf("  %-26s %llu\n", what.c_str(), static_cast<unsigned long long>(n));
  for (const auto& [what, n] : totals.largest)
    std::printf("  most %-21s %llu\n", what.c_str(), static_cast<unsigned long long>(n));
  for (const auto& [what, n] : totals.violations)
    std::printf("  violation %-40s %llu\n", what.c_str(), static_cast<unsigned long long>(n));
  if (totals.failed > 0) {
    std::printf("first violation: seed=%llu %s\nreplay: %s%s --seed %llu --trace\n",
                static_cast<unsigned long long>(totals.first), totals.first_violation.c_str(),
                kWithMutants ? "evergrad-mutants --mutant " : "evergrad-simulation",
                kWithMutants ? args.mutant_name.c_str() : "",
                static_cast<unsigned long long>(totals.first));
  }
  const bool want_violation = args.mutant != mutants::Mutant::kNone;
  return want_violation == (totals.failed > 0) ? 0 : 1;
}
