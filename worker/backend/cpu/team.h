// Parallel loops on the threads that oneDNN uses (libgomp's team of the calling thread).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace evergrad::worker::cpu {

// Sets the team size of the calling thread, for oneDNN and for ParallelFor. The setting is per
// thread, so every entry to the backend makes this call, which costs one store.
void SetTeamSize(int threads);

// Binds the calling thread and its team of `threads` to one CPU each. Does nothing unless these are
// all the CPUs that this process may use, and more than one. Threads that the calling thread starts
// later inherit its CPU. Returns whether the threads were bound.
bool BindTeam(int threads);

// Calls body(begin, end) over disjoint ranges that cover [0, n), on at most `threads` threads. No
// range is shorter than `grain` unless it is the only one. Returns when all calls have ended.
// `body` must give the same bits for every division.
void ParallelFor(int threads, std::int64_t n, std::int64_t grain,
                 absl::FunctionRef<void(std::int64_t begin, std::int64_t end)> body);

}  // namespace evergrad::worker::cpu
