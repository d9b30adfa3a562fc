// The summary table of a model, in Keras' form.
#pragma once

#include <string>

#include "worker/graph/graph_nodes.h"

namespace evergrad::worker {

std::string SummaryOf(const GraphNodes& nodes);

}  // namespace evergrad::worker
