// Loops shared out over the very threads that oneDNN computes with (libgomp's team of the calling
// thread).
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace evergrad::worker::cpu {

// Sizes the team of the calling thread, for oneDNN and for ParallelFor. Each thread has a setting
// of its own, so this is called at every entry to the backend; it is one store.
void SetTeamSize(int threads);

// Binds the calling thread and its team of `threads` to a processor each, if those are all that
// this process may use and more than one; else nothing. Threads that the calling thread starts
// later inherit its processor. Returns whether it was done.
bool BindTeam(int threads);

// Calls body(begin, end) over disjoint ranges that cover [0, n), on at most `threads` threads, none
// of them shorter than `grain` unless it is the only one. Returns when all have ended. `body` must
// give the same bits however it is cut.
void ParallelFor(int threads, std::int64_t n, std::int64_t grain,
                 absl::FunctionRef<void(std::int64_t begin, std::int64_t end)> body);

}  // namespace evergrad::worker::cpu
