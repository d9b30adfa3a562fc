// The fields of a data set that a model reads: its inputs and its labels, by their positions. Bind
// is called on the compute thread; the const methods may then run on any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "worker/data/dataset.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {

class ModelInputs {
 public:
  // Finds the inputs and the labels of `graph` in the data of the source `which`. A missing field,
  // or a field of another shape or type, is a user error. The positions are the same in all data
  // sets of a job.
  absl::Status Bind(const config::JobSpec& spec, const Graph& graph, const Dataset& data,
                    absl::string_view which);
  // Returns the graph's inputs from a batch, as views of the batch.
  std::vector<Values> Of(const Graph& graph, const ReadyBatch& batch) const;
  // Returns the labels of a batch in float32, as a view of the batch or of `as_floats`. If
  // `as_floats` is too small, `allocate` makes a new buffer. Returns UserError for an integer label
  // that float32 cannot represent.
  absl::StatusOr<std::span<const float>> LabelsOf(
      const config::JobSpec& spec, const ReadyBatch& batch,
      const std::function<tensor::AlignedBuffer(std::size_t)>& allocate,
      tensor::AlignedBuffer* as_floats) const;

 private:
  std::vector<std::size_t> fields_;  // of each graph input
  std::size_t label_field_ = 0;
  bool integer_labels_ = false;
};

}  // namespace evergrad::worker
