// Tests grants of closures to workers, and recalls of grants, without a Job object.
#include "coordinator/jobs/granter.h"

#include <catch2/catch.hpp>
#include <deque>
#include <string>
#include <vector>

namespace evergrad::coordinator {
namespace {

// The policy names each closure by the function that it needs. "" means that any worker can run the
// closure. The closures in `again` were granted before, and those in `fresh` were not.
class Policy final : public GrantPolicy {
 public:
  bool MayTake(const JobWorker& worker) override { return worker.ready; }
  std::uint32_t LimitOf(const JobWorker&) override { return limit; }
  bool Blocked() override { return blocked; }
  bool RegrantsWait() override { return !again.empty(); }
  Given Grant(JobWorker& worker, bool new_ones) override {
    for (std::deque<std::string>* queue : {&again, &fresh}) {
      if (queue == &fresh && !new_ones) break;
      for (auto it = queue->begin(); it != queue->end(); ++it) {
        if (!it->empty() && worker.functions.count(*it) == 0) continue;
        worker.Take(Attempt{1, ++attempts},
                    {ClosureId(attempts), v1::TRAIN, MonoTime{0}, false, bytes, queue == &again});
        order.push_back(worker.task.value());
        queue->erase(it);
        return Given::kGranted;
      }
    }
    return functions ? Given::kNothingForIt : Given::kNothing;
  }
  bool IsIdle(const JobWorker& worker) override { return worker.ready; }
  bool CanRun(const JobWorker& worker, ClosureId closure) override {
    return worker.identity != "picky" || closure == ClosureId(wanted);
  }
  void Recall(JobWorker& worker, Attempt attempt) override {
    worker.held.at(attempt).recalled = true;
    ++worker.recalled;
    recalled.emplace_back(worker.task.value(), attempt.n);
  }

  std::deque<std::string> again, fresh;
  std::uint32_t limit = 2;
  bool blocked = false, functions = false;
  std::uint64_t attempts = 0, bytes = 0, wanted = 0;
  std::vector<std::uint64_t> order;  // the workers' tasks in the order of the grants
  std::vector<std::pair<std::uint64_t, std::uint64_t>> recalled;
};

struct Fixture {
  explicit Fixture(std::size_t count) {
    for (std::uint64_t task = 1; task <= count; ++task) {
      workers[TaskId(task)].task = TaskId(task);
      workers[TaskId(task)].ready = true;
    }
  }
  JobWorker& At(std::uint64_t task) { return workers.at(TaskId(task)); }
  void Hold(std::uint64_t task, std::uint64_t closure, bool recalled = false) {
    At(task).Take(Attempt{1, closure}, {ClosureId(closure), v1::TRAIN, MonoTime{0}, recalled});
  }
  JobWorkers workers;
  Policy policy;
  Granter granter;
};

TEST_CASE("the worker that holds least gets work first, and among equals the oldest registration") {
  Fixture f(3);
  f.Hold(1, 100);
  f.policy.fresh.assign(10, "");
  CHECK(f.granter.Grant(f.workers, f.policy) == Granter::Outcome::kFull);
  CHECK(f.policy.order == std::vector<std::uint64_t>{2, 3, 1, 2, 3});
}

TEST_CASE(
    "a worker that may not get work gets none, and the outcome reports that no work remains") {
  Fixture f(2);
  f.At(1).ready = false;
  f.policy.fresh.assign(1, "");
  CHECK(f.granter.Grant(f.workers, f.policy) == Granter::Outcome::kNothingLeft);
  CHECK(f.policy.order == std::vector<std::uint64_t>{2});
}

TEST_CASE("while grants are blocked no worker gets work") {
  Fixture f(1);
  f.policy.fresh.assign(1, "");
  f.policy.blocked = true;
  CHECK(f.granter.Grant(f.workers, f.policy) == Granter::Outcome::kBlocked);
  CHECK(f.policy.order.empty());
}

TEST_CASE("up to two closures that were granted before exceed a worker's limit") {
  Fixture f(1);
  f.Hold(1, 100);
  f.Hold(1, 101);
  f.policy.again.assign(3, "");
  f.policy.fresh.assign(1, "");
  CHECK(f.granter.Grant(f.workers, f.policy) == Granter::Outcome::kFull);
  CHECK(f.At(1).held.size() == 4);
  CHECK(f.At(1).regrants == 2);
  CHECK(f.policy.fresh.size() == 1);
}

TEST_CASE("beyond the first closure a worker holds at most 4 MiB of arguments") {
  Fixture f(1);
  f.policy.limit = 10;
  f.policy.bytes = 3u << 20;
  f.policy.fresh.assign(5, "");
  f.granter.Grant(f.workers, f.policy);
  CHECK(f.At(1).held.size() == 2);
  CHECK(f.At(1).held_bytes == 6u << 20);
}

TEST_CASE(
    "a closure that no worker with the same functions can run is considered once, and others are "
    "granted") {
  Fixture f(3);
  f.policy.functions = true;
  f.At(1).functions = {"a"};
  f.At(2).functions = {"a"};
  f.At(3).functions = {"b"};
  f.policy.fresh = {"b", "b", "c"};
  CHECK(f.granter.Grant(f.workers, f.policy) == Granter::Outcome::kNothingLeft);
  CHECK(f.policy.order == std::vector<std::uint64_t>{3, 3});
}

TEST_CASE("an idle worker gets the closure that the busiest worker would begin last") {
  Fixture f(3);
  for (const std::uint64_t c : {1, 2, 3}) f.Hold(2, c);
  for (const std::uint64_t c : {4, 5}) f.Hold(3, c);
  Granter::Recall(f.workers, f.policy);
  CHECK(f.policy.recalled == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{2, 3}});
  Granter::Recall(f.workers, f.policy);  // a recall is already in flight
  CHECK(f.policy.recalled.size() == 1);
}

TEST_CASE("a worker keeps its only closure, and closures that the receiver cannot run") {
  Fixture f(2);
  f.Hold(2, 1);
  Granter::Recall(f.workers, f.policy);
  CHECK(f.policy.recalled.empty());
  f.Hold(2, 2);
  f.Hold(2, 3);
  f.At(1).identity = "picky";
  f.policy.wanted = 2;
  Granter::Recall(f.workers, f.policy);
  CHECK(f.policy.recalled == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{2, 2}});
}

TEST_CASE("a worker's sums follow the closures that it holds") {
  JobWorker worker;
  worker.Take(Attempt{1, 1}, {ClosureId(1), v1::TRAIN, MonoTime{0}, true, 10, true});
  worker.Take(Attempt{1, 2}, {ClosureId(2), v1::TRAIN, MonoTime{0}, false, 5, false});
  CHECK(worker.recalled == 1);
  CHECK(worker.regrants == 1);
  CHECK(worker.held_bytes == 15);
  CHECK(worker.Drop(Attempt{1, 1}));
  CHECK_FALSE(worker.Drop(Attempt{1, 1}));
  CHECK(worker.recalled == 0);
  CHECK(worker.regrants == 0);
  CHECK(worker.held_bytes == 5);
  worker.DropAll();
  CHECK(worker.held.empty());
  CHECK(worker.held_bytes == 0);
}

}  // namespace
}  // namespace evergrad::coordinator
