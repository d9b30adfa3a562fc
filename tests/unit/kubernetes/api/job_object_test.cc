// Tests the reading of one object.
#include "kubernetes/api/job_object.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace evergrad::kubernetes {
namespace {

Json Whole() {
  return *ParseJson(R"({
    "apiVersion": "evergrad.dev/v1alpha1", "kind": "TrainingJob",
    "metadata": {"name": "mlp", "namespace": "ns", "uid": "u-1", "resourceVersion": "42",
                 "generation": 3, "deletionTimestamp": "2026-11-27T00:00:00Z",
                 "finalizers": ["a/b", "evergrad.dev/cancel-job"]},
    "spec": {"training": {"epochs": 2}}, "status": {"state": "RUNNING"}})");
}

TEST_CASE("an object has its name, versions, finalizers, spec and status") {
  const auto object = ParseJobObject(Whole());
  REQUIRE(object.status() == absl::OkStatus());
  CHECK(object->name == "mlp");
  CHECK(object->uid == "u-1");
  CHECK(object->resource_version == "42");
  CHECK(object->generation == 3);
  CHECK(object->deleting);
  CHECK(object->finalizers == std::vector<std::string>{"a/b", "evergrad.dev/cancel-job"});
  CHECK(object->HasFinalizer("a/b"));
  CHECK_FALSE(object->HasFinalizer("a"));
  CHECK(object->spec["training"]["epochs"] == 2);
  CHECK(object->status["state"] == "RUNNING");
}

TEST_CASE("an object without a name, a uid or a version is refused by the name of the key") {
  for (const char* key : {"name", "uid", "resourceVersion"}) {
    const auto refused =
        absl::InvalidArgumentError("the object has no text metadata." + std::string(key));
    Json json = Whole();
    json["metadata"].erase(key);
    CHECK(ParseJobObject(json).status() == refused);
    for (const Json& wrong : {Json(), Json(""), Json(5), Json::array(), Json::object()}) {
      json["metadata"][key] = wrong;
      CHECK(ParseJobObject(json).status() == refused);
    }
  }
  for (const char* other : {"null", "[]", "1", "{}", R"({"metadata": "mlp"})"})
    CHECK_FALSE(ParseJobObject(*ParseJson(other)).ok());
}

TEST_CASE("all other members may be absent, or have any type") {
  const char kLeast[] = R"({"metadata": {"name": "a", "uid": "b", "resourceVersion": "c"}})";
  const auto least = ParseJobObject(*ParseJson(kLeast));
  REQUIRE(least.ok());
  CHECK(least->generation == 0);
  CHECK_FALSE(least->deleting);
  CHECK(least->finalizers.empty());
  CHECK(least->spec.is_null());
  CHECK(least->status.is_null());

  Json json = Whole();
  json["metadata"]["generation"] = "3";
  json["metadata"]["finalizers"] = {1, "a", nullptr, {{"b", 2}}};
  json["metadata"]["deletionTimestamp"] = nullptr;
  json["spec"] = "text";
  json["status"] = Json::array({1});
  const auto odd = ParseJobObject(json);
  REQUIRE(odd.ok());
  CHECK(odd->generation == 0);
  CHECK(odd->finalizers == std::vector<std::string>{"a"});
  CHECK_FALSE(odd->deleting);
  CHECK(odd->spec == "text");
  CHECK(odd->status == Json::array({1}));
  json["metadata"]["finalizers"] = "a";
  CHECK(ParseJobObject(json)->finalizers.empty());
}

}  // namespace
}  // namespace evergrad::kubernetes
