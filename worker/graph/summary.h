// The summary table of a model, in Keras' form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace evergrad::worker {

struct SummaryRow {
  std::string layer;             // "conv1 (Conv2D)"
  std::string output_shape;      // "(None, 26, 26, 32)"
  std::uint64_t parameters = 0;  // includes moving averages
  std::uint64_t moving = 0;      // those of `parameters` that are moving averages
  std::string connected_to;      // the layer that it reads; "" for an input
};

// The column "Connected to" is shown if some layer reads a layer other than the one above it.
std::string SummaryTable(const std::vector<SummaryRow>& rows, bool show_connections);

}  // namespace evergrad::worker
