#include "worker/graph/summary.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace evergrad::worker {
namespace {

struct SummaryRow {
  std::string layer;             // "conv1 (Conv2D)"
  std::string output_shape;      // "(None, 26, 26, 32)"
  std::uint64_t parameters = 0;  // includes moving averages
  std::uint64_t moving = 0;      // the part of `parameters` that are moving averages
  std::string connected_to;      // the layer that it reads; "" for an input
};

std::string WithCommas(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string BatchShape(const tensor::Shape& shape) {
  std::string text = "(None";
  for (const std::uint64_t dim : shape.dims()) absl::StrAppend(&text, ", ", dim);
  return absl::StrCat(text, ")");
}

// The column "Connected to" is shown if some layer reads a layer other than the one above it.
std::string SummaryTable(const std::vector<SummaryRow>& rows, bool show_connections) {
  std::vector<std::vector<std::string>> cells = {{"Layer (type)", "Output Shape", "Param #"}};
  if (show_connections) cells[0].emplace_back("Connected to");
  std::uint64_t total = 0, moving = 0;
  for (const SummaryRow& row : rows) {
    cells.push_back({row.layer, row.output_shape, std::to_string(row.parameters)});
    if (show_connections)
      cells.back().push_back(row.connected_to.empty() ? "[]"
                                                      : absl::StrCat("['", row.connected_to, "']"));
    total += row.parameters;
    moving += row.moving;
  }
  // The column widths of Keras, which grow for a long name.
  std::vector<std::size_t> widths = {27, 25, 10, 17};
  widths.resize(cells[0].size());
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c)
      widths[c] = std::max(widths[c], line[c].size() + 1);
  }
  std::size_t width = 1;
  for (const std::size_t w : widths) width += w + 1;
  const std::string thin(width, '_'), thick(width, '=');
  std::string table = absl::StrCat(thin, "\n");
  for (std::size_t l = 0; l < cells.size(); ++l) {
    std::string line;
    for (std::size_t c = 0; c < cells[l].size(); ++c)
      absl::StrAppend(&line, " ", Padded(cells[l][c], widths[c]));
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&table, line, "\n");
    if (l == 0) absl::StrAppend(&table, thick, "\n");
  }
  absl::StrAppend(&table, thick, "\nTotal params: ", WithCommas(total),
                  "\nTrainable params: ", WithCommas(total - moving),
                  "\nNon-trainable params: ", WithCommas(moving), "\n", thin, "\n");
  return table;
}

}  // namespace

std::string SummaryOf(const GraphNodes& nodes) {
  std::vector<SummaryRow> rows;
  rows.reserve(nodes.inputs.size());
  for (std::size_t i = 0; i < nodes.inputs.size(); ++i)
    rows.push_back({absl::StrCat(nodes.values[i].name, " (InputLayer)"),
                    absl::StrCat("[", BatchShape(nodes.values[i].shape), "]"), 0, 0, ""});
  bool chain = nodes.inputs.size() == 1;
  for (const GraphLayer& node : nodes.layers) {
    std::uint64_t parameters = 0, moving = 0;
    for (const Variable& variable : node.layer->variables()) {
      parameters += variable.shape.elements();
      if (variable.is_moving_average()) moving += variable.shape.elements();
    }
    rows.push_back({absl::StrCat(node.layer->name(), " (", node.layer->type(), ")"),
                    BatchShape(node.layer->output_shape()), parameters, moving,
                    absl::StrJoin(node.inputs, ", ", [&](std::string* out, std::size_t input) {
                      *out += nodes.values[input].name;
                    })});
    chain = chain && node.inputs.size() == 1 && node.inputs[0] + 1 == node.output;
  }
  return SummaryTable(rows, !chain);
}

}  // namespace evergrad::worker
