#include "coordinator/config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/object_uri.h"
#include "common/fs/roots.h"

namespace evergrad::coordinator {

using std::chrono::milliseconds;

namespace {

void AddJournalOptions(SqliteStoreOptions* store, daemon::OptionTable* table) {
  table->Add("state_dir", &store->folder,
             "folder of the journal, on a local disk. A coordinator that is started again with the "
             "folder continues its jobs; with \"\" the jobs end with this process");
  table->Add(
      "forget_unknown_jobs", &store->forget_unknown_jobs,
      "start although the journal has lost jobs, or is missing, and give these jobs up. A "
      "-wal file without its journal is kept under another name, and servers drop their shards of "
      "jobs that the journal does not know. Without this flag the coordinator ends and changes "
      "nothing");
  table->Add("journal_commit_every", &store->commit_every,
             "with --state-dir: longest time that a change waits so that several changes share one "
             "sync of the disk",
             milliseconds(0), milliseconds(1000));
  table->AddBytes("state_bytes_max", &store->file_bytes_max,
                  "with --state-dir: largest size of the journal's file. At this size the disk "
                  "counts as full, and no new work is accepted",
                  {64ull << 10});
}

void AddTaskOptions(ControlOptions& c, daemon::OptionTable* table) {
  table->Add("lease", &c.membership.lease,
             "a worker that is silent for this long is declared gone; heartbeats are sent four "
             "times as often",
             milliseconds(100), milliseconds(600'000));
  table->Add("grace", &c.membership.grace,
             "a worker whose session closed is declared gone after this time unless it reconnects",
             milliseconds(0), milliseconds(600'000));
  table->Add("server_lost_after", &c.membership.server_lost_after,
             "a server that is disconnected for this long is declared lost, and its shards are "
             "assigned to other servers",
             milliseconds(100));
  table->Add(
      "window", &c.window,
      "how long the coordinator collects registrations after its start, before it chooses its "
      "term and answers the workers; 0: do not collect",
      milliseconds(0), milliseconds(600'000));
  table->Add("tasks_max", &c.membership.tasks_max,
             "largest number of living tasks; a further registration is refused", {1, 1'000'000});
}

void AddJobOptions(ControlOptions& c, daemon::OptionTable* table) {
  table->Add("jobs_running_max", &c.jobs_running_max,
             "largest number of jobs that run at the same time; workers are divided among them by "
             "spec.resources.share, and each job has its own variables",
             {1, 64});
  table->AddBytes(
      "job_server_memory_bytes_max", &c.jobs.server_memory_bytes_max,
      "largest memory of a job's variables on the servers, with optimizer state; an embedding "
      "table counts as its bytes_max. A larger job is refused when it is planned. 0: no limit");
  table->Add("share_turn", &c.share_turn,
             "if workers do not divide evenly among jobs, an extra worker changes to another job "
             "after this time",
             milliseconds(100), milliseconds(3'600'000));
  table->Add("jobs_queued_max", &c.jobs_queued_max,
             "largest number of queued jobs; a further submission is refused", {1, 100'000});
  table->Add("jobs_kept_max", &c.jobs_kept_max,
             "largest number of ended jobs that are kept for queries", {1, 100'000});
  table->Add("closures_open_max", &c.jobs.closures_open_max,
             "largest number of granted closures that have not ended; at this number no further "
             "closure is granted",
             {1, 10'000'000});
  table->Add("closures_behind_max", &c.jobs.closures_behind_max,
             "largest number of closures from the oldest one that has not ended to the newest "
             "granted one; at this number no further closure is granted",
             {1, 10'000'000});
  table->Add("attempts_ahead_max", &c.jobs.sizing.attempts_max,
             "largest number of attempts that one worker holds, queued or running", {2, 4096});
  table->Add("coordinator_away", &c.jobs.sizing.coordinator_away,
             "how long a worker's queued attempts last at its measured rate, so that it can work "
             "without the coordinator for this time",
             milliseconds(0), milliseconds(600'000));
  table->Add("close_every", &c.jobs.close_every, "how often servers are told about ended closures",
             milliseconds(1), milliseconds(60'000));
  table->Add("seal_timeout", &c.jobs.seal_timeout,
             "if a server does not answer for this long at the early end of a job, its shards are "
             "removed from the job's shard map",
             milliseconds(10), milliseconds(600'000));
  table->Add(
      "retries_max", &c.jobs.retries_max,
      "largest number of machine errors of one closure in a row; with one more the job fails",
      {0, 1'000'000});
  table->Add("deaths_max", &c.jobs.deaths_max,
             "largest number of deaths of tasks that hold work of a job, while the job makes no "
             "progress and no closure is the cause; with one more the job fails",
             {0, 1'000'000'000});
  table->Add("step_timeout", &c.jobs.step_timeout,
             "if the work of a connected worker has not advanced by a step for this long, the work "
             "is granted to other workers; 0: never",
             milliseconds(0), milliseconds(86'400'000));
  table->Add("reach_timeout", &c.jobs.reach_timeout,
             "if a worker gets no answer from a connected parameter server for this long, its work "
             "is granted to workers that can reach the server; 0: never",
             milliseconds(0), milliseconds(86'400'000));
}

}  // namespace

void AddOptions(Options* options, daemon::OptionTable* table) {
  ControlOptions& c = options->control;
  table->Add("runs", &c.runs_folder,
             "folder in which each job gets its runs folder <name>-<job_uid>");
  table->Add(
      "runs_copy", &c.runs_copy,
      "s3:// or gs:// URI of a folder to which the runs folder of each job is copied, "
      "without its checkpoints: when the job has ended, and at intervals before. Empty means "
      "no copies");
  table->Add("runs_copy_every", &c.runs_copy_every, "time between two copies of a running job",
             milliseconds(1'000), milliseconds(86'400'000));
  table->Add(
      "checkpoint_root", &options->checkpoint_roots,
      "folder, or s3:// or gs:// URI, that must contain the checkpoint.directory of a job, after "
      "links are followed; the runs folder is always allowed. If left out, any folder is allowed "
      "if the cluster is on this "
      "machine only (everything on loopback, no TLS), and otherwise none");
  object_store::AddStoreOptions(table, &options->stores);
  AddJournalOptions(&options->store, table);
  AddTaskOptions(c, table);
  AddJobOptions(c, table);
  table->Add("calls_max", &c.calls_max,
             "largest number of control calls in progress; a further call is refused",
             {1, 1'000'000});
  table->AddBytes("file_bytes_max", &c.file_bytes_max,
                  "largest number of bytes of metrics.jsonl that wait for the disk; further lines "
                  "are dropped and counted");
}

absl::Status ResolveRoots(bool local_only, Options* options) {
  EG_RETURN_IF_ERROR(fs::MakeRootsAbsolute("--checkpoint-root", &options->checkpoint_roots));
  if (options->checkpoint_roots.empty() && local_only) return absl::OkStatus();
  options->control.checkpoint_roots = fs::Roots::Only(
      options->checkpoint_roots,
      options->checkpoint_roots.empty()
          ? "the coordinator was started without --checkpoint-root, and its cluster is not only on "
            "this machine: start it with --checkpoint-root FOLDER, or leave out "
            "checkpoint.directory, so that checkpoints are stored in the runs folder"
          : "to allow another folder, start the coordinator with one more --checkpoint-root "
            "FOLDER");
  return absl::OkStatus();
}

absl::Status CheckOptions(const Options& options) {
  EG_RETURN_IF_ERROR(object_store::CheckStoreOptions(options.stores));
  if (const std::string& copy = options.control.runs_copy; !copy.empty()) {
    if (const auto uri = fs::ParseObjectUri(copy); !uri.ok())
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("--runs-copy: expected an s3:// or gs:// URI: ", uri.status().message())));
  }
  const MembershipOptions& m = options.control.membership;
  if (m.server_lost_after < m.lease) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("server_lost_after is shorter than lease: server_lost_after_ms=",
                     m.server_lost_after.count(), " lease_ms=", m.lease.count())));
  }
  if (m.grace > m.lease)
    return UserError(absl::InvalidArgumentError(absl::StrCat(
        "grace is longer than lease: grace_ms=", m.grace.count(), " lease_ms=", m.lease.count())));
  if (options.control.runs_folder.empty())
    return UserError(absl::InvalidArgumentError("--runs is empty: expected a folder"));
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
