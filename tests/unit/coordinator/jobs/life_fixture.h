// The parts of a job and its JobLife, without the calls of the control plane. There is one server,
// and the job has two training closures.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/job_life.h"
#include "coordinator/jobs/job_parts.h"
#include "fake_host.h"

namespace evergrad::coordinator {

struct LifeFixture {
  static constexpr TaskId kServer{1}, kWorker{2};

  explicit LifeFixture(const MemoryStateStore::Options& store = {})
      : host(store), parts(&host, {}, Identity(), &life) {
    JobServer& server = parts.shards.servers()[kServer];
    server.task = kServer;
    server.identity = server.host = "a";
    server.ready = true;
    described.set_train_examples(64);
    described.set_eval_examples(8);
    v1::VariableSpec* variable = described.add_variables();
    variable->set_name("w");
    variable->add_shape(16);
    variable->add_shape(4);
    variable->set_dtype(v1::DTYPE_FLOAT32);
    variable->mutable_optimizer()->set_type("sgd");
    variable->mutable_optimizer()->set_learning_rate(0.1);
  }
  static JobIdentity Identity() {
    JobIdentity id{JobUid(0xabc), {}, "yaml: here\n", "/runs/life"};
    id.spec.name = "life";
    id.spec.data.batch_size = 4;
    id.spec.training.steps_per_closure = 8;
    id.spec.optimizer.type = "sgd";
    id.spec.checkpoint.on = false;
    return id;
  }
  JobWorker& AddWorker() {
    JobWorker& worker = parts.roster.workers()[kWorker];
    worker.task = kWorker;
    worker.identity = "0";
    worker.process = 7;
    worker.ready = true;
    return worker;
  }
  // Starts and describes the job. The job then waits until its server has loaded the shards.
  void Begin() {
    life.Start();
    life.OnDescribed(described);
    REQUIRE(In(JobPhase::kPlacing));
  }
  // Begins the job and lets the server load the shards. The job then trains.
  void Train() {
    Begin();
    for (std::uint32_t p = 0; p < parts.shards.size(); ++p) parts.shards.Give(ShardId(p), true);
    life.Pump();
    REQUIRE(In(JobPhase::kTraining));
  }
  void Fail(const std::string& why, bool user) {
    life.Fail(MakeError(absl::UnavailableError(why), user ? "user" : "internal", "worker/0"), user);
  }
  bool In(JobPhase phase) const { return parts.phases.In(phase); }
  // Returns the messages that were sent to `task` since the last call.
  std::vector<v1::CoordinatorMessage> Take(TaskId task) {
    std::deque<v1::CoordinatorMessage> sent = std::exchange(host.sent[task], {});
    return {sent.begin(), sent.end()};
  }
  void RunFileThread() {
    while (!host.later.empty()) {
      auto work = std::move(host.later.front());
      host.later.pop_front();
      work();
    }
  }
  // Returns the number of events that contain this text.
  std::ptrdiff_t Said(const std::string& text) const {
    const auto& events = parts.events.events();
    return std::count_if(events.begin(), events.end(), [&](const v1::Event& event) {
      return event.text().find(text) != std::string::npos;
    });
  }

  FakeHost host;
  v1::DescribeResult described;
  JobLife life{&parts};
  JobParts parts;
};

}  // namespace evergrad::coordinator
