// A worker process. It runs the attempts of its AttemptBook: it pulls, pushes and reports.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/task.h"
#include "worker/runner/attempt_book.h"

namespace evergrad::simulation {

class Network;

class SimulatedWorker : public Task {
 public:
  // `walk` must outlive the worker.
  SimulatedWorker(WalkContext& walk, int number);

  void Handle(Down m);
  // Does one step of the work that the worker holds: begins an attempt, declares an update, or
  // sends a push.
  void Act(Network& network);
  void HandleAnswer(const Call& answer);
  void ForgetJobs(JobUid newest) override;
  // Prints the state at the end of a walk that broke a promise.
  void TraceState() const;

 private:
  struct Cached {  // the result of the last pull, by reference and as a copy
    ps_server::PullResult read;
    std::vector<float> values;
  };

  void SendHello() override;
  void OnAdopted(Down m);
  // Called when a shard map arrives. Versions and tags of two jobs cannot be compared.
  void OnMap(const ShardMap& map);
  // Sends a message that may follow only an accepted Hello. Before that, the message is lost.
  void Tell(Up m) {
    if (welcomed) out.Push(std::move(m));
  }
  Up DoneOf(const worker::DoneReport& report) const;

  // Does the next step of a training closure.
  void Train(const Work& work, Network& network);
  void DeclareUpdate(const Work& work, const Network& network);
  void SendPush(const Work& work, std::uint32_t update, std::uint32_t p, Network& network);
  void FinishIfSettled();
  // Pulls the shard, and checks line 13: a pull changes nothing, (start, vlsn) identifies the
  // returned values, and values that were returned before have not changed.
  void PullOne(std::uint32_t p, const Network& network);
  void CheckCachedValues(const Cached& cached);
  // Does the next step of an evaluation closure, which reads the present values of the shards one
  // after another.
  void Evaluate(const Network& network);
  // Returns whether the values were read. If not, the worker tries again under a newer map.
  bool ReadForEvaluation(std::uint32_t p, const Network& network);

  worker::AttemptBook book_;
  std::uint32_t declared_ = 0;          // updates that the running attempt has declared
  std::shared_ptr<Evaluated> reading_;  // values of the running evaluation closure
  // results of evaluation closures whose Dones are unanswered
  std::map<Attempt, std::shared_ptr<const Evaluated>> evaluated_;
  // reports of training closures whose Dones are unanswered
  std::map<Attempt, coordinator::UpdateAccount::TouchedLess> touched_less_;
  std::array<MapVersion, kShards> wait_for_{};
  std::array<Cached, kShards> cache_;
};

}  // namespace evergrad::simulation
