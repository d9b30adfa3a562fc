#include "coordinator/config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/roots.h"

namespace evergrad::coordinator {

using std::chrono::milliseconds;

void AddOptions(Options* options, daemon::OptionTable* table) {
  ControlOptions& c = options->control;
  table->Add("runs", &c.runs_folder,
             "folder in which each job gets its runs folder <name>-<job_uid>");
  table->Add("checkpoint_root", &options->checkpoint_roots,
             "folder in which the checkpoint.directory of a job has to lie, wherever links lead; "
             "the runs folder may always be written. Left out: any "
             "folder where only this machine is involved (everything on loopback, no TLS), and "
             "none otherwise");
  table->Add("state_dir", &options->store.folder,
             "folder of the journal, on a local disk: a coordinator started again on it goes on "
             "with its jobs; \"\": they end with this process");
  table->Add("forget_unknown_jobs", &options->store.forget_unknown_jobs,
             "for a journal that has lost jobs, or to go on without one: begin without them. An "
             "orphaned -wal file is kept under another name, and "
             "shards of jobs that the journal does not know are dropped by their servers; without "
             "this the coordinator ends and changes nothing");
  table->Add(
      "journal_commit_every", &options->store.commit_every,
      "with --state-dir: changes wait so long at most to share one sync of the journal's disk",
      milliseconds(0), milliseconds(1000));
  table->AddBytes("state_bytes_max", &options->store.file_bytes_max,
                  "with --state-dir: size of the journal's file; at it no new work is accepted, as "
                  "on a full disk",
                  {64ull << 10});
  table->Add("lease", &c.membership.lease,
             "a worker silent for this long is gone; heartbeats come four times as often",
             milliseconds(100), milliseconds(600'000));
  table->Add("grace", &c.membership.grace,
             "a worker whose session closed is gone after this long unless it returns",
             milliseconds(0), milliseconds(600'000));
  table->Add("server_lost_after", &c.membership.server_lost_after,
             "a server away for this long is lost: its shards go to other servers",
             milliseconds(100));
  table->Add("window", &c.window,
             "how long registrations are collected at the start before the term is chosen and "
             "workers are answered; 0: not at all",
             milliseconds(0), milliseconds(600'000));
  table->Add("tasks_max", &c.membership.tasks_max,
             "living tasks; a registration beyond it is refused", {1, 1'000'000});
  table->Add("jobs_running_max", &c.jobs_running_max,
             "jobs that run side by side; the workers are divided among them by "
             "spec.resources.share, each job has its own variables",
             {1, 64});
  table->AddBytes("job_server_memory_bytes_max", &c.jobs.server_memory_bytes_max,
                  "a job whose variables take more on the servers, optimizer slots included and "
                  "tables counted as their bytes_max, is refused once "
                  "it is planned; 0: any size");
  table->Add("share_turn", &c.share_turn,
             "where workers do not divide evenly among jobs, who has one more changes this often",
             milliseconds(100), milliseconds(3'600'000));
  table->Add("jobs_queued_max", &c.jobs_queued_max,
             "jobs that wait for their turn; a submission beyond it is refused", {1, 100'000});
  table->Add("jobs_kept_max", &c.jobs_kept_max, "ended jobs that are still answered for",
             {1, 100'000});
  table->Add("closures_open_max", &c.jobs.closures_open_max,
             "closures granted and not ended; beyond it no new one is granted", {1, 10'000'000});
  table->Add("closures_behind_max", &c.jobs.closures_behind_max,
             "closures granted behind one that has not ended, most of which have; beyond it no new "
             "one is granted",
             {1, 10'000'000});
  table->Add("attempts_ahead_max", &c.jobs.sizing.attempts_max, "attempts that one worker may hold",
             {2, 4096});
  table->Add("coordinator_away", &c.jobs.sizing.coordinator_away,
             "a worker is given work for this long, by its own measured rate", milliseconds(0),
             milliseconds(600'000));
  table->Add("close_every", &c.jobs.close_every,
             "how often servers are told which closures have ended", milliseconds(1),
             milliseconds(60'000));
  table->Add("seal_timeout", &c.jobs.seal_timeout,
             "a server silent for this long at a job's early end is unmapped", milliseconds(10),
             milliseconds(600'000));
  table->Add("retries_max", &c.jobs.retries_max,
             "machine errors of one closure in a row; beyond it the job fails", {0, 1'000'000});
  table->Add("deaths_max", &c.jobs.deaths_max,
             "deaths of tasks that hold work of a job and blame no closure, while the job does not "
             "get further; beyond it the job fails",
             {0, 1'000'000'000});
  table->Add("step_timeout", &c.jobs.step_timeout,
             "a worker that lives but whose work has not advanced a step for this long loses it to "
             "others; 0: never",
             milliseconds(0), milliseconds(86'400'000));
  table->Add("reach_timeout", &c.jobs.reach_timeout,
             "a worker that has had no answer for this long from a parameter server that is there "
             "loses its work to workers that can reach it; 0: never",
             milliseconds(0), milliseconds(86'400'000));
  table->Add("calls_max", &c.calls_max, "control calls in progress; beyond it they are refused",
             {1, 1'000'000});
  table->AddBytes(
      "file_bytes_max", &c.file_bytes_max,
      "bytes of metrics.jsonl waiting for the disk; beyond it lines are dropped and counted");
}

absl::Status ResolveRoots(bool local_only, Options* options) {
  EG_RETURN_IF_ERROR(fs::MakeRootsAbsolute("--checkpoint-root", &options->checkpoint_roots));
  if (options->checkpoint_roots.empty() && local_only) return absl::OkStatus();
  options->control.checkpoint_roots = fs::Roots::Only(
      options->checkpoint_roots,
      options->checkpoint_roots.empty()
          ? "the coordinator was started without --checkpoint-root, and its cluster is not on this "
            "machine alone: start it "
            "with --checkpoint-root FOLDER, or leave checkpoint.directory out: checkpoints then "
            "lie in the runs folder"
          : "start the coordinator with one more --checkpoint-root FOLDER to allow another folder");
  return absl::OkStatus();
}

absl::Status CheckOptions(const Options& options) {
  const MembershipOptions& m = options.control.membership;
  if (m.server_lost_after < m.lease) {
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "server_lost_after below lease: server_lost_after=", m.server_lost_after.count(),
        " lease=", m.lease.count())));
  }
  if (m.grace > m.lease)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("grace above lease: grace=", m.grace.count(), " lease=", m.lease.count())));
  if (options.control.runs_folder.empty())
    return UserError(absl::InvalidArgumentError("runs is empty"));
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
