// Child processes, and the processes of pid files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace evergrad::psctl {

struct SpawnOptions {
  std::string program;            // path of the program
  std::vector<std::string> args;  // without the name of the program
  std::string log_file;           // file to which stdout and stderr are appended
  std::string folder;             // working directory; "" for the directory of this process
  // If true, the child gets its own session and outlives this process. If false, the child stays in
  // the process group of this process, and ignores SIGINT, because this process handles a Ctrl-C.
  // The child then gets SIGTERM when the thread that started the child dies.
  bool detached = false;
};
// Starts the program. Call it only on the main thread (see `detached`). Returns NotFound if there
// is no such program.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// A pid with its start time, because the kernel reuses pids.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
};
// Returns NotFound for an ended process; a zombie counts as ended.
absl::StatusOr<ProcessId> IdentityOf(pid_t pid);
bool IsAlive(const ProcessId& process);
absl::Status WritePidFile(const std::string& path, const ProcessId& process);
std::optional<ProcessId> ReadPidFile(const std::string& path);
// Returns a text like "ended with code 3" or "was killed by signal 9 (Killed)".
std::string DescribeExit(int wait_status);

}  // namespace evergrad::psctl
