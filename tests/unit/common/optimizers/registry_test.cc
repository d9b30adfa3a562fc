// Tests the list of optimizers: the rules that every descriptor must follow, and the numbers that
// are derived from the list.
#include "common/optimizers/registry.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

namespace evergrad::optimizers {
namespace {

bool IsKnown(const Member& member) {
  return std::any_of(Members().begin(), Members().end(), [&](const Member& known) {
    return known.name == member.name && known.number == member.number && known.flag == member.flag;
  });
}

TEST_CASE("every member of the settings is a number or a flag and has a unique name") {
  std::set<std::string> names;
  for (const Member& member : Members()) {
    CHECK((member.number == nullptr) != (member.flag == nullptr));
    CHECK(names.insert(std::string(member.name)).second);
  }
  // If the list of members lacked a member of Settings, it would not be sent. The sizes show that
  // it is complete: each member has 8 bytes, and the flag is padded to 8 bytes.
  CHECK(sizeof(Settings) == sizeof(std::string) + 8 * Members().size());
}

TEST_CASE("every descriptor is complete, and its defaults are within its limits") {
  std::set<std::string> types;
  for (const Descriptor& descriptor : All()) {
    const Settings& defaults = descriptor.defaults;
    INFO(defaults.type);
    CHECK(types.insert(defaults.type).second);
    CHECK(Check(defaults).ok());
    std::set<absl::string_view> keys;
    for (const Parameter& parameter : descriptor.parameters) {
      INFO(parameter.member.name);
      CHECK(IsKnown(parameter.member));
      CHECK(keys.insert(parameter.member.name).second);
      CHECK((descriptor.internal || !std::string(parameter.help).empty()));
      if (parameter.member.number == nullptr) continue;
      CHECK(parameter.bounds.Holds(defaults.*parameter.member.number));
      CHECK(!std::string(parameter.accepted.want).empty());
      // A server must accept every number that a job file may contain.
      const config::RealBounds &file = parameter.bounds, &server = parameter.accepted.bounds;
      for (const double number : {file.min + (file.open_min ? 1e-9 : 0), file.max * (1 - 1e-9)})
        CHECK((file.Holds(number) && server.Holds(number)));
    }
    for (const Rule& rule : descriptor.rules) {
      CHECK(keys.count(rule.key) == 1);
      CHECK_FALSE(rule.broken(defaults));
    }
    // If a member of Settings says whether a state exists, or how it is initialized, then it must
    // be a parameter of this type of optimizer.
    for (const State& state : descriptor.states) {
      for (double Settings::*const member : {state.initial, state.only_with})
        CHECK((member == nullptr ||
               std::any_of(descriptor.parameters.begin(), descriptor.parameters.end(),
                           [&](const Parameter& p) { return p.member.number == member; })));
      CHECK((!state.one_per_row || descriptor.use == Use::kTablesOnly));
    }
  }
}

TEST_CASE("no type and no key is both built and refused as not built") {
  for (const std::string& type : TypesNotBuilt()) CHECK(Find(type) == nullptr);
  for (const std::string& key : KeysNotBuilt()) {
    // weight_decay is built for adamw alone.
    const bool somewhere = std::any_of(Members().begin(), Members().end(),
                                       [&](const Member& member) { return member.name == key; });
    CHECK(somewhere == (key == "weight_decay"));
  }
}

TEST_CASE("the slots of an optimizer follow from its type and momentum") {
  const auto slots = [](const char* type, double momentum) {
    return StatesPerValue({.type = type, .momentum = momentum});
  };
  CHECK(slots("adam", 0) == 2);
  CHECK(slots("adam", 0.9) == 2);
  CHECK(slots("sgd", 0) == 0);
  CHECK(slots("sgd", 0.9) == 1);
  CHECK(slots("counting", 0) == 1);
  CHECK(slots("adamw", 0) == 2);
  CHECK(slots("ftrl", 0) == 2);
  CHECK(slots("adagrad", 0) == 1);
  CHECK(slots("rowwise_adagrad", 0) == 0);
  CHECK(slots("rmsprop", 0) == 1);
  CHECK(slots("rmsprop", 0.9) == 2);
  CHECK(slots("moving_average", 0.9) == 0);
  CHECK(slots("lamb", 0.9) == 0);
}

TEST_CASE("a row has its values, the numbers of its slots and an optional counter") {
  CHECK(RowFloats({.type = "sgd"}, 8) == 8);
  CHECK(RowFloats({.type = "sgd", .momentum = 0.9}, 8) == 16);
  CHECK(RowFloats({.type = "adam"}, 8) == 24);
  CHECK(RowFloats({.type = "rowwise_adagrad"}, 8) == 9);
  CHECK(RowFloats({.type = "lamb"}, 8) == 8);
  CHECK(CounterBytesPerRow("adam") == 4);
  CHECK(CounterBytesPerRow("adamw") == 4);
  CHECK(CounterBytesPerRow("adagrad") == 0);
  CHECK(CounterBytesPerRow("lamb") == 0);
  CHECK(IsForTablesOnly("rowwise_adagrad"));
  CHECK_FALSE(IsForTablesOnly("adagrad"));
  CHECK_FALSE(IsForTablesOnly("lamb"));
}

TEST_CASE("settings that a server cannot compute with are refused by name") {
  const auto message = [](const Settings& settings) {
    return std::string(Check(settings).message());
  };
  for (const Descriptor& descriptor : All()) {
    for (const Parameter& parameter : descriptor.parameters) {
      if (parameter.member.number == nullptr) continue;
      INFO(descriptor.defaults.type << " " << parameter.member.name);
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, -100.0}) {
        Settings settings = descriptor.defaults;
        settings.*parameter.member.number = bad;
        CHECK(message(settings).find(
                  "optimizer setting out of range: type=" + descriptor.defaults.type + " " +
                  std::string(parameter.member.name) + "=") == 0);
      }
    }
  }
  CHECK(message({.type = "sgd", .learning_rate = -1}) ==
        "optimizer setting out of range: type=sgd learning_rate=-1 want=a finite number >= 0");
  // As float32, the number would become 0 or infinite.
  CHECK(message({.type = "adam", .epsilon = 1e-50}).find("want=a finite number > 0") !=
        std::string::npos);
  CHECK(message({.type = "sgd", .learning_rate = 1e39}).find("learning_rate=1e+39") !=
        std::string::npos);
  CHECK(Check({.type = "sgd", .learning_rate = 3e38}).ok());
  CHECK(Check({.type = "adam", .epsilon = 1e-45}).ok());
  // A number that a type does not use is not checked.
  CHECK(Check({.type = "sgd", .epsilon = -1}).ok());
}

TEST_CASE("the refusal of an unknown type names every type") {
  const std::string message(Check({.type = "lamb" + std::string(100, 'x')}).message());
  CHECK(message.find("unknown optimizer, expected adam, sgd, ") == 0);
  CHECK(message.find(" moving_average or counting: type=lamb" + std::string(60, 'x')) ==
        message.size() - 38 - 60);
  for (const Descriptor& descriptor : All())
    CHECK(message.find(" " + descriptor.defaults.type) != std::string::npos);
}

}  // namespace
}  // namespace evergrad::optimizers
