// Tests that the settings of an optimizer are the same after they were written into the message of
// a plan and read back.
#include "common/client/describe.h"

#include <catch2/catch.hpp>

#include "common/optimizers/registry.h"

namespace evergrad::client {
namespace {

TEST_CASE(
    "the message of an optimizer has a field for its type and for each member, and no others") {
  const google::protobuf::Descriptor& message = *v1::Optimizer::descriptor();
  REQUIRE(message.field_count() == static_cast<int>(optimizers::Members().size()) + 1);
  CHECK(message.field(0)->name() == "type");
  for (int i = 1; i < message.field_count(); ++i) {
    const optimizers::Member& member = optimizers::Members()[static_cast<std::size_t>(i - 1)];
    CHECK(message.field(i)->name() == member.name);
    CHECK(message.field(i)->number() == i + 1);
    CHECK(message.field(i)->cpp_type() ==
          (member.flag != nullptr ? google::protobuf::FieldDescriptor::CPPTYPE_BOOL
                                  : google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE));
  }
}

TEST_CASE("settings are the same after conversion to a message and back") {
  optimizers::Settings settings;
  settings.type = "any";
  double number = 0.5;
  for (const optimizers::Member& member : optimizers::Members()) {
    if (member.flag != nullptr)
      settings.*member.flag = true;
    else
      settings.*member.number = number += 1;
  }
  v1::Optimizer message;
  FillOptimizer(settings, &message);
  CHECK(message.type() == "any");
  CHECK(message.learning_rate() == 1.5);
  CHECK(message.momentum() == 2.5);
  CHECK(message.nesterov());
  CHECK(message.beta() == number);
  CHECK(OptimizerOf(message) == settings);
}

TEST_CASE("the bytes of an optimizer's message are those of its fields in order") {
  v1::Optimizer by_name, by_hand;
  FillOptimizer({.type = "sgd", .learning_rate = 0.25, .momentum = 0.5, .nesterov = true, .rho = 0},
                &by_name);
  by_hand.set_type("sgd");
  by_hand.set_learning_rate(0.25);
  by_hand.set_momentum(0.5);
  by_hand.set_nesterov(true);
  by_hand.set_beta_1(0.9);
  by_hand.set_beta_2(0.999);
  by_hand.set_epsilon(1e-7);
  by_hand.set_initial_accumulator_value(0.1);
  by_hand.set_weight_decay(0.004);
  by_hand.set_learning_rate_power(-0.5);
  CHECK(by_name.SerializeAsString() == by_hand.SerializeAsString());
  CHECK(v1::Optimizer().SerializeAsString().empty());
}

}  // namespace
}  // namespace evergrad::client
