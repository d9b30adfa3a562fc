// The table of the ways in which an embedding layer combines the rows of an example's ids. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/layers/kinds.h"

namespace evergrad::config {

struct CombinerDescriptor {
  std::string name;
  bool built = true;
  Combiner kind = Combiner::kNone;  // valid if `built`
};

// Returns the combiners in the order in which messages and the reference list them.
const std::vector<CombinerDescriptor>& Combiners();

}  // namespace evergrad::config
