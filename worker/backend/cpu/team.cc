#include "worker/backend/cpu/team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <vector>

// libgomp's stable C interface. The function is declared here because clang has no omp.h for
// libgomp; `#pragma omp parallel` compiles to this call.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_thread_num();
int omp_get_num_threads();
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
}

namespace evergrad::worker::cpu {
namespace {

struct Loop {
  std::int64_t n;
  absl::FunctionRef<void(std::int64_t, std::int64_t)> body;
};

// Tells ThreadSanitizer what libgomp's barriers guarantee: every part sees the caller's earlier
// writes, and the caller sees the writes of the parts. libgomp synchronizes by futexes that
// ThreadSanitizer does not see. The cost of two atomic operations per part is negligible.
std::atomic<std::uint32_t> order{0};

void RunPart(void* data) {
  order.load(std::memory_order_acquire);
  const Loop& loop = *static_cast<const Loop*>(data);
  const std::int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
  const std::int64_t begin = loop.n * part / parts, end = loop.n * (part + 1) / parts;
  if (begin < end) loop.body(begin, end);
  order.fetch_add(1, std::memory_order_release);
}

void BindPart(void* data) {
  order.load(std::memory_order_acquire);
  const auto& processors = *static_cast<const std::vector<int>*>(data);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(processors[static_cast<std::size_t>(omp_get_thread_num())]),
          &one);
  ::sched_setaffinity(0, sizeof one, &one);  // after an error the thread is only slower
  order.fetch_add(1, std::memory_order_release);
}

}  // namespace

bool BindTeam(int threads) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (threads < 2 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0 ||
      CPU_COUNT(&allowed) != threads)
    return false;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<std::size_t>(i), &allowed)) processors.push_back(i);
  }
  SetTeamSize(threads);
  order.fetch_add(1, std::memory_order_release);
  GOMP_parallel(&BindPart, &processors, static_cast<unsigned>(threads), 0);
  order.load(std::memory_order_acquire);
  return true;
}

void SetTeamSize(int threads) { omp_set_num_threads(threads); }

void ParallelFor(int threads, std::int64_t n, std::int64_t grain,
                 absl::FunctionRef<void(std::int64_t, std::int64_t)> body) {
  const std::int64_t parts = std::min<std::int64_t>(threads, n / std::max<std::int64_t>(grain, 1));
  if (parts <= 1) {
    if (n > 0) body(0, n);
    return;
  }
  Loop loop{n, body};
  order.fetch_add(1, std::memory_order_release);
  GOMP_parallel(&RunPart, &loop, static_cast<unsigned>(parts), 0);
  order.load(std::memory_order_acquire);
}

}  // namespace evergrad::worker::cpu
