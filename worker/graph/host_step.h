// Steps on host memory, whatever the backend's is: brings over what a step reads, and back what it makes.
//
// Where the backend's memory is the host's, the graph is handed the very spans and nothing is copied. Else copies overlap with the step as far
// as its data allows: a layer waits for its own weights only, and a gradient leaves once its layer is through, while those before it still compute.
//
//   kIn       batch, rows ─▶ weights of layer 1 ─▶ of layer 2 …
//   kCompute              layer 1 ─▶ layer 2 ─▶ … loss … ─▶ layer 2 back ─▶ layer 1 back
//   kOut                                                                gradients of 2 ─▶ of 1
//
// Not thread-safe; the compute thread. Holds the backend's memory: copies of weights, batch and gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {

class HostStep {
 public:
  HostStep(Graph* graph, Backend* backend);  // both outlive it

  // The variable has other values than in the last step: they are brought over again. At first, all have. What a step is handed for the others may
  // lie elsewhere, and is not looked at.
  void Changed(std::size_t variable) { current_[variable] = false; }
  void AllChanged() { current_.assign(current_.size(), false); }

  // As Graph's, all of it host memory, which is read and written before they return only.
  absl::StatusOr<StepResult> TrainStep(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch,
                                       std::uint64_t dropout_key, const std::vector<std::span<float>>& gradients,
                                       const std::vector<std::span<float>>& row_gradients);
  absl::StatusOr<StepResult> Evaluate(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch);

 private:
  // What a step reads, over there.
  struct Over {
    std::vector<std::span<const float>> weights;
    Rows rows;
    Batch batch;
  };
  absl::Status MakeEvents();
  // The first bytes of `memory`, grown if need be.
  template <typename T>
  absl::StatusOr<std::span<T>> Room(std::size_t elements, absl::string_view what, Memory* memory);
  template <typename T>
  absl::StatusOr<std::span<const T>> Bring(std::span<const T> from, absl::string_view what, Memory* memory);
  absl::StatusOr<Over> BringAll(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch);
  absl::Status QueueTrain(const Over& over, std::uint64_t dropout_key, const std::vector<std::span<float>>& gradients,
                          const std::vector<std::span<float>>& row_gradients);
  // Returns when nothing reads or writes the caller's memory any more.
  absl::StatusOr<StepResult> Finish(const absl::Status& queued);

  Graph& graph_;
  Backend& backend_;
  std::vector<bool> current_;  // by variable: what is over there is what the caller has
  std::vector<Memory> weights_, gradients_, inputs_, row_values_, row_gradients_, positions_;
  Memory labels_;
  std::unique_ptr<Event> batch_there_, all_made_, all_in_, all_out_;
  std::vector<std::unique_ptr<Event>> there_, made_;  // by variable
  StepEvents train_events_, evaluate_events_;
};

}  // namespace evergrad::worker
