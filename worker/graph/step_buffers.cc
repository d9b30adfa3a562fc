#include "worker/graph/step_buffers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

StepBuffers::StepBuffers(const GraphNodes& nodes, Backend& backend)
    : nodes_(nodes),
      backend_(backend),
      memory_(nodes.storages.size()),
      narrowed_(nodes.variables.size()),
      wide_(nodes.variables.size()),
      wide_gradients_(nodes.variables.size()),
      wide_rows_(nodes.tables.size()),
      wide_row_gradients_(nodes.tables.size()) {}

absl::Status StepBuffers::AllocateNarrowed() {
  for (const GraphLayer& node : nodes_.layers) {
    for (std::size_t v = node.first_variable; v < node.end_variable(); ++v) {
      if (!nodes_.IsNarrowed(node, v)) continue;
      EG_ASSIGN_OR_RETURN(narrowed_[v], backend_.Allocate(nodes_.variables[v].shape.elements() *
                                                              BytesOf(nodes_.narrow),
                                                          nodes_.variables[v].name));
    }
  }
  return absl::OkStatus();
}

absl::Status StepBuffers::ReserveWide(const std::vector<AnyIn>& weights, const Rows& rows,
                                      const std::vector<AnyOut>& gradients,
                                      const std::vector<AnyOut>& row_gradients) {
  const auto reserve = [this](AnyIn given, const std::string& name, Memory* wide) -> absl::Status {
    if (given.is_float32() || given.size() * sizeof(float) <= wide->bytes())
      return absl::OkStatus();
    ++generation_;
    *wide = {};  // freed first, because the old and the new size may not fit together
    EG_ASSIGN_OR_RETURN(
        *wide, backend_.Allocate(given.size() * sizeof(float), absl::StrCat(name, " as float32")));
    return absl::OkStatus();
  };
  for (std::size_t v = 0; v < weights.size(); ++v)
    EG_RETURN_IF_ERROR(reserve(weights[v], nodes_.variables[v].name, &wide_[v]));
  for (std::size_t v = 0; v < gradients.size(); ++v)
    EG_RETURN_IF_ERROR(reserve(gradients[v], nodes_.variables[v].name, &wide_gradients_[v]));
  absl::Status reserved;
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t)
    reserved.Update(reserve(rows.values[t], nodes_.tables[t].name, &wide_rows_[t]));
  for (std::size_t t = 0; t < row_gradients.size(); ++t)
    reserved.Update(reserve(row_gradients[t], nodes_.tables[t].name, &wide_row_gradients_[t]));
  if (reserved.ok()) return reserved;
  for (std::vector<Memory>* const of_tables :
       {&wide_rows_, &wide_row_gradients_})  // another call with fewer rows may fit
    for (Memory& memory : *of_tables) memory = {};
  return reserved;
}

absl::Status StepBuffers::Reserve(std::int64_t batch, bool with_gradients) {
  if (batch <= batch_max_ && (!with_gradients || batch <= gradient_batch_max_))
    return absl::OkStatus();
  ++generation_;
  absl::Status grown;
  if (batch > batch_max_) grown = GrowValues(batch);
  if (grown.ok() && with_gradients && batch > gradient_batch_max_) grown = GrowGradients(batch);
  if (grown.ok()) return grown;
  // Frees the memory that was allocated for the batch.
  memory_.clear();
  memory_.resize(nodes_.storages.size());
  scratch_ = {};
  batch_max_ = gradient_batch_max_ = 0;
  return NoMemory(grown, batch, with_gradients, {});
}

absl::Status StepBuffers::Allocate(const std::string& what, std::int64_t elements, Element type,
                                   Memory* memory) {
  EG_ASSIGN_OR_RETURN(*memory,
                      backend_.Allocate(static_cast<std::size_t>(elements) * BytesOf(type), what));
  return absl::OkStatus();
}

