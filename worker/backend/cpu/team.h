// Parallel loops on the threads that oneDNN uses (libgomp's team of the calling thread).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace evergrad::worker::cpu {

// Sets the team size of the calling thread, for oneDNN and for ParallelFor. Since the size belongs
// to a thread, every entry to the backend makes this call, which costs one store.
void SetTeamSize(int threads);

// Binds each thread of the calling thread's team of `threads` to one CPU. Does nothing unless
// `threads` is the number of CPUs that this process may use, and above one. Threads that the
// calling thread starts later inherit its CPU. Returns whether the threads were bound.
bool BindTeam(int threads);

// Calls body(begin, end) over disjoint ranges that cover [0, n), on at most `threads` threads. No
// range is shorter than `grain` unless it is the only one. Returns when all calls have ended.
// `body` must give the same bits however [0, n) is divided.
void ParallelFor(int threads, std::int64_t n, std::int64_t grain,
                 absl::FunctionRef<void(std::int64_t begin, std::int64_t end)> body);

}  // namespace evergrad::worker::cpu
