// Tests the limits of registrations, which hold for each name and for all names together.
#include <catch2/catch.hpp>

#include "coordinator/membership/membership.h"
#include "coordinator/membership/registration_limit.h"

using namespace evergrad;
using namespace evergrad::coordinator;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Who = RegistrationLimit::Who;

namespace {

TaskHello Worker(const std::string& name, std::uint64_t process) {
  TaskHello hello;
  hello.role = Role::kWorker;
  hello.identity = name;
  hello.process_uid = process;
  hello.host = "h";
  return hello;
}

}  // namespace

TEST_CASE(
    "an identity may register thirty times at once and then twice a second, and a refusal states "
    "when to retry") {
  RegistrationLimit limit({});
  MonoTime now = seconds(1);
  for (int i = 0; i < 30; ++i) CHECK(limit.Take(now, "worker/0", Who::kNewcomer).accepted);
  const RegistrationLimit::Verdict refused = limit.Take(now, "worker/0", Who::kNewcomer);
  CHECK_FALSE(refused.accepted);
  CHECK_FALSE(refused.of_all);
  CHECK(refused.retry_after == milliseconds(500));
  CHECK(limit.Take(now, "worker/1", Who::kNewcomer).accepted);
  CHECK_FALSE(limit.Take(now + milliseconds(490), "worker/0", Who::kNewcomer).accepted);
  CHECK(limit.Take(now + milliseconds(510), "worker/0", Who::kNewcomer).accepted);
}

TEST_CASE(
    "a process that registers again after each disconnection of a bad network is not delayed") {
  RegistrationLimit limit({});
  MonoTime now = seconds(1);
  for (int i = 0; i < 2000; ++i) {
    INFO(i);
    REQUIRE(limit.Take(now += milliseconds(100), "worker/0", Who::kRenews).accepted);
  }
  CHECK(limit.recent(now) < 0.001);
}

TEST_CASE("sessions that end without a message are limited to a few each second, under any names") {
  RegistrationLimit limit({});
  MonoTime now = seconds(1);
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {  // a hundred registrations per second
    now += milliseconds(10);
    if (!limit.Take(now, "worker/f" + std::to_string(i), Who::kNewcomer).accepted) continue;
    ++accepted;
    limit.EndedSilent(now);
  }
  CHECK(accepted < 2048 / 11 + 100 * 100 / 11 + 2);
  CHECK(accepted > 500);
  const RegistrationLimit::Verdict refused = limit.Take(now, "worker/last", Who::kNewcomer);
  if (!refused.accepted) CHECK(refused.of_all);
  CHECK(limit.identities() <= 4096);
}

TEST_CASE("after any number of sessions without a message a newcomer waits ten seconds at most") {
  RegistrationLimit limit({});
  const MonoTime now = seconds(1);
  for (int i = 0; i < 2000; ++i)
    REQUIRE(limit.Take(now, "worker/f" + std::to_string(i), Who::kNewcomer).accepted);
  for (int i = 0; i < 2000; ++i) limit.EndedSilent(now);
  const RegistrationLimit::Verdict refused = limit.Take(now, "worker/0", Who::kNewcomer);
  CHECK_FALSE(refused.accepted);
  CHECK(refused.retry_after <= milliseconds(10'010));
  // A task whose name is known does not have to wait.
  CHECK(limit.Take(now, "worker/1", Who::kKnown).accepted);
  CHECK(limit.Take(now + refused.retry_after, "worker/0", Who::kNewcomer).accepted);
}

TEST_CASE("a cluster of the maximum size starts and reconnects at once without reaching a limit") {
  MembershipOptions options;
  Membership membership(options);
  MonoTime now = seconds(1);
  const auto all_register = [&](std::uint64_t first_process) {
    for (std::uint32_t i = 0; i < options.tasks_max; ++i) {
      const RegisterVerdict verdict =
          membership.Register(now, Worker("w" + std::to_string(i), first_process + i));
      INFO(verdict.message);
      REQUIRE(verdict.accepted);
      membership.Heard(now, verdict.task);
    }
  };
  all_register(1);
  all_register(1);  // a new coordinator, so each process registers again
  now += seconds(10);
  all_register(100'000);  // all hosts were restarted, so each process is new
}

TEST_CASE(
    "a name that registers too often is refused with the time to retry, and other names are "
    "unaffected") {
  MembershipOptions options;
  Membership membership(options);
  const MonoTime now = seconds(1);
  std::uint64_t process = 1;
  for (int i = 0; i < 30; ++i) REQUIRE(membership.Register(now, Worker("0", process++)).accepted);
  const RegisterVerdict refused = membership.Register(now, Worker("0", process++));
  CHECK_FALSE(refused.accepted);
  CHECK(refused.kind == "limit");
  CHECK(refused.too_often);
  CHECK_FALSE(refused.exit);
  CHECK(refused.retry_after > milliseconds(0));
  CHECK(refused.message.find("worker/0") != std::string::npos);
  CHECK(refused.message.find("retry in 500 ms") != std::string::npos);
  CHECK(membership.Register(now, Worker("1", process++)).accepted);
  CHECK(membership.Register(now + seconds(1), Worker("0", process++)).accepted);
}

TEST_CASE("a task that sent a message after its Hello costs only its own token when it ends") {
  MembershipOptions options;
  Membership membership(options);
  MonoTime now = seconds(1);
  const RegisterVerdict spoke = membership.Register(now, Worker("a", 1));
  const RegisterVerdict silent = membership.Register(now, Worker("b", 2));
  membership.Heard(now, spoke.task);
  CHECK(membership.registrations().recent(now) == Approx(2));
  membership.StreamClosed(now, spoke.task);
  membership.StreamClosed(now, silent.task);
  membership.Tick(now);
  membership.Tick(now + options.grace);  // both tasks count as gone now
  CHECK(membership.Find(spoke.task)->state == TaskState::kGone);
  const double refilled = std::chrono::duration<double>(options.grace).count() *
                          membership.registrations().options().all_per_second;
  CHECK(membership.registrations().recent(now + options.grace) ==
        Approx(std::max(0.0, 2 - refilled) + 10).margin(0.01));
}