absl::Status StepBuffers::GrowValues(std::int64_t batch) {
  batch_max_ = 0;  // stays 0 until all buffers have grown
  for (StorageMemory& memory : memory_)
    memory.data = {},
    memory.cast = {};  // freed first, because the old and the new size may not fit together
  for (const GraphValue& value : nodes_.values) {
    const GraphStorage& storage = nodes_.storages[value.storage];
    Memory& cast = memory_[value.storage].cast;
    if (!storage.cast_wanted || cast.bytes() > 0) continue;
    const Element type = nodes_.CastTypeOf(storage);
    EG_RETURN_IF_ERROR(Allocate(absl::StrCat(value.name, " as ", NameOf(type)),
                                storage.elements * batch, type, &cast));
  }
  for (const GraphLayer& node : nodes_.layers) {
    if (node.layer->is_view()) continue;
    const GraphStorage& storage = nodes_.StorageOf(node.output);
    EG_RETURN_IF_ERROR(Allocate(node.layer->name(), storage.elements * batch, storage.type,
                                &MemoryOf(node.output).data));
    EG_RETURN_IF_ERROR(node.layer->Reserve(backend_, batch));
  }
  batch_max_ = batch;
  return absl::OkStatus();
}

absl::Status StepBuffers::GrowGradients(std::int64_t batch) {
  gradient_batch_max_ = 0;
  for (StorageMemory& memory : memory_) memory.gradient = {};
  scratch_ = {};
  // The largest number of elements in a gradient that has several writing consumers, or a consumer
  // of another type.
  std::int64_t added = 0;
  for (const GraphLayer& node : nodes_.layers) {
    const GraphStorage& storage = nodes_.StorageOf(node.output);
    if (node.layer->is_view() || !storage.needs_gradient) continue;
    EG_RETURN_IF_ERROR(Allocate(absl::StrCat("gradient of ", node.layer->name()),
                                storage.elements * batch, storage.type,
                                &MemoryOf(node.output).gradient));
    if (storage.consumers > 1 || storage.cast_wanted) added = std::max(added, storage.elements);
  }
  if (added > 0)
    EG_RETURN_IF_ERROR(Allocate("sums of gradients", added * batch, Element::kFloat32, &scratch_));
  gradient_batch_max_ = batch;
  return absl::OkStatus();
}

absl::Status StepBuffers::NoMemory(const absl::Status& cause, std::int64_t examples,
                                   bool with_gradients, const Graph::CallersMemory& callers) const {
  std::uint64_t per_example = callers.per_example, held = callers.held + scratch_.bytes();
  for (const GraphStorage& storage : nodes_.storages) {
    const std::uint64_t elements = static_cast<std::uint64_t>(storage.elements);
    if (!storage.model_input)
      per_example +=
          elements * (with_gradients && storage.needs_gradient ? 2 : 1) * BytesOf(storage.type);
    if (storage.cast_wanted) per_example += elements * BytesOf(nodes_.CastTypeOf(storage));
  }
  for (const StorageMemory& memory : memory_)
    held += memory.data.bytes() + memory.gradient.bytes() + memory.cast.bytes();
  const MemoryUse use = backend_.memory();
  const std::uint64_t there = use.free + use.reserved - use.used + held;
  std::uint64_t fit = there <= callers.still_wanted ? 0
                                                    : (there - callers.still_wanted) /
                                                          std::max<std::uint64_t>(1, per_example);
  // By this estimate the batch would fit, but fragmentation or a layer's own memory has prevented
  // it. The error then suggests half of the batch.
  if (fit >= static_cast<std::uint64_t>(examples)) fit = static_cast<std::uint64_t>(examples) / 2;
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of memory for a batch: examples=", examples, " bytes_per_example=", per_example,
      " examples_that_may_fit=", fit, " cause=", cause.message()));
}

AnyIn StepBuffers::DataOf(std::size_t value, const Batch& batch) const {
  const GraphStorage& storage = nodes_.StorageOf(value);
  if (storage.model_input) return batch.inputs[*storage.model_input].floats;
  return {MemoryOf(value).data.as<std::byte>().data(),
          static_cast<std::size_t>(storage.elements * batch.size), storage.type};
}

AnyIn StepBuffers::DataAs(std::size_t value, const Batch& batch, Element type) const {
  const GraphStorage& storage = nodes_.StorageOf(value);
  if (storage.type == type) return DataOf(value, batch);
  return {MemoryOf(value).cast.as<std::byte>().data(),
          static_cast<std::size_t>(storage.elements * batch.size), type};
}

}  // namespace evergrad::worker
