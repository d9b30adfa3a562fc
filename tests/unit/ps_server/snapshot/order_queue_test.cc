#include "ps_server/snapshot/order_queue.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace evergrad::ps_server {
namespace {

using Orders = OrderQueue<std::string>;
using Earlier = Orders::Earlier;

constexpr Orders::Key kFirst{JobUid(1), ShardId(1)}, kSecond{JobUid(1), ShardId(2)},
    kThird{JobUid(2), ShardId(1)};

// A queue of orders. Its first order is in progress until the test lets it end. Later orders end at
// once.
struct Stage {
  RealClock clock;
  metrics::Registry registry;
  metrics::Limit limit{registry, "orders", "Orders", 2};
  runtime::WaitableEvent begun, go, last_begun;
  std::vector<std::string> performed;  // written by the queue's thread
  bool unwanted = false;               // the result of Unwanted at the end of the first order
  std::function<void(Orders::Entry&)> at_first_end;
  std::unique_ptr<Orders> orders;

  explicit Stage(Earlier earlier) {
    orders = std::make_unique<Orders>(
        Orders::Options{.name = "test",
                        .earlier = earlier,
                        .orders_max = 2,
                        .too_many = "too many orders wait",
                        .limit = &limit,
                        .clock = &clock,
                        .perform = [this](Orders::Entry entry) { Perform(std::move(entry)); }});
    REQUIRE(orders->Submit(kFirst, "first").ok());
    begun.Wait();
  }
  ~Stage() { go.Set(); }  // The queue's thread must end even if a check of the test has failed.
  void Perform(Orders::Entry entry) {
    performed.push_back(entry.order);
    if (entry.order == "last") last_begun.Set();
    if (performed.size() > 1) return;
    begun.Set();
    go.Wait();
    unwanted = orders->Unwanted();
    if (at_first_end) at_first_end(entry);
  }
  // Lets the queue perform all orders, and waits for the end of its thread. Returns the orders that
  // were performed.
  std::vector<std::string> PerformAll() {
    go.Set();
    last_begun.Wait();
    CHECK(orders->End().empty());
    return performed;
  }
};

using Texts = std::vector<std::string>;

TEST_CASE("orders are performed in order of arrival, and refused at the limit") {
  Stage stage(Earlier::kKept);
  CHECK(stage.orders->Submit(kSecond, "second").value() == std::nullopt);
  CHECK(stage.orders->Submit(kSecond, "last").value() == std::nullopt);
  const auto refused = stage.orders->Submit(kThird, "refused");
  CHECK(refused.status() == absl::ResourceExhaustedError("too many orders wait: max=2"));
  CHECK(stage.orders->waiting() == 2);
  CHECK(stage.limit.current.value() == 2);
  CHECK(stage.limit.refused.value() == 1);
  CHECK(stage.PerformAll() == Texts{"first", "second", "last"});
  CHECK_FALSE(stage.unwanted);
  CHECK(stage.limit.current.value() == 0);
}

TEST_CASE("a newer order replaces a waiting one, and may end the one in progress") {
  const bool ended = GENERATE(false, true);
  Stage stage(ended ? Earlier::kReplacedAndEnded : Earlier::kReplacedWhereWaiting);
  CHECK(stage.orders->Submit(kSecond, "old").value() == std::nullopt);
  CHECK(stage.orders->Submit(kFirst, "last").value() == std::nullopt);
  CHECK(stage.orders->Submit(kSecond, "new").value() == "old");
  CHECK(stage.PerformAll() == Texts{"first", "new", "last"});
  CHECK(stage.unwanted == ended);
}

TEST_CASE("Cancel returns the waiting orders of a job and ends the one in progress") {
  Stage stage(Earlier::kKept);
  REQUIRE(stage.orders->Submit(kSecond, "second").ok());
  REQUIRE(stage.orders->Submit(kThird, "last").ok());
  CHECK(stage.orders->Cancel(JobUid(1), ShardId(3)).empty());
  CHECK_FALSE(stage.orders->Unwanted());
  CHECK(stage.orders->Cancel(JobUid(1), std::nullopt) == Texts{"second"});
  CHECK(stage.PerformAll() == Texts{"first", "last"});
  CHECK(stage.unwanted);
}

TEST_CASE("an order with a retry waits behind the others until it is due") {
  Stage stage(Earlier::kReplacedWhereWaiting);
  auto again = Orders::Again::kUnwanted;
  stage.at_first_end = [&](Orders::Entry& entry) {
    entry.order = "last";
    entry.due = stage.clock.Now() + std::chrono::milliseconds(1);
    again = stage.orders->PerformAgain(entry);
  };
  REQUIRE(stage.orders->Submit(kSecond, "second").ok());
  CHECK(stage.PerformAll() == Texts{"first", "second", "last"});
  CHECK(again == Orders::Again::kQueued);
}

TEST_CASE("a replaced or cancelled order is not retried") {
  const bool cancelled = GENERATE(false, true);
  Stage stage(Earlier::kReplacedWhereWaiting);
  auto again = Orders::Again::kQueued;
  stage.at_first_end = [&](Orders::Entry& entry) { again = stage.orders->PerformAgain(entry); };
  if (cancelled) stage.orders->Cancel(JobUid(1), ShardId(1));
  REQUIRE(stage.orders->Submit(kFirst, "last").ok());
  CHECK(stage.PerformAll() == Texts{"first", "last"});
  CHECK(again == (cancelled ? Orders::Again::kUnwanted : Orders::Again::kReplaced));
}

TEST_CASE("the end returns the waiting orders unperformed") {
  Stage stage(Earlier::kKept);
  REQUIRE(stage.orders->Submit(kThird, "third").ok());
  REQUIRE(stage.orders->Submit(kSecond, "second").ok());
  stage.orders->Stop();
  stage.go.Set();
  CHECK(stage.orders->End() == Texts{"third", "second"});
  CHECK(stage.orders->End().empty());
  CHECK(stage.performed == Texts{"first"});
  CHECK(stage.unwanted);
}

}  // namespace
}  // namespace evergrad::ps_server
