#include "common/metrics/process_metrics.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace evergrad::metrics {
namespace {

// A folder that imitates /proc. It has one process.
struct Proc {
  std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("evergrad-proc-" + std::to_string(::getpid()));
  Proc() {
    std::filesystem::create_directories(root / "7" / "fd");
    Write("stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n");
    // In this line, fields 14 and 15 are the ticks in user and system mode, 22 is the start time,
    // 23 the number of virtual bytes, and 24 the number of resident pages.
    Write("7/stat",
          "7 (a (bad) name) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 3 0 1000 8192000 100 0\n");
    Write("7/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max open files            1024                 4096                 files     \n");
    Write("7/fd/0", "");
    Write("7/fd/1", "");
  }
  ~Proc() { std::filesystem::remove_all(root); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root / name) << text;
  }
};

TEST_CASE("the numbers of a process come from /proc, whatever its name is") {
  const Proc proc;
  const auto numbers = ReadProcessNumbers(proc.root, "7");
  REQUIRE(numbers.has_value());
  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  CHECK(numbers->cpu_seconds == 300 / ticks);
  CHECK(numbers->start_seconds == 1700000000 + 1000 / ticks);
  CHECK(numbers->virtual_bytes == 8192000);
  CHECK(numbers->resident_bytes == 100 * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  CHECK(numbers->open_fds == 2);
  CHECK(numbers->max_fds == 1024);
}

TEST_CASE("a limit may be absent, and a missing or malformed file gives no numbers") {
  const Proc proc;
  proc.Write("7/limits",
             "Max open files            unlimited            unlimited            files");
  CHECK(std::isinf(ReadProcessNumbers(proc.root, "7").value().max_fds));
  CHECK_FALSE(ReadProcessNumbers(proc.root, "8").has_value());
  proc.Write("7/stat", "7 (name) S 1 2");
  CHECK_FALSE(ReadProcessNumbers(proc.root, "7").has_value());
  Registry registry;
  AddProcessMetrics(registry, proc.root);
  CHECK_THAT(registry.PrometheusText(), !Catch::Contains("\nprocess_open_fds "));
  CHECK_THAT(registry.PrometheusText(), Catch::Contains("\nprocess_cpu_seconds_total 0\n"));
}

TEST_CASE("the metrics of this process are plausible") {
  const auto before = ReadProcessNumbers("/proc", "self");
  REQUIRE(before.has_value());
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  CHECK(before->resident_bytes > 100'000);
  CHECK(before->virtual_bytes >= before->resident_bytes);
  CHECK(before->start_seconds > 1.5e9);
  CHECK(before->start_seconds < now + 60);
  CHECK(before->max_fds >= before->open_fds);
  {
    const std::ifstream one("/proc/self/stat"), another("/proc/self/stat");
    CHECK(ReadProcessNumbers("/proc", "self").value().open_fds == before->open_fds + 2);
  }
  Registry registry;
  AddProcessMetrics(registry);
  const std::string text = registry.PrometheusText();
  for (const char* name : {"process_resident_memory_bytes", "process_virtual_memory_bytes",
                           "process_start_time_seconds", "process_open_fds", "process_max_fds"})
    CHECK_THAT(text, Catch::Contains(std::string("\n# TYPE ") + name + " gauge\n" + name + " "));
  CHECK_THAT(text, Catch::Contains("# TYPE process_cpu_seconds_total counter\n"));
}

}  // namespace
}  // namespace evergrad::metrics
