// The exit codes of the daemons, each with its meaning and the action for a supervisor. The
// daemons, the documentation and the supervisor all read this table.
#pragma once

#include <span>

#include "absl/strings/string_view.h"

namespace evergrad::daemon {

inline constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2;
inline constexpr int kExitReplaced = 7;  // a newer worker of this identity has registered
inline constexpr int kExitRefused = 8;   // the coordinator refuses this process permanently
inline constexpr int kExitDevice = 9;    // the device of a worker has failed
// The coordinator's journal is damaged, or lacks jobs that have shards on servers.
inline constexpr int kExitJournal = 10;
// A running server on another host has the index that this server took by default.
inline constexpr int kExitIdentityTaken = 11;

struct ExitCode {
  int code;
  const char* name;
  const char* of;       // the daemons that end with this code
  const char* meaning;  // a sentence
  const char* restart;  // action for a supervisor or an operator
};

// Returns the codes in rising order.
std::span<const ExitCode> ExitCodes();
// Returns nullptr if no daemon ends with this code.
const ExitCode* FindExitCode(int code);
// Returns the exit code of a task that the coordinator refuses permanently, by the kind of the
// refusal (v1::Rejected).
int ExitCodeOfRefusal(absl::string_view kind);

}  // namespace evergrad::daemon
