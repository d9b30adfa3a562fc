// Low priority for threads whose work is not urgent.
#pragma once

namespace evergrad::runtime {

// Lowers the priority of the calling thread permanently (nice 10). In competition with other
// threads the thread gets about a tenth of a CPU, otherwise a whole CPU. An unprivileged process
// cannot raise the priority again. If the system refuses, nothing changes.
void RunInBackground();

}  // namespace evergrad::runtime
