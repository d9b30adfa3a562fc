// The control plane's settings, from the daemon's options: bounds, timeouts and folders.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "common/fs/roots.h"
#include "coordinator/jobs/job.h"
#include "coordinator/membership/membership.h"

namespace evergrad::coordinator {

struct ControlOptions {
  MembershipOptions membership;
  JobOptions jobs;
  // Registrations are collected for this time before the term is chosen. With 0 the term is chosen
  // at once.
  std::chrono::milliseconds window{1000};
  std::chrono::milliseconds tick{25};
  std::chrono::milliseconds hello_within{5000};
  std::chrono::milliseconds wait_max{10000};      // longest wait of GetJob
  std::chrono::milliseconds query_timeout{5000};  // time limit of ListVariables and ReadTaskLogs
  std::string runs_folder = "runs";               // absolute path
  std::string runs_copy;                          // URI of the folder of copies; "" for none
  std::chrono::milliseconds runs_copy_every{60'000};
  fs::Roots checkpoint_roots = {};  // folders that may contain a job's checkpoint.directory
  // Limit of jobs that run at the same time. Further jobs wait in the queue.
  std::uint32_t jobs_running_max = 1;
  // If the workers do not divide evenly, the jobs take turns at the remaining workers. `share_turn`
  // is the length of one turn.
  std::chrono::milliseconds share_turn{10000};
  std::uint32_t jobs_queued_max = 64;
  std::uint32_t jobs_kept_max = 100;  // limit of ended jobs that are kept for queries
  std::uint32_t calls_max = 1024;     // limit of Control RPCs in progress
  std::uint32_t file_calls_max = 16;  // limit of calls in progress that read files of runs
  // Limit of a session's batches that have arrived and are not handled yet.
  std::uint32_t batches_queued_max = 1024;
  // limit of bytes that wait to be written to files of runs
  std::uint64_t file_bytes_max = 64ull << 20;
  // Limit of the bytes of messages that wait for the journal. If a message would exceed this limit,
  // its session ends.
  std::uint64_t gate_bytes_max = 64ull << 20;
  std::uint32_t log_lines_max = 10000;  // limit of lines in one answer to ReadTaskLogs
  bool counting_allowed = false;        // true if the daemon was started with --failpoints
  // Result of daemon::IsLocalOnly; if true, only users of this machine can submit jobs.
  bool local_only = false;
  bool insecure_listen = false;
  // If true, shards of jobs that the journal has lost are dropped (line 18a)
  bool forget_unknown_jobs = false;
  // Returns true if workers on other hosts cannot reach the endpoint of a server that registers
  // over this connection. An empty function counts as false.
  std::function<bool(const std::string& peer_address, const std::string& endpoint)>
      unreachable_endpoint;
  // Returns the cloud's latest recommendation that the coordinator leave its machine. An empty
  // function stands for "". Thread-safe.
  std::function<std::string()> recommendation;
  std::string build_id;
  std::int64_t pid = 0;
  std::string host;
};

}  // namespace evergrad::coordinator
