// A second implementation of every optimizer in plain float64. It follows the formulas in
// ps_server/optimizer/README.md. The tests of this folder compare the update rules with it. For a
// new optimizer, add its cases to ReferenceCases.
#pragma once

#include <string>
#include <vector>

#include "common/optimizers/settings.h"

namespace evergrad::ps_server::optimizer {

// One element: its value and at most two optimizer states.
struct Element {
  double value = 0, states[2] = {0, 0};
};

// Applies the update with the number t (1, 2, ...) and the gradient g to one element.
using Update = void (*)(const optimizers::Settings& settings, int t, double g, Element* element);

struct ReferenceCase {
  std::string name;
  optimizers::Settings settings;
  Update update;  // nullptr for a rule that needs whole rows, which has its own test
};

// Returns the cases to compare: at least one for each registered optimizer type, and at least one
// for each formula of a type.
const std::vector<ReferenceCase>& ReferenceCases();

}  // namespace evergrad::ps_server::optimizer
