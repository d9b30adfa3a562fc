// Reports to the coordinator how attempts end (Dropped, Failed or Done). A Done is kept and resent
// in each session until the coordinator has acknowledged it [LEDGER 16]. Used on the control
// executor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "evergrad/v1/session.pb.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/runner_metrics.h"

namespace evergrad::worker {

class AttemptReports {
 public:
  // All objects outlive the reports. `send` returns false if there is no session.
  struct Environment {
    std::function<bool(v1::TaskMessage)> send;
    log::Logger* logger = nullptr;
    RunnerMetrics* metrics = nullptr;
    std::uint64_t message_bytes_max = 0;  // largest message of the session
  };
  explicit AttemptReports(Environment environment) : env_(std::move(environment)) {}

  struct Dropped {
    std::string reason;
    std::optional<ShardId> superseded_by = std::nullopt;  // the shard that answered SUPERSEDED
    log::Level level = log::Level::kInfo;
  };
  // Reports a dropped attempt. Without a session nothing is sent; the next Hello then lacks the
  // attempt and so reports the drop. `about` names the job and the closure.
  void SendDropped(const Work& work, const Dropped& dropped, const log::Context& about);
  // Reports a failed attempt. `identity` is the identity of this worker.
  void SendFailed(const Work& work, const absl::Status& status, const std::string& identity,
                  const log::Context& about);

  // Returns a UserError if `done` is larger than the largest message and could never be sent.
  absl::Status CheckSize(const Work& work, const v1::Done& done) const;
  // Keeps `done` for SendDone, which sends a heartbeat first, because the job may end before the
  // next heartbeat is due.
  void KeepDone(Attempt attempt, v1::Done done) { done_[attempt] = std::move(done); }
  // Sends the kept Done after a heartbeat. A Done of the attempt must have been kept (EG_CHECK).
  void SendDone(Attempt attempt, v1::WorkerProgress progress);
  void Forget(Attempt attempt) { done_.erase(attempt); }
  void ForgetJob(JobUid job);

 private:
  const Environment env_;
  std::map<Attempt, v1::Done> done_;  // one entry for each attempt of AttemptBook::Unanswered()
};

// Fills in the held attempts that fit into a message; a larger Hello would be refused at every
// dial. If some attempts do not fit, the attempts that would begin last are left out. The
// coordinator does not adopt these attempts, so the worker drops them, and the coordinator grants
// them again [LEDGER 26].
void FillHeld(const std::vector<AttemptBook::Held>& held, std::uint64_t message_bytes_max,
              v1::Hello* hello);

}  // namespace evergrad::worker
