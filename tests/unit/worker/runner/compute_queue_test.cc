#include "worker/runner/compute_queue.h"
#include "tests/support/manual_executor.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

namespace evergrad::worker {
namespace {

TEST_CASE("work runs on the compute executor, and resumes with its result on the control one") {
  ManualClock clock;
  runtime::ManualExecutor control(&clock), compute(&clock);
  ComputeQueue queue(&control, &compute);
  std::vector<std::string> order;
  const auto count = [&](const std::string& name) {
    queue.Run(
        [&order, name] {
          order.push_back("compute " + name);
          return std::make_unique<std::string>(name);  // results are moved, never copied
        },
        [&order, &queue](std::unique_ptr<std::string> result) {
          order.push_back("resume " + *result + (queue.busy() ? " busy" : ""));
        });
  };
  CHECK_FALSE(queue.busy());
  count("a");
  count("b");
  queue.Post([&order] { order.push_back("post"); });
  CHECK(queue.busy());
  CHECK(control.RunReady() == 0);
  CHECK(compute.RunReady() == 3);
  CHECK(queue.busy());  // the queue is busy until both callers have resumed
  CHECK(control.RunReady() == 2);
  CHECK(order ==
        std::vector<std::string>{"compute a", "compute b", "post", "resume a busy", "resume b"});
  CHECK_FALSE(queue.busy());
}

}  // namespace
}  // namespace evergrad::worker
