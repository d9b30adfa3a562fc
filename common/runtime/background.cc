#include "common/runtime/background.h"

#include <sys/resource.h>
#include <unistd.h>

namespace evergrad::runtime {

void RunInBackground() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10); }

}  // namespace evergrad::runtime
