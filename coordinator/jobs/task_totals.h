// Counts the work of each task for a job, and keeps the newest address of each server. The counts
// belong to an identity, and include all processes that had the identity. Pure; only the control
// executor calls it.
//
// There are two kinds of numbers. The first kind counts accepted work: a worker's steps and
// examples, once for each closure. The second kind is reported by the processes (Tally) and
// includes repeated work.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/dashboard/report.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

struct Counts {
  std::uint64_t steps = 0, examples = 0;
  std::uint64_t bytes = 0, duplicates = 0;
};

// The numbers that the processes of one identity have reported during one job.
//
// A process reports its totals repeatedly, and may be declared lost and return, so each report
// replaces the previous report. A process counts from the moment it began to serve the job. If it
// has served another job in between, it counts from zero again and reports another stint number.
// Only the newest process of an identity can report (membership refuses a replaced process), so one
// total is enough; the totals of earlier processes and stints are kept as a sum.
class Tally {
 public:
  // Called when a process registers. Returns whether it is a new process; a repeated call changes
  // nothing.
  bool Begin(std::uint64_t process) {
    if (begun_ && process == process_) return false;
    Anew(0);
    process_ = process;
    begun_ = true;
    return true;
  }
  void Report(std::uint64_t stint, const Counts& now) {
    if (stint != stint_) Anew(stint);
    Move(now.steps, &Counts::steps);
    Move(now.examples, &Counts::examples);
    Move(now.bytes, &Counts::bytes);
    Move(now.duplicates, &Counts::duplicates);
  }
  Counts total() const {
    return {former_.steps + last_.steps, former_.examples + last_.examples,
            former_.bytes + last_.bytes, former_.duplicates + last_.duplicates};
  }

  // The fields of a tally, for the journal.
  struct Parts {
    bool begun = false;
    std::uint64_t process = 0, stint = 0;
    Counts former, last;
  };
  Parts parts() const { return {begun_, process_, stint_, former_, last_}; }
  static Tally Of(const Parts& parts) {
    Tally tally;
    tally.begun_ = parts.begun;
    tally.process_ = parts.process;
    tally.stint_ = parts.stint;
    tally.former_ = parts.former;
    tally.last_ = parts.last;
    return tally;
  }

 private:
  void Anew(std::uint64_t stint) {
    former_ = total();
    last_ = Counts{};
    stint_ = stint;
  }
  // Replaces a total by its new value. If the total falls although the stint is the same, the
  // former value stays counted.
  void Move(std::uint64_t now, std::uint64_t Counts::*field) {
    if (now < last_.*field) former_.*field += last_.*field;
    last_.*field = now;
  }

  bool begun_ = false;
  std::uint64_t process_ = 0, stint_ = 0;
  Counts former_, last_;
};

class TaskTotals {
 public:
  // BeginWorker and BeginServer are called when a process begins to serve the job; a repeated call
  // changes nothing. Both functions return true if the process or the server's address is new,
  // because the journal must then have it.
  bool BeginWorker(const std::string& identity, std::uint64_t process);
  bool BeginServer(const std::string& identity, std::uint64_t process,
                   const v1::Endpoint& endpoint);
  // Counts a closure of `worker` that has succeeded for the first time.
  void CountClosure(const std::string& worker, std::uint64_t steps, std::uint64_t examples);
  // ReportWorker and ReportServer take the totals in a heartbeat, which count from the moment the
  // process began to serve the job. The number of bytes is the sum of bytes sent and received.
  // Texts about the device are truncated.
  void ReportWorker(const std::string& identity, const v1::WorkerProgress& said);
  void ReportServer(const std::string& identity, const v1::JobUsage& said);
  // Called when a worker is gone. Removes its entry if it has done no work and there are too many
  // entries.
  void ForgetIdleWorker(const std::string& identity);

  bool HasCountedClosures(const std::string& worker) const;
  Counts OfServer(const std::string& identity) const;               // Zeros if it is unknown.
  const v1::Endpoint* EndpointOf(const std::string& server) const;  // Null if it is unknown.
  std::uint64_t duplicates_refused() const;

  // Returns a row of the status for each worker that ever served the job, with the state `gone`.
  std::map<std::string, v1::WorkerRow> WorkerRows() const;
  // Workers and Servers return the rows for the report and the result, ordered by identity. `steps`
  // of a server counts the updates in the present state of its shards. `owners` has the identity of
  // the server of each of `shards`.
  std::vector<ReportTask> Workers() const;
  std::vector<ReportTask> Servers(const std::vector<v1::ShardState>& shards,
                                  const std::vector<std::string>& owners) const;

  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  struct Worker {
    std::uint64_t steps = 0, examples = 0;
    Tally tally;
    std::optional<v1::DeviceProgress> device = std::nullopt;  // The newest report.
  };
  struct Server {
    Tally tally;
    std::optional<v1::Endpoint> endpoint = std::nullopt;
  };
  std::map<std::string, Worker> workers_;
  std::map<std::string, Server> servers_;
};

}  // namespace evergrad::coordinator
