// Builds the nodes of a graph from a job's model: resolves names, infers and checks shapes, lists
// the variables, and decides the type of each value. Mistakes of the model are UserErrors that name
// the layer, the shapes and the expected value (Graph::Build has the rules).
//
// A builder makes one graph and allocates nothing in the backend. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph_nodes.h"

namespace evergrad::worker {

class GraphBuilder {
 public:
  // `backend` has the limits of the device, and outlives the builder.
  GraphBuilder(const Backend& backend, Precision precision) : backend_(backend) {
    nodes_.narrow = ElementOf(precision);
  }
  absl::StatusOr<GraphNodes> Build(const config::ModelSpec& model) &&;

 private:
  absl::Status AddInput(const config::InputSpec& spec);
  absl::Status AddLayer(const config::LayerSpec& spec, const std::vector<config::LayerSpec>& all);
  absl::StatusOr<std::size_t> FindValue(const config::LayerSpec& spec, const std::string& source,
                                        const std::vector<config::LayerSpec>& all) const;
  // Returns the inputs of an embedding (ids, optional weights, the table), and stores them in
  // `node`, too.
  absl::StatusOr<config::LayerInputs> ReadIds(const config::LayerSpec& spec, GraphLayer* node);
  // Declares that the model input is read as `dtype`. Returns LayerError if another layer reads it
  // as another type.
  absl::Status ReadAs(const config::LayerSpec& spec, std::size_t value, tensor::DType dtype);
  absl::Status AddLoss(const config::LossSpec& spec, const config::ModelSpec& model);
  absl::Status AddMetrics(const config::ModelSpec& model);
  absl::Status CheckEverythingIsUsed(const config::ModelSpec& model) const;
  // Decides the type of each value. Counts the consumers of each storage, and the layers that draw
  // random numbers.
  void ChooseTypes();

  const Backend& backend_;
  GraphNodes nodes_;
  std::map<std::string, std::size_t> value_of_name_;
  std::vector<bool> input_read_;  // whether the dtype of the input is known
};

}  // namespace evergrad::worker
