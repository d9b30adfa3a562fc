// Implements PrepareThreadPools. This file alone sets environment variables, on behalf of
// main().
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "worker/backend/backend.h"

namespace evergrad::worker {

void PrepareThreadPools(const char* wait_policy, char** argv) {
  if (wait_policy != nullptr) return;
  // Without spinning, a pool would sleep and wake for each of the dozens of primitives of a step.
  // Spinning for about a tenth of a millisecond covers the gaps between primitives, and ends before
  // the values of the next step arrive.
  if (::setenv("OMP_WAIT_POLICY", "passive", 0) != 0 || ::setenv("GOMP_SPINCOUNT", "3000", 0) != 0)
    return;
  // The call executes the resolved path and not /proc/self/exe, because the kernel names the
  // process after the last part of the path.
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  ::execv(path, argv);
}

}  // namespace evergrad::worker
