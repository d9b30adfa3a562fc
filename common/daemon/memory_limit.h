// How much memory this process may take.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

// The least of the machine's memory and of the limits of the control groups that the process is in
// (version 2 and 1), those above them included, in bytes. `root`: where proc and sys/fs/cgroup lie,
// "/" but in a test. 0: nothing can be read.
std::uint64_t MemoryLimitBytes(absl::string_view root = "/");

}  // namespace evergrad::daemon
