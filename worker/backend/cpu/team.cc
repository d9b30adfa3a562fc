#include "worker/backend/cpu/team.h"

#include <algorithm>

// libgomp's stable C interface, declared here: clang has no omp.h for it, and what `#pragma omp parallel` compiles to is this call.
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

void RunPart(void* data) {
  const Loop& loop = *static_cast<const Loop*>(data);
  const std::int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
  const std::int64_t begin = loop.n * part / parts, end = loop.n * (part + 1) / parts;
  if (begin < end) loop.body(begin, end);
}

}  // namespace

void SetTeamSize(int threads) { omp_set_num_threads(threads); }

void ParallelFor(int threads, std::int64_t n, std::int64_t grain, absl::FunctionRef<void(std::int64_t, std::int64_t)> body) {
  const std::int64_t parts = std::min<std::int64_t>(threads, n / std::max<std::int64_t>(grain, 1));
  if (parts <= 1) {
    if (n > 0) body(0, n);
    return;
  }
  Loop loop{n, body};
  GOMP_parallel(&RunPart, &loop, static_cast<unsigned>(parts), 0);
}

}  // namespace evergrad::worker::cpu
