#include "common/daemon/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace evergrad::daemon {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

// Returns the number in a file. "max" or a missing file means no limit.
std::uint64_t LimitIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t bytes = 0;
  return file >> word && absl::SimpleAtoi(word, &bytes) ? bytes : kNone;
}

// Returns the least limit of the group `path` ("/a/b") and its ancestors.
std::uint64_t LimitOfGroup(const std::string& mount, std::string path, absl::string_view file) {
  std::uint64_t least = kNone;
  for (;;) {
    least = std::min(least, LimitIn(absl::StrCat(mount, path, "/", file)));
    const std::size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

std::uint64_t MachineBytes(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == "MemTotal:") return kib * 1024;
  }
  return kNone;
}

}  // namespace

std::uint64_t MemoryLimitBytes(absl::string_view root) {
  const std::string base(absl::StripSuffix(root, "/"));
  std::uint64_t least = MachineBytes(absl::StrCat(base, "/proc/meminfo"));
  std::ifstream groups(absl::StrCat(base, "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    // Each line is hierarchy:controllers:path.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string path(absl::StripSuffix(parts[2], "/"));
    if (parts[0] == "0" && parts[1].empty()) {
      least =
          std::min(least, LimitOfGroup(absl::StrCat(base, "/sys/fs/cgroup"), path, "memory.max"));
      least = std::min(
          least, LimitOfGroup(absl::StrCat(base, "/sys/fs/cgroup/unified"), path, "memory.max"));
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory")
        least = std::min(least, LimitOfGroup(absl::StrCat(base, "/sys/fs/cgroup/memory"), path,
                                             "memory.limit_in_bytes"));
    }
  }
  return least == kNone ? 0 : least;
}

}  // namespace evergrad::daemon
