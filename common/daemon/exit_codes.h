// The exit codes of the daemons, each with what it means and what whoever starts the daemon again
// should do. The one table: the code that ends a process, the documentation and the supervisor all
// read it here.
#pragma once

#include <span>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2;
inline constexpr int kExitReplaced = 7;  // a newer worker of this identity has registered
inline constexpr int kExitRefused = 8;   // the coordinator refuses this process for good
inline constexpr int kExitDevice = 9;    // the device of a worker has failed
inline constexpr int kExitJournal =
    10;  // the coordinator's journal is damaged, or has lost jobs that live on
inline constexpr int kExitIdentityTaken =
    11;  // another host's living server has the index that this one took by default

struct ExitCode {
  int code;
  const char* name;
  const char* of;       // which daemons end with it
  const char* meaning;  // a sentence
  const char* restart;  // what a supervisor or an operator does
};

// By rising code.
std::span<const ExitCode> ExitCodes();
// nullptr: no daemon ends with this code.
const ExitCode* FindExitCode(int code);
// The code of a task that the coordinator refuses for good, by the kind of the refusal
// (v1::Rejected).
int ExitCodeOfRefusal(absl::string_view kind);

}  // namespace evergrad::daemon
