// The memory limit of this process.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

// Returns the limit in bytes: the least of the machine's memory and of the limits of this process's
// control groups (versions 2 and 1) with their ancestors. Returns 0 if no limit can be read. `root`
// is the folder of proc and sys/fs/cgroup: "/", except in tests.
std::uint64_t MemoryLimitBytes(absl::string_view root = "/");

}  // namespace evergrad::daemon
