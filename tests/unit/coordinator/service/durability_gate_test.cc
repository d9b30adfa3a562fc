#include "coordinator/service/durability_gate.h"

#include <catch2/catch.hpp>

#include <string>

#include "slow_store.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

struct Stage {
  SlowStore store;
  bool commits = true;
  int committed = 0;
  DurabilityGate gate{&store, 100, [this] {
                        ++committed;
                        return commits;
                      }};
  std::string ran;
  std::function<void()> Say(const std::string& what) {
    return [this, what] { ran += what; };
  }
};

}  // namespace

TEST_CASE("a call runs at once if all commits are durable, or else after its commits, in order") {
  Stage stage;
  stage.gate.WhenDurable(stage.Say("a"));
  CHECK(stage.ran == "a");
  stage.store.accepted_now = 1;
  stage.gate.WhenDurable(stage.Say("b"));
  CHECK_FALSE(stage.gate.IsOpen());
  stage.store.accepted_now = 2;
  stage.gate.WhenDurable(stage.Say("c"));
  stage.store.durable_now = 1;
  // "d" waits only for commit 2, which is durable. It must still run after "c", which was added
  // first.
  stage.gate.Release();
  CHECK(stage.ran == "ab");
  stage.store.durable_now = 2;
  stage.gate.WhenDurable(stage.Say("d"));
  CHECK(stage.ran == "ab");
  stage.gate.Release();
  CHECK(stage.ran == "abcd");
  CHECK(stage.gate.IsOpen());
}

TEST_CASE("changes are committed before a message passes, and none passes after a failure") {
  Stage stage;
  stage.gate.WhenDurable(stage.Say("a"));
  CHECK(stage.committed == 1);
  stage.commits = false;
  stage.gate.WhenDurable(stage.Say("b"));
  CHECK_FALSE(stage.gate.IsOpen());
  stage.gate.Release();
  CHECK(stage.ran == "a");
}

TEST_CASE("the messages in the gate are bounded in bytes") {
  Stage stage;
  stage.store.accepted_now = 1;
  CHECK(stage.gate.Admit(60, stage.Say("a")));
  CHECK(stage.gate.Admit(40, stage.Say("b")));
  CHECK(stage.gate.bytes() == 100);
  CHECK_FALSE(stage.gate.Admit(1, stage.Say("c")));
  stage.store.durable_now = 1;
  stage.gate.Release();
  CHECK(stage.gate.bytes() == 0);
  CHECK(stage.gate.Admit(100, stage.Say("d")));  // nothing is waiting, so "d" runs at once
  CHECK(stage.gate.bytes() == 0);
  CHECK(stage.ran == "abd");
}

TEST_CASE("a released call may enter the gate again") {
  Stage stage;
  stage.store.accepted_now = 1;
  stage.gate.WhenDurable([&] {
    stage.ran += "a";
    stage.store.accepted_now = 2;
    stage.gate.WhenDurable(stage.Say("b"));
  });
  stage.store.durable_now = 1;
  stage.gate.Release();
  CHECK(stage.ran == "a");
  stage.store.durable_now = 2;
  stage.gate.Release();
  CHECK(stage.ran == "ab");
}
