// Reports the ends of attempts to the coordinator: Dropped, Failed, or Done. A Done is kept, and
// sent again in each session, until the coordinator has acknowledged it [LEDGER 16]. Control
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
  // All objects outlive the reports. `send` returns false without a session.
  struct Environment {
    std::function<bool(v1::TaskMessage)> send;
    log::Logger* logger = nullptr;
    RunnerMetrics* metrics = nullptr;
    std::uint64_t message_bytes_max = 0;  // of the session
  };
  explicit AttemptReports(Environment environment) : env_(std::move(environment)) {}

  struct Dropped {
    std::string reason;
    std::optional<ShardId> superseded_by = std::nullopt;  // the shard that answered SUPERSEDED
    log::Level level = log::Level::kInfo;
  };
  // Without a session neither message is sent; the coordinator then misses the attempt in the next
  // Hello. `about` names the job and the closure.
  void SendDropped(const Work& work, const Dropped& dropped, const log::Context& about);
  // `identity` is this worker's.
  void SendFailed(const Work& work, const absl::Status& status, const std::string& identity,
                  const log::Context& about);

  // UserError if `done` exceeds the size of a message and could never be sent.
  absl::Status CheckSize(const Work& work, const v1::Done& done) const;
  // Keeps `done` for SendDone, which sends it after a heartbeat, because a job may be over before
  // the next heartbeat is due.
  void KeepDone(Attempt attempt, v1::Done done) { done_[attempt] = std::move(done); }
  void SendDone(Attempt attempt, v1::WorkerProgress progress);  // EG_CHECK that it is kept
  void Forget(Attempt attempt) { done_.erase(attempt); }
  void ForgetJob(JobUid job);

 private:
  const Environment env_;
  std::map<Attempt, v1::Done> done_;  // the attempts of AttemptBook::Unanswered()
};

// Lists the held attempts, as many as fit into a message: a larger Hello would be refused at every
// dial. The ones left out, which are the last to begin, are not adopted; they are dropped here, and
// the coordinator grants them again [LEDGER 26].
void FillHeld(const std::vector<AttemptBook::Held>& held, std::uint64_t message_bytes_max,
              v1::Hello* hello);

}  // namespace evergrad::worker
