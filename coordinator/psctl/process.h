// Child processes and processes of pid files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace evergrad::psctl {

struct SpawnOptions {
  std::string program;            // path
  std::vector<std::string> args;  // without the program's name
  std::string log_file;           // stdout and stderr are appended to it
  std::string folder;             // where it runs; "" as we do
  // true: a session of its own, outlives us. false: our process group, ignores SIGINT (a Ctrl-C is
  // ours to answer), and gets SIGTERM when the thread that started it dies with us.
  bool detached = false;
};
// From the main thread only (see `detached`). NotFound: no such program.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// A pid with its start time: the kernel gives pids away again.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
};
absl::StatusOr<ProcessId> IdentityOf(
    pid_t pid);  // NotFound when it is gone; a zombie counts as gone
bool IsAlive(const ProcessId& process);
absl::Status WritePidFile(const std::string& path, const ProcessId& process);
std::optional<ProcessId> ReadPidFile(const std::string& path);
std::string DescribeExit(
    int wait_status);  // "ended with code 3", "was killed by signal 9 (Killed)"

}  // namespace evergrad::psctl
