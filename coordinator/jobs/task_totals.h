// The work of each task for a job, by identity and over all of its processes, and the last address
// of each server. Pure; the control executor's.
//
// There are two kinds of numbers: those that counted for the job (a worker's steps and examples,
// once per closure), and those that the processes report (tally.h), which include repeated work.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/dashboard/report.h"
#include "coordinator/jobs/tally.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class TaskTotals {
 public:
  // A process begins to serve the job; a repeat changes nothing. True: the process, or a server's
  // address, is new, so the journal must have it.
  bool BeginWorker(const std::string& identity, std::uint64_t process);
  bool BeginServer(const std::string& identity, std::uint64_t process,
                   const v1::Endpoint& endpoint);
  // A closure of `worker` has succeeded for the first time.
  void CountClosure(const std::string& worker, std::uint64_t steps, std::uint64_t examples);
  // Heartbeats: totals of the process since it began to serve the job. Bytes are those sent and
  // received; words about the device are bounded here.
  void ReportWorker(const std::string& identity, const v1::WorkerProgress& said);
  void ReportServer(const std::string& identity, const v1::JobUsage& said);
  // A worker is gone. It is forgotten if it has done nothing and there are too many of its kind.
  void ForgetIdleWorker(const std::string& identity);

  bool HasCountedClosures(const std::string& worker) const;
  Counts OfServer(const std::string& identity) const;               // Zeros: it is unknown.
  const v1::Endpoint* EndpointOf(const std::string& server) const;  // Null: it is unknown.
  std::uint64_t duplicates_refused() const;

  // One row of a status for each worker that ever served the job, with state `gone`.
  std::map<std::string, v1::WorkerRow> WorkerRows() const;
  // For the report and the result, by identity. `steps` of a server are the updates in the present
  // state of its shards; `owners` are the servers of `shards`, by identity.
  std::vector<ReportTask> Workers() const;
  std::vector<ReportTask> Servers(const std::vector<v1::ShardState>& shards,
                                  const std::vector<std::string>& owners) const;

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  struct Worker {
    std::uint64_t steps = 0, examples = 0;
    Tally tally;
    std::optional<v1::DeviceProgress> device = std::nullopt;  // As it last said.
  };
  struct Server {
    Tally tally;
    std::optional<v1::Endpoint> endpoint = std::nullopt;
  };
  std::map<std::string, Worker> workers_;
  std::map<std::string, Server> servers_;
};

}  // namespace evergrad::coordinator
