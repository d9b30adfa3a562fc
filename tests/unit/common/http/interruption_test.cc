#include "common/http/interruption.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "common/time/clock.h"

namespace evergrad::http {
namespace {

using std::chrono::milliseconds;

TEST_CASE("a wait lasts for its time") {
  Interruption interruption;
  const RealClock clock;
  const MonoTime begin = clock.Now();
  CHECK(interruption.Wait(milliseconds(20)));
  CHECK(clock.Now() - begin >= milliseconds(20));
  CHECK(interruption.Wait(milliseconds(0)));
  CHECK(interruption.Wait(milliseconds(-1)));
  CHECK_FALSE(interruption.interrupted());
}

TEST_CASE("an interruption ends the present waits and all later ones") {
  Interruption interruption;
  bool first = true, second = true;
  std::thread one([&] { first = interruption.Wait(milliseconds::max()); });
  std::thread two([&] { second = interruption.Wait(std::chrono::hours(1)); });
  interruption.Interrupt();
  interruption.Interrupt();
  one.join();
  two.join();
  CHECK_FALSE(first);
  CHECK_FALSE(second);
  CHECK(interruption.interrupted());
  CHECK_FALSE(interruption.Wait(milliseconds::max()));
  CHECK_FALSE(interruption.Wait(milliseconds(0)));
}

}  // namespace
}  // namespace evergrad::http
