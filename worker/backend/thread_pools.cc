// See PrepareThreadPools: the one place that sets an environment variable, on main()'s behalf.
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "worker/backend/backend.h"

namespace evergrad::worker {

void PrepareThreadPools(const char* wait_policy, char** argv) {
  if (wait_policy != nullptr) return;
  // A pool of several threads sleeps and wakes for each of the dozens of primitives of a step;
  // about a tenth of a millisecond of spinning bridges the gaps between them and ends before the
  // values of the next step are here.
  if (::setenv("OMP_WAIT_POLICY", "passive", 0) != 0 || ::setenv("GOMP_SPINCOUNT", "3000", 0) != 0)
    return;
  // The path, not /proc/self/exe itself: the kernel names the process after the last part of what
  // it executes.
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  ::execv(path, argv);
}

}  // namespace evergrad::worker
