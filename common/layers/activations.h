// The table of activation functions. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/layers/kinds.h"

namespace evergrad::config {

struct ActivationDescriptor {
  std::string name;
  bool built = true;
  Activation kind = Activation::kLinear;  // valid if `built`
};

// Returns the activations in the order in which messages and the reference list them.
const std::vector<ActivationDescriptor>& Activations();

// Returns InvalidArgument if no activation that is built has this name. The message lists the known
// names.
absl::Status CheckActivation(absl::string_view name);

}  // namespace evergrad::config
