// Tests the record of the workers that lack an ability that a job needs, without a Job object.
#include "coordinator/jobs/unfit_workers.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kProcess = 5;

TEST_CASE("a worker is set aside for 1, 2, 4 … s, and a repeat in the meantime changes nothing") {
  UnfitWorkers unfit(seconds(3));
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(0)));
  UnfitWorkers::Change change = unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(0));
  CHECK(change.news);
  CHECK(change.aside);
  CHECK(unfit.IsAside(kProcess, std::chrono::milliseconds(999)));
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(1)));
  change = unfit.Add(kProcess, v1::ABILITY, "no GPU", std::chrono::milliseconds(500));
  CHECK_FALSE(change.news);
  CHECK_FALSE(change.aside);
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(1)));
  change = unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(1));
  CHECK_FALSE(change.news);
  CHECK(change.aside);
  CHECK(unfit.IsAside(kProcess, std::chrono::milliseconds(2999)));
  unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(3));
  CHECK(unfit.IsAside(kProcess, std::chrono::milliseconds(5999)));  // the pause never exceeds 3 s
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(6)));
}

TEST_CASE(
    "another missing ability is news even for a worker that is set aside, and its text is "
    "bounded") {
  UnfitWorkers unfit(seconds(60));
  unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(0));
  const UnfitWorkers::Change change =
      unfit.Add(kProcess, v1::INPUT, std::string(2000, 'x'), seconds(0));
  CHECK(change.news);
  CHECK(change.aside);
  REQUIRE(unfit.Of(kProcess) != nullptr);
  CHECK(unfit.Of(kProcess)->missing_ability == v1::INPUT);
  CHECK(unfit.Of(kProcess)->why.size() <= 1003);  // the length includes the ellipsis
}

TEST_CASE(
    "a worker that has finished work is fit, and the same missing ability is not news again") {
  UnfitWorkers unfit(seconds(60));
  unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(0));
  unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(2));
  unfit.SetFit(kProcess, seconds(3));
  CHECK(unfit.Of(kProcess) == nullptr);
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(3)));
  const UnfitWorkers::Change change = unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(4));
  CHECK_FALSE(change.news);
  CHECK(change.aside);
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(5)));  // the pause is one second, as at first
}

TEST_CASE("the record is removed after ten minutes, and when its process is gone") {
  UnfitWorkers unfit(seconds(1));
  unfit.Add(kProcess, v1::ABILITY, "no GPU", seconds(0));
  unfit.Add(6, v1::ABILITY, "no GPU", seconds(602));
  CHECK(unfit.Of(kProcess) == nullptr);
  unfit.Forget(6);
  CHECK(unfit.Of(6) == nullptr);
}

TEST_CASE("a worker can be tried earlier, not later, and its unreachable server is kept") {
  UnfitWorkers unfit(seconds(60));
  unfit.Add(kProcess, v1::REACH, "", seconds(0));
  unfit.TryAgainBy(kProcess, seconds(9));
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(1)));
  unfit.TryAgainBy(kProcess, seconds(0));
  CHECK_FALSE(unfit.IsAside(kProcess, seconds(0)));
  v1::UnreachedServer server;
  server.set_server("s");
  unfit.SetUnreached(kProcess, server);
  REQUIRE(unfit.Of(kProcess)->unreached);
  CHECK(unfit.Of(kProcess)->unreached->server() == "s");
}

}  // namespace
}  // namespace evergrad::coordinator
