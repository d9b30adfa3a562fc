// Low priority for threads whose work is not urgent.
#pragma once

namespace evergrad::runtime {

// Lowers the priority of the calling thread permanently (nice 10): it gets about a tenth of a CPU
// in competition with other threads, and a whole CPU otherwise. An unprivileged process cannot undo
// it. If the system refuses, nothing changes.
void RunInBackground();

}  // namespace evergrad::runtime
