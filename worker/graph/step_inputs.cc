#include "worker/graph/step_inputs.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {

absl::Status CheckInputs(const GraphNodes& nodes, const Batch& batch) {
  if (batch.size < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("a batch needs at least one example: size=", batch.size));
  for (const GraphValue& value : nodes.values) {
    const std::int64_t elements = nodes.storages[value.storage].elements;
    if (elements > kElementsMax / batch.size) {
      return UserError(absl::InvalidArgumentError(
          absl::StrCat("batch too large: value=", value.name, " examples=", batch.size,
                       " elements_per_example=", elements, " elements_max=", kElementsMax)));
    }
  }
  if (batch.inputs.size() != nodes.inputs.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "batch inputs mismatch: want=", nodes.inputs.size(), " got=", batch.inputs.size()));
  const std::size_t examples = static_cast<std::size_t>(batch.size);
  for (std::size_t i = 0; i < nodes.inputs.size(); ++i) {
    const std::size_t want = examples * static_cast<std::size_t>(nodes.values[i].shape.elements());
    const bool ids = nodes.inputs[i].dtype == tensor::DType::kInt64;
    const std::size_t got = ids ? batch.inputs[i].ids.size() : batch.inputs[i].floats.size();
    if (got != want) {
      return absl::InvalidArgumentError(
          absl::StrCat("input elements mismatch: input=", nodes.inputs[i].name,
                       ids ? " dtype=int64" : "", " want=", want, " got=", got));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBatch(const GraphNodes& nodes, const std::vector<AnyIn>& weights,
                        const Rows& rows, const Batch& batch) {
  EG_RETURN_IF_ERROR(CheckInputs(nodes, batch));
  const std::size_t examples = static_cast<std::size_t>(batch.size);
  if (batch.labels.size() != examples * nodes.label_elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("label elements mismatch: want=", examples * nodes.label_elements,
                     " got=", batch.labels.size()));
  }
  if (weights.size() != nodes.variables.size())
    return absl::InvalidArgumentError(
        absl::StrCat("variables mismatch: want=", nodes.variables.size(), " got=", weights.size()));
  for (std::size_t v = 0; v < nodes.variables.size(); ++v) {
    if (weights[v].size() != nodes.variables[v].shape.elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight elements mismatch: variable=", nodes.variables[v].name,
                       " want=", nodes.variables[v].shape.elements(), " got=", weights[v].size()));
    }
  }
  if (nodes.tables.empty()) return absl::OkStatus();
  if (rows.lookup == nullptr || rows.lookup->size() != nodes.tables.size() ||
      rows.values.size() != nodes.tables.size() ||
      (!rows.positions.empty() && rows.positions.size() != nodes.tables.size()))
    return absl::InvalidArgumentError(
        absl::StrCat("wrong number of tables with rows: want=", nodes.tables.size(),
                     " got=", rows.values.size()));
  for (std::size_t t = 0; t < nodes.tables.size(); ++t) {
    const TableRows& table = (*rows.lookup)[t];
    const std::size_t positions =
        rows.positions.empty() ? table.position.size() : rows.positions[t].size();
    const std::size_t got = rows.values[t].size();
    if (got < table.ids.size() * nodes.tables[t].dimension ||
        got % nodes.tables[t].dimension != 0 || positions != nodes.table_ids[t] * examples) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows mismatch: table=", nodes.tables[t].name, " ids=", table.ids.size(),
                       " dimension=", nodes.tables[t].dimension, " got=", got, " elements"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGradients(const GraphNodes& nodes, const Rows& rows,
                            const std::vector<AnyOut>& gradients,
                            const std::vector<AnyOut>& row_gradients) {
  if (gradients.size() != nodes.variables.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "gradients mismatch: want=", nodes.variables.size(), " got=", gradients.size()));
  for (std::size_t v = 0; v < nodes.variables.size(); ++v) {
    if (gradients[v].size() != nodes.variables[v].shape.elements()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient elements mismatch: variable=", nodes.variables[v].name,
          " want=", nodes.variables[v].shape.elements(), " got=", gradients[v].size()));
    }
  }
  if (row_gradients.size() != nodes.tables.size())
    return absl::InvalidArgumentError(absl::StrCat(
        "row gradients mismatch: tables=", nodes.tables.size(), " got=", row_gradients.size()));
  for (std::size_t t = 0; t < nodes.tables.size(); ++t) {
    if (row_gradients[t].size() != rows.values[t].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row gradient elements mismatch: table=", nodes.tables[t].name,
                       " want=", rows.values[t].size(), " got=", row_gradients[t].size()));
    }
  }
  return absl::OkStatus();
}

absl::Status LookUpRows(const GraphNodes& nodes, const Batch& batch, UniqueIds* scratch,
                        std::vector<TableRows>* rows) {
  EG_RETURN_IF_ERROR(CheckInputs(nodes, batch));
  rows->resize(nodes.tables.size());
  for (std::size_t t = 0; t < nodes.tables.size(); ++t) {
    TableRows& table = (*rows)[t];
    table.ids.clear();
    table.position.clear();
    scratch->Begin(nodes.table_ids[t] * static_cast<std::size_t>(batch.size));
    for (const GraphLayer& node : nodes.layers) {
      if (node.embedding == nullptr || node.table != t) continue;
      for (const std::size_t input : node.inputs)
        scratch->Add(batch.inputs[input].ids, &table.ids, &table.position);
    }
  }
  return absl::OkStatus();
}

std::span<const std::uint32_t> PositionsOf(const GraphLayer& embedding, const Rows& rows,
                                           std::int64_t batch) {
  const std::size_t examples = static_cast<std::size_t>(batch);
  const std::span<const std::uint32_t> all =
      rows.positions.empty() ? std::span((*rows.lookup)[embedding.table].position)
                             : rows.positions[embedding.table];
  return all.subspan(embedding.ids_before * examples,
                     embedding.embedding->ids_per_example() * examples);
}

}  // namespace evergrad::worker
