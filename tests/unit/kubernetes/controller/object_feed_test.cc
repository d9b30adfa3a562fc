// Tests the newest versions of objects on their way to the controller.
#include "kubernetes/controller/object_feed.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace evergrad::kubernetes {
namespace {

using std::chrono::seconds;

JobObject Object(const std::string& name, const std::string& version) {
  JobObject object;
  object.name = name;
  object.resource_version = version;
  return object;
}

// Returns "a=1 b=-".
std::string Taken(ObjectFeed* feed) {
  std::string text;
  for (const auto& [name, object] : feed->Take(seconds(0)))
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "=",
                    object ? object->resource_version : "-");
  return text;
}

TEST_CASE("changes are taken once, and several changes of one object are one") {
  ObjectFeed feed;
  CHECK(Taken(&feed) == "");
  feed.Put(Object("b", "1"));
  feed.Put(Object("a", "2"));
  feed.Put(Object("a", "3"));
  CHECK(Taken(&feed) == "a=3 b=1");
  CHECK(Taken(&feed) == "");
  feed.Put(Object("a", "4"));
  feed.Remove("a");
  CHECK(Taken(&feed) == "a=-");
  feed.Remove("a");
  feed.Put(Object("a", "5"));
  CHECK(Taken(&feed) == "a=5");
}

TEST_CASE("a list removes the objects that it does not have, taken or not") {
  ObjectFeed feed;
  CHECK_FALSE(feed.listed());
  feed.Replace({});
  CHECK(feed.listed());
  CHECK(Taken(&feed) == "");
  feed.Put(Object("a", "1"));
  feed.Put(Object("b", "1"));
  CHECK(Taken(&feed) == "a=1 b=1");
  feed.Put(Object("c", "1"));
  feed.Replace({Object("b", "2"), Object("d", "1")});
  CHECK(Taken(&feed) == "a=- b=2 c=- d=1");
  feed.Replace({Object("b", "2")});
  CHECK(Taken(&feed) == "b=2 d=-");
  feed.Remove("b");
  feed.Replace({});
  CHECK(Taken(&feed) == "b=-");
}

TEST_CASE("a change and a stop end a wait") {
  ObjectFeed feed;
  ObjectFeed::Changes changes;
  std::thread waiter([&] { changes = feed.Take(seconds(100)); });
  feed.Put(Object("a", "1"));
  waiter.join();
  // A wait may end without a change, and the next one then returns it.
  if (changes.empty()) changes = feed.Take(seconds(100));
  CHECK(changes.size() == 1);
  CHECK_FALSE(feed.stopped());
  std::thread stopped([&] { changes = feed.Take(seconds(100)); });
  feed.Stop();
  stopped.join();
  CHECK(feed.stopped());
  CHECK(feed.Take(seconds(100)).empty());
}

}  // namespace
}  // namespace evergrad::kubernetes
