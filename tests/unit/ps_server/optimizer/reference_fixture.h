// A second implementation of every optimizer, in plain float64, from the formulas in
// ps_server/optimizer/README.md. The tests of this folder compare the update rules with it. A new
// optimizer adds its cases here.
#pragma once

#include <string>
#include <vector>

#include "common/optimizers/settings.h"

namespace evergrad::ps_server::optimizer {

// One element: its value and at most two optimizer states.
struct Element {
  double value = 0, states[2] = {0, 0};
};

// Applies update t (1, 2, ...) of one element with the gradient g.
using Update = void (*)(const optimizers::Settings& settings, int t, double g, Element* element);

struct ReferenceCase {
  std::string name;
  optimizers::Settings settings;
  Update update;  // nullptr for a rule of whole rows, which has its own test
};

// Returns at least one case for every registered type, and one for every formula of a type.
const std::vector<ReferenceCase>& ReferenceCases();

}  // namespace evergrad::ps_server::optimizer
