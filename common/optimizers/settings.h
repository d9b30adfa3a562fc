// The settings of one optimizer. The same struct is read from a job file, copied to and from the
// message of a plan, and applied by a server. registry.h states which members a type uses.
//
// Plain values without an invariant. Check in registry.h determines whether a server can compute
// with the values.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace evergrad::optimizers {

// Designated initializers in the tests rely on the order of the members.
struct Settings {
  std::string type = "sgd";  // one of the types in registry.h
  double learning_rate = 0.01, momentum = 0, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7;
  bool nesterov = false;
  double initial_accumulator_value = 0.1;
  double weight_decay = 0.004;
  double rho = 0.9;
  double learning_rate_power = -0.5, l1_regularization_strength = 0, l2_regularization_strength = 0,
         beta = 0;
  friend bool operator==(const Settings&, const Settings&) = default;
};

// One hyper-parameter of Settings. Exactly one of `number` and `flag` is set.
struct Member {
  absl::string_view name;  // the key in a job file and the field of the message v1::Optimizer
  double Settings::*number = nullptr;
  bool Settings::*flag = nullptr;
};

// Returns every member of Settings except its type, in the order of the fields of v1::Optimizer.
absl::Span<const Member> Members();

}  // namespace evergrad::optimizers
