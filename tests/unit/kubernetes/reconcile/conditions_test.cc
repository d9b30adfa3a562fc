// Tests the conditions of a status.
#include "kubernetes/reconcile/conditions.h"

#include <catch2/catch.hpp>
#include <string>

namespace evergrad::kubernetes {
namespace {

constexpr char kBefore[] = "2026-11-27T10:00:00Z", kNow[] = "2026-11-27T11:00:00Z";

TEST_CASE("a condition has exactly these members") {
  CHECK(ConditionsToJson({{"Running", Truth::kTrue, "JobRunning", "It runs."}}, Json(), 3, kNow)
            .dump() ==
        R"([{"lastTransitionTime":"2026-11-27T11:00:00Z","message":"It runs.",)"
        R"("observedGeneration":3,"reason":"JobRunning","status":"True","type":"Running"}])");
  CHECK(ConditionsToJson({}, Json(), 3, kNow) == Json::array());
}

TEST_CASE("the time of a condition changes with its truth, and with nothing else") {
  const struct {
    const char* name;
    Json before;
    const char* time;
  } cases[] = {
      {"no conditions", Json(), kNow},
      {"not a list", "text", kNow},
      {"another type",
       {{{"type", "Failed"}, {"status", "False"}, {"lastTransitionTime", kBefore}}},
       kNow},
      {"the same truth",
       {{{"type", "Running"},
         {"status", "False"},
         {"lastTransitionTime", kBefore},
         {"reason", "Other"},
         {"message", "other"},
         {"observedGeneration", 1}}},
       kBefore},
      {"another truth",
       {{{"type", "Running"}, {"status", "True"}, {"lastTransitionTime", kBefore}}},
       kNow},
      {"no time", {{{"type", "Running"}, {"status", "False"}}}, kNow},
      {"a time of a wrong type",
       {{{"type", "Running"}, {"status", "False"}, {"lastTransitionTime", 5}}},
       kNow},
      {"items of wrong types",
       {5, "text", {{"type", "Running"}, {"status", "False"}, {"lastTransitionTime", kBefore}}},
       kBefore}};
  for (const auto& one : cases) {
    CAPTURE(one.name);
    const Json list = ConditionsToJson({{"Running", Truth::kFalse, "R", "m"}}, one.before, 2, kNow);
    CHECK(list[0]["lastTransitionTime"] == one.time);
    CHECK(list[0]["reason"] == "R");
    CHECK(list[0]["observedGeneration"] == 2);
  }
}

TEST_CASE("a condition is found by its type") {
  const Json status = {{"conditions", ConditionsToJson({{"A", Truth::kTrue, "a", ""},
                                                        {"B", Truth::kUnknown, "b", ""}},
                                                       Json(), 1, kNow)}};
  CHECK(TextOf(FindCondition(status, "B"), "status") == "Unknown");
  CHECK(FindCondition(status, "C").is_null());
  for (const Json& other : {Json(), Json("text"), Json::array(), Json{{"conditions", 5}}})
    CHECK(FindCondition(other, "A").is_null());
}

TEST_CASE("conditions are the same if their types, truths and reasons are") {
  const auto status = [](const std::vector<Condition>& conditions, std::int64_t generation = 1,
                         const char* now = kNow) {
    return Json{{"conditions", ConditionsToJson(conditions, Json(), generation, now)}};
  };
  const Json one = status({{"A", Truth::kTrue, "a", "m"}, {"B", Truth::kFalse, "b", "m"}});
  CHECK(SameConditions(
      one,
      status({{"A", Truth::kTrue, "a", "other"}, {"B", Truth::kFalse, "b", "m"}}, 2, kBefore)));
  CHECK_FALSE(SameConditions(one, status({{"A", Truth::kTrue, "a", "m"}})));
  CHECK_FALSE(
      SameConditions(one, status({{"B", Truth::kFalse, "b", "m"}, {"A", Truth::kTrue, "a", "m"}})));
  CHECK_FALSE(SameConditions(
      one, status({{"A", Truth::kFalse, "a", "m"}, {"B", Truth::kFalse, "b", "m"}})));
  CHECK_FALSE(
      SameConditions(one, status({{"A", Truth::kTrue, "c", "m"}, {"B", Truth::kFalse, "b", "m"}})));
  CHECK_FALSE(SameConditions(one, Json()));
  CHECK_FALSE(SameConditions(Json(), Json()));
}

}  // namespace
}  // namespace evergrad::kubernetes
