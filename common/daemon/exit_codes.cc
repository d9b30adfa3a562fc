#include "common/daemon/exit_codes.h"

namespace evergrad::daemon {
namespace {

constexpr char kEvery[] = "every daemon", kWorkers[] = "evergrad-worker",
               kServers[] = "evergrad-ps-server", kCoordinator[] = "evergrad-coordinator",
               kTasks[] = "evergrad-worker, evergrad-ps-server";

constexpr ExitCode kCodes[] = {
    {kExitOk, "ok", kEvery,
     "The daemon received a request to end (SIGTERM, SIGINT, a preemption notice or `psctl task "
     "drain`) and ended without an error.",
     "Start the daemon again when it is needed."},
    {kExitFailed, "failed", kEvery,
     "The daemon could not start, or met an error from which it cannot recover. The log has the "
     "reason.",
     "Start the daemon again after a pause."},
    {kExitUsage, "usage", kEvery,
     "A flag or a key of the configuration file is wrong, or names a file that cannot be used. The "
     "reason is on standard error.",
     "Correct the settings first: another start would fail in the same way."},
    {kExitReplaced, "replaced", kWorkers,
     "A newer process has registered under this worker's name and has taken over its work.",
     "Do not start a worker with the same --name while the other process runs."},
    {kExitRefused, "refused", kTasks,
     "The coordinator refuses this process permanently: the process speaks another version of the "
     "protocol, or its certificate belongs to another task.",
     "Start the version that the coordinator runs, or correct the certificate."},
    {kExitDevice, "device", kWorkers, "The device that the worker computes on has failed.",
     "Start the worker again: the device may work again in a new process."},
    {kExitJournal, "journal", kCoordinator,
     "The journal in --state-dir is damaged, or parameter servers hold shards of a job that is "
     "missing from the journal. Nothing was changed.",
     "Restore the folder from a backup, or discard the lost jobs with --forget-unknown-jobs."},
    {kExitIdentityTaken, "identity_taken", kServers,
     "The server was started without --index and took the index 0 by default, but a running server "
     "on another host already has the index 0.",
     "Start the server with an --index that no other server has."},
};

}  // namespace

std::span<const ExitCode> ExitCodes() { return kCodes; }

const ExitCode* FindExitCode(int code) {
  for (const ExitCode& one : kCodes) {
    if (one.code == code) return &one;
  }
  return nullptr;
}

int ExitCodeOfRefusal(absl::string_view kind) {
  return kind == "replaced"         ? kExitReplaced
         : kind == "identity_taken" ? kExitIdentityTaken
                                    : kExitRefused;
}

}  // namespace evergrad::daemon
