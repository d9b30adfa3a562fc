// Threads for work that nobody waits for.
#pragma once

namespace evergrad::runtime {

// The calling thread gives way to the others of the machine from now on (nice 10): a tenth of a
// processor where others want it, all of it where they do not. For good: an unprivileged process
// cannot take it back. Where the system refuses, nothing changes.
void RunInBackground();

}  // namespace evergrad::runtime
