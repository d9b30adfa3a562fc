#include "common/daemon/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "tests/support/temp_folder.h"

namespace evergrad::daemon {
namespace {

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST_CASE(
    "the memory limit is the minimum of the machine's and of all control groups of the process") {
  const test::TempFolder folder;
  const std::string root = folder.path();
  CHECK(MemoryLimitBytes(root) == 0);  // no file with a limit can be read
  Write(root + "/proc/meminfo", "MemFree: 5 kB\nMemTotal:       16384 kB\n");
  CHECK(MemoryLimitBytes(root) == 16384 * 1024);
  Write(root + "/proc/self/cgroup", "4:cpu,memory:/pod/box\n0::/pod/box\n");
  CHECK(MemoryLimitBytes(root) == 16384 * 1024);
  SECTION("version 2") {
    Write(root + "/sys/fs/cgroup/pod/box/memory.max", "max\n");
    CHECK(MemoryLimitBytes(root) == 16384 * 1024);
    Write(root + "/sys/fs/cgroup/pod/memory.max", "5000000\n");
    CHECK(MemoryLimitBytes(root) == 5000000);
    Write(root + "/sys/fs/cgroup/pod/box/memory.max", "4000000\n");
    CHECK(MemoryLimitBytes(root) == 4000000);
  }
  SECTION("version 1, where no limit is a very large number") {
    Write(root + "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(MemoryLimitBytes(root) == 16384 * 1024);
    Write(root + "/sys/fs/cgroup/memory/pod/box/memory.limit_in_bytes", "3000000\n");
    CHECK(MemoryLimitBytes(root) == 3000000);
  }
  CHECK(MemoryLimitBytes() > 0);  // the limit of this host
}

}  // namespace
}  // namespace evergrad::daemon
