#include "coordinator/psctl/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/runtime/executor.h"

namespace evergrad::psctl {

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  if (::access(options.program.c_str(), X_OK) != 0)
    return UserError(absl::NotFoundError(
        absl::StrCat("no such program: ", options.program, ": ", std::strerror(errno))));
  const int log = ::open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0)
    return absl::UnavailableError(
        absl::StrCat("cannot write ", options.log_file, ": ", std::strerror(errno)));
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  // All allocation happens before the fork, because another thread may hold the allocator's locks.
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(options.program.c_str()));
  for (const std::string& arg : options.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    runtime::SignalWaiter::ResetInChild();
    if (options.detached) {
      ::setsid();
    } else {
      ::signal(SIGINT, SIG_IGN);
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(127);
    }
    if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) ::_exit(127);
    ::dup2(nothing, 0);
    ::dup2(log, 1);
    ::dup2(log, 2);
    ::close_range(3, ~0u, 0);
    ::execv(options.program.c_str(), argv.data());
    ::_exit(127);
  }
  const int error = errno;
  ::close(log);
  if (nothing >= 0) ::close(nothing);
  if (pid < 0)
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", options.program, ": ", std::strerror(error)));
  return pid;
}

absl::StatusOr<ProcessId> IdentityOf(pid_t pid) {
  const auto stat = fs::ReadFile(absl::StrCat("/proc/", pid, "/stat"), 65536);
  // The format is "pid (name) state ppid …". The name may hold spaces and brackets, so the fields
  // begin after the last bracket. Field 22 is the start time.
  const std::size_t bracket = stat.ok() ? stat->rfind(')') : std::string::npos;
  if (bracket == std::string::npos)
    return absl::NotFoundError(absl::StrCat("no such process: pid=", pid));
  const std::vector<std::string> fields = absl::StrSplit(stat->substr(bracket + 2), ' ');
  ProcessId process{pid, 0};
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X" ||
      !absl::SimpleAtoi(fields[19], &process.start_ticks))
    return absl::NotFoundError(absl::StrCat("no such process: pid=", pid));
  return process;
}

bool IsAlive(const ProcessId& process) {
  const auto now = IdentityOf(process.pid);
  return now.ok() && now->start_ticks == process.start_ticks;
}

absl::Status WritePidFile(const std::string& path, const ProcessId& process) {
  return fs::WriteFileAtomic(path, absl::StrCat(process.pid, " ", process.start_ticks, "\n"));
}

std::optional<ProcessId> ReadPidFile(const std::string& path) {
  const auto text = fs::ReadFile(path, 256);
  if (!text.ok()) return std::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessId process;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &process.pid) ||
      !absl::SimpleAtoi(parts[1], &process.start_ticks) || process.pid <= 1)
    return std::nullopt;
  return process;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status))
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  return absl::StrCat("ended with code ", WEXITSTATUS(wait_status));
}

}  // namespace evergrad::psctl
