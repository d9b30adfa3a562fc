// Tests a round of closures that only read, without a Job object.
#include "coordinator/jobs/reading_round.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

constexpr Attempt kFirst{1, 1}, kSecond{1, 2};
const TaskId kA(7), kB(8);

ReadingRound::Closure* Grant(ReadingRound* round, TaskId worker, Attempt attempt) {
  ReadingRound::Closure* closure = round->Waiting(MonoTime{0});
  REQUIRE(closure != nullptr);
  closure->worker = worker;
  closure->attempt = attempt;
  return closure;
}

TEST_CASE("closures are granted in order and once each, and the round counts the remaining ones") {
  ReadingRound round;
  round.Begin(2, MonoTime{0});
  ReadingRound::Closure* first = Grant(&round, kA, kFirst);
  ReadingRound::Closure* second = Grant(&round, kA, kSecond);
  CHECK(second->number == first->number + 1);
  CHECK(round.Waiting(MonoTime{0}) == nullptr);
  v1::ClosureMetrics metrics;
  metrics.set_examples(3);
  round.Accept(second, metrics);
  CHECK(round.left() == 1);
  CHECK(round.closures()[1].metrics.examples() == 3);
  CHECK(round.Running(second->number, kSecond) == nullptr);  // the closure has ended
}

TEST_CASE("only the newest attempt counts, and only from its worker") {
  ReadingRound round;
  round.Begin(1, MonoTime{0});
  const std::uint64_t number = Grant(&round, kA, kFirst)->number;
  CHECK(round.HeldBy(kA, number, kFirst) != nullptr);
  CHECK(round.HeldBy(kB, number, kFirst) == nullptr);
  CHECK(round.HeldBy(kA, number, kSecond) == nullptr);
  round.Release(kB);
  CHECK(round.Running(number, kFirst) != nullptr);
  round.Release(kA);
  CHECK(round.Running(number, kFirst) == nullptr);
  // If a closure is not granted, it has no running attempt, not even the attempt (0,0).
  CHECK(round.Running(number, Attempt{}) == nullptr);
  Grant(&round, kB, kSecond);
  CHECK(round.HeldBy(kB, number, kSecond) != nullptr);
  round.ReleaseAll();
  CHECK(round.Waiting(MonoTime{0}) != nullptr);
}

TEST_CASE("a number of a former round is not found") {
  ReadingRound round;
  round.Begin(1, MonoTime{0});
  const std::uint64_t number = Grant(&round, kA, kFirst)->number;
  round.Begin(1, MonoTime{0});
  CHECK(round.Find(number) == nullptr);
  CHECK(round.Find(number + (1ull << 32)) != nullptr);
  CHECK(round.Find(number + (1ull << 32) + 1) == nullptr);
  round.Clear();
  CHECK(round.empty());
  CHECK(round.left() == 0);
}

TEST_CASE("a closure waits for its time") {
  ReadingRound round;
  round.Begin(1, MonoTime{5});
  CHECK(round.Waiting(MonoTime{4}) == nullptr);
  CHECK(round.Waiting(MonoTime{5}) != nullptr);
}

}  // namespace
}  // namespace evergrad::coordinator
