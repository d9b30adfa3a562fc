// The nodes of a graph, which represent a job's model that has passed the checks. GraphBuilder
// makes them once, and StepExecutor computes them. The nodes do not change in a step, except the
// state of the layers between the forward and the backward pass.
//
// Indices connect the nodes: a layer names its inputs and its output by their index in `values`,
// and a value names its storage by its index in `storages`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"
#include "worker/graph/metrics.h"
#include "worker/layers/embedding.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {

// The value on an edge: a model input, or the output of a layer. A view (flatten) shares the
// storage of its input, and therefore also the gradient. Consumers of the view and consumers of its
// input add to this gradient.
struct GraphValue {
  std::string name;
  tensor::Shape shape;  // shape of one example
  std::size_t storage = 0;
  bool needs_gradient = false;  // the value depends on a variable
};

// The memory of a value and its views, and of their gradient.
struct GraphStorage {
  std::int64_t elements = 0;               // per example
  std::optional<std::size_t> model_input;  // the input whose memory is in the batch
  bool needs_gradient = false;
  // The number of consumers that write the gradient: consumers of the value, consumers of its
  // views, and losses.
  int consumers = 0;
  bool at_loss = false;
  Element type = Element::kFloat32;  // type of the value and of its gradient
  bool cast_wanted = false;          // some layer reads the other type (CastTypeOf)
};

struct GraphLayer {
  std::unique_ptr<Layer> layer;
  std::vector<std::size_t>
      inputs;              // indices of values; for an embedding, the model inputs with its ids
  std::size_t output = 0;  // index of a value
  std::size_t first_variable = 0;
  Embedding* embedding = nullptr;      // `layer` if it is an embedding, else nullptr
  std::size_t table = 0;               // used by an embedding
  std::optional<std::size_t> weights;  // used by an embedding: the index of a model input
  // Ids per example of the earlier embeddings that read the same table.
  std::size_t ids_before = 0;
  // The index of the layer's key, for a layer that draws random numbers.
  std::optional<std::size_t> key;
  bool wide = false;                  // the job requests float32 for the layer
  Element reads = Element::kFloat32;  // type of the layer's inputs and kernel

  std::size_t end_variable() const { return first_variable + layer->variables().size(); }
};

struct GraphLoss {
  Loss loss;
  std::string name;
  std::size_t value = 0;
};

struct GraphNodes {
  std::vector<GraphValue> values;
  std::vector<GraphStorage> storages;
  std::vector<GraphLayer> layers;  // in listed order, which is a topological order
  std::vector<GraphLoss> losses;
  std::vector<Metric> metrics;      // metrics of the first loss
  std::vector<Variable> variables;  // in layer order, kernel before bias
  std::vector<GraphInput> inputs;   // the first entries of `values`, in this order
  std::vector<config::TableSpec> tables;
  std::vector<std::size_t> table_ids;  // ids per example of each table
  std::uint64_t label_elements = 0;
  std::size_t keys = 0;                // number of layers that draw random numbers
  Element narrow = Element::kFloat32;  // the precision's 16-bit type; float32 if none

  const GraphStorage& StorageOf(std::size_t value) const { return storages[values[value].storage]; }
  GraphStorage& StorageOf(std::size_t value) { return storages[values[value].storage]; }
  // Returns the type of the storage's converted copy: float32 if the storage has 16 bits, and
  // otherwise the precision's 16-bit type.
  Element CastTypeOf(const GraphStorage& storage) const {
    return storage.type == Element::kFloat32 ? narrow : Element::kFloat32;
  }
  // Returns whether the layer's products read the variable as 16 bits.
  bool IsNarrowed(const GraphLayer& layer, std::size_t variable) const {
    return layer.reads != Element::kFloat32 && variables[variable].of_products;
  }
};

}  // namespace evergrad::worker
