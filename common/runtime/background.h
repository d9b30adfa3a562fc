// Low priority for threads whose work is not urgent.
#pragma once

namespace evergrad::runtime {

// Lowers the priority of the calling thread permanently (nice 10). In competition with other
// threads it gets about a tenth of a CPU, otherwise a whole CPU. An unprivileged process cannot
// raise it again. If the system refuses, nothing changes.
void RunInBackground();

}  // namespace evergrad::runtime
