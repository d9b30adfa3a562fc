// Tests the turn in which Dones are committed together and then answered, without a Job object.
#include "coordinator/jobs/done_turn.h"

#include <catch2/catch.hpp>

#include "part_fixture.h"

namespace evergrad::coordinator {
namespace {

struct Fixture : PartFixture {
  std::vector<v1::CoordinatorMessage> Answers() { return Take(TaskId(7)); }
  DoneTurn turn{Part()};
};

TEST_CASE("the Dones of a turn are one commit, and are answered in order behind it") {
  Fixture f;
  CHECK_FALSE(f.turn.End());
  CHECK(f.turn.Commit());
  CHECK(f.said.empty());
  f.turn.Add(TaskId(7), ClosureId(1), {1, 2}, false);
  f.turn.Add(TaskId(7), ClosureId(2), {1, 3}, true);
  CHECK(f.turn.open());
  CHECK(f.Answers().empty());
  CHECK(f.turn.End());
  CHECK(f.said == std::vector<std::string>{"persist"});
  CHECK_FALSE(f.turn.open());
  const auto answers = f.Answers();
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].done_answer().closure() == 1);
  CHECK_FALSE(answers[0].done_answer().superseded());
  CHECK(answers[1].done_answer().closure() == 2);
  CHECK(answers[1].done_answer().superseded());
  CHECK(answers[1].done_answer().job_uid() == f.id.uid.value());
}

TEST_CASE("an early commit leaves the answers to the end of the turn") {
  Fixture f;
  f.turn.Add(TaskId(7), ClosureId(1), {1, 2}, false);
  CHECK(f.turn.Commit());
  CHECK(f.turn.open());
  CHECK(f.Answers().empty());
  CHECK(f.turn.End());
  CHECK(f.Answers().size() == 1);
}

TEST_CASE("nothing is answered of a turn that the store has refused") {
  Fixture f;
  f.store_fails = true;
  f.turn.Add(TaskId(7), ClosureId(1), {1, 2}, false);
  CHECK_FALSE(f.turn.End());
  CHECK_FALSE(f.turn.open());
  f.store_fails = false;
  f.turn.Open();  // a Done that is deferred also opens a turn
  CHECK(f.turn.End());
  CHECK(f.Answers().empty());
}

TEST_CASE("a failpoint loses an answer or delays it") {
  Fixture f;
  REQUIRE(f.host.points.Arm("coordinator.before_done_answer=1*delay(50)", 1).ok());
  f.turn.Add(TaskId(7), ClosureId(1), {1, 2}, false);
  CHECK(f.turn.End());
  f.turn.SendDelayed(f.host.Now());
  CHECK(f.Answers().empty());
  f.host.clock.Advance(std::chrono::milliseconds(50));
  f.turn.SendDelayed(f.host.Now());
  CHECK(f.Answers().size() == 1);
}

}  // namespace
}  // namespace evergrad::coordinator
