// Tests how workers are divided among jobs. The tests use a table of cases, and count the closures
// that the jobs complete over time.
#include <catch2/catch.hpp>

#include "coordinator/scheduler/shares.h"

using namespace evergrad::coordinator;

namespace {

constexpr std::uint32_t kMany = 1000;
using Targets = std::vector<std::uint32_t>;

// Returns the number of closures that each job completes in `turns` turns. In each turn every
// worker ends one closure, and then the workers are divided anew.
std::vector<double> Closures(std::uint32_t workers, std::vector<JobDemand> jobs, int turns) {
  std::vector<double> closures(jobs.size(), 0);
  for (int turn = 0; turn < turns; ++turn) {
    const Targets targets = WorkerTargets(workers, jobs, true);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].has = targets[i];
      jobs[i].served += targets[i] / jobs[i].share;
      closures[i] += targets[i];
    }
  }
  return closures;
}

}  // namespace

TEST_CASE(
    "workers are divided by shares up to each job's need, with at least one each if there are "
    "enough") {
  struct Row {
    std::uint32_t workers;
    std::vector<JobDemand> jobs;
    Targets want;
  };
  const std::vector<Row> rows = {
      {4, {}, {}},
      {4, {{1, kMany}}, {4}},
      {4, {{1, 0}}, {0}},
      {4, {{3, kMany}, {1, kMany}}, {3, 1}},
      {8, {{3, kMany}, {1, kMany}}, {6, 2}},
      {2, {{3, kMany}, {1, kMany}}, {1, 1}},  // each job gets one worker
      {10, {{100, kMany}, {1, kMany}, {1, kMany}}, {8, 1, 1}},
      {8, {{1, kMany}, {1, 2}}, {6, 2}},  // one job can use only two workers
      {8, {{1, kMany}, {1, 0}}, {8, 0}},  // the second job waits at its barrier and can use none
      {8, {{1, 3}, {1, 2}}, {3, 2}},      // three workers are of no use to either job
      {3, {{1, kMany}, {1, kMany}}, {2, 1}},
      // With equal shares, the third worker stays with the job that has it.
      {3, {{1, kMany, 1}, {1, kMany, 2}}, {1, 2}},
      {1, {{1, kMany}, {1, kMany, 1}}, {0, 1}},
      {0, {{1, kMany}, {1, kMany}}, {0, 0}},
      {1,
       {{5, kMany, 0, 0}, {1, 1, 1, 9, true}},
       {0, 1}},  // a deterministic job keeps its only worker
      {4, {{5, kMany, 0, 0}, {1, 1, 1, 9, true}}, {3, 1}},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i);
    CHECK(WorkerTargets(rows[i].workers, rows[i].jobs, false) == rows[i].want);
  }
  // The last argument says that the turn of the present division is over, so workers may move.
  CHECK(WorkerTargets(3, {{1, kMany, 1, 5}, {1, kMany, 2, 10}}, true) == Targets{2, 1});
  CHECK(WorkerTargets(1, {{5, kMany, 0, 0}, {1, 1, 1, 9, true}}, true) == Targets{0, 1});
}

TEST_CASE("shares of 3 to 1 give about three closures to one, for any number of workers") {
  for (const std::uint32_t workers : {1u, 4u, 5u, 6u, 7u, 9u, 100u}) {
    const std::vector<double> closures = Closures(workers, {{3, kMany}, {1, kMany}}, 1000);
    INFO("workers " << workers << ": " << closures[0] << " " << closures[1]);
    CHECK(closures[0] / closures[1] == Approx(3).epsilon(0.03));
    CHECK(closures[0] + closures[1] == 1000.0 * workers);
  }
}

TEST_CASE("jobs take turns if there are fewer workers than jobs") {
  const std::vector<double> closures = Closures(2, {{1, kMany}, {1, kMany}, {2, kMany}}, 1000);
  CHECK(closures[0] == Approx(500).epsilon(0.03));
  CHECK(closures[1] == Approx(500).epsilon(0.03));
  CHECK(closures[2] == Approx(1000).epsilon(0.03));
}

TEST_CASE("a change by one worker moves few other workers") {
  std::vector<JobDemand> jobs = {{1, kMany}, {2, kMany}, {3, kMany}, {1, kMany}};
  for (std::uint32_t workers = 4; workers < 200; ++workers) {
    const Targets targets = WorkerTargets(workers, jobs, false);
    std::uint32_t sum = 0, left = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      sum += targets[i];
      left += jobs[i].has > targets[i] ? jobs[i].has - targets[i] : 0;
      jobs[i].has = targets[i];
    }
    CHECK(sum == workers);
    CHECK(left <= 2);
  }
}
