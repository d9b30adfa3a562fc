#include "worker/graph/host_step.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

HostStep::HostStep(Graph* graph, Backend* backend) : graph_(*graph), backend_(*backend), current_(graph->variables().size(), false) {
  const std::size_t variables = graph_.variables().size(), tables = graph_.tables().size();
  weights_.resize(variables);
  gradients_.resize(variables);
  inputs_.resize(graph_.inputs().size());
  row_values_.resize(tables);
  row_gradients_.resize(tables);
  positions_.resize(tables);
}

absl::Status HostStep::MakeEvents() {
  if (all_out_ != nullptr) return absl::OkStatus();
  for (std::size_t v = there_.size(); v < weights_.size(); ++v) {
    EG_ASSIGN_OR_RETURN(std::unique_ptr<Event> there, backend_.MakeEvent());
    EG_ASSIGN_OR_RETURN(std::unique_ptr<Event> made, backend_.MakeEvent());
    train_events_.there.push_back(there.get());
    train_events_.made.push_back(made.get());
    evaluate_events_.there.push_back(there.get());
    there_.push_back(std::move(there));
    made_.push_back(std::move(made));
  }
  EG_ASSIGN_OR_RETURN(batch_there_, backend_.MakeEvent());
  EG_ASSIGN_OR_RETURN(all_made_, backend_.MakeEvent());
  EG_ASSIGN_OR_RETURN(all_in_, backend_.MakeEvent());
  EG_ASSIGN_OR_RETURN(all_out_, backend_.MakeEvent());
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::span<T>> HostStep::Room(std::size_t elements, absl::string_view what, Memory* memory) {
  if (elements == 0) return std::span<T>();
  if (memory->bytes() < elements * sizeof(T)) {
    *memory = {};  // first, or both sizes would be held
    EG_ASSIGN_OR_RETURN(*memory, backend_.Allocate(elements * sizeof(T), what));
  }
  return memory->as<T>().first(elements);
}

template <typename T>
absl::StatusOr<std::span<const T>> HostStep::Bring(std::span<const T> from, absl::string_view what, Memory* memory) {
  EG_ASSIGN_OR_RETURN(const std::span<T> to, Room<T>(from.size(), what, memory));
  if (!from.empty()) backend_.Upload(Lane::kIn, std::as_bytes(from), std::as_writable_bytes(to));
  return to;
}

absl::StatusOr<HostStep::Over> HostStep::BringAll(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch) {
  Over over;
  over.batch = batch;  // ids stay: the graph only counts them
  for (std::size_t i = 0; i < batch.inputs.size() && i < inputs_.size(); ++i) {
    EG_ASSIGN_OR_RETURN(over.batch.inputs[i].floats, Bring(batch.inputs[i].floats, graph_.inputs()[i].name, &inputs_[i]));
  }
  EG_ASSIGN_OR_RETURN(over.batch.labels, Bring(batch.labels, "labels", &labels_));
  over.rows.lookup = rows.lookup;
  over.rows.values.resize(rows.values.size());
  if (rows.lookup != nullptr) over.rows.positions.resize(rows.lookup->size());
  for (std::size_t t = 0; t < row_values_.size(); ++t) {
    const std::string& name = graph_.tables()[t].name;
    if (t < rows.values.size()) {
      EG_ASSIGN_OR_RETURN(over.rows.values[t], Bring(rows.values[t], name, &row_values_[t]));
    }
    if (t < over.rows.positions.size()) {
      EG_ASSIGN_OR_RETURN(over.rows.positions[t], Bring(std::span<const std::uint32_t>((*rows.lookup)[t].position), name, &positions_[t]));
    }
  }
  backend_.Record(Lane::kIn, *batch_there_);
  over.weights.resize(weights.size());
  for (std::size_t v = 0; v < weights.size() && v < weights_.size(); ++v) {
    const std::string& name = graph_.variables()[v].name;
    if (current_[v] && weights_[v].bytes() >= weights[v].size_bytes()) {
      EG_ASSIGN_OR_RETURN(over.weights[v], Room<float>(weights[v].size(), name, &weights_[v]));
      continue;
    }
    current_[v] = false;
    EG_ASSIGN_OR_RETURN(over.weights[v], Bring(weights[v], name, &weights_[v]));
    backend_.Record(Lane::kIn, *there_[v]);
    current_[v] = true;
  }
  backend_.Await(Lane::kCompute, *batch_there_);
  return over;
}

absl::StatusOr<StepResult> HostStep::Finish(const absl::Status& queued) {
  absl::StatusOr<StepResult> result = queued.ok() ? graph_.FinishStep() : queued;
  if (!queued.ok()) backend_.TakeError().IgnoreError();  // of a copy: it is no error of the next step
  if (!result.ok()) AllChanged();                        // what was asked for may not have come over
  backend_.Record(Lane::kIn, *all_in_);
  backend_.Record(Lane::kOut, *all_out_);
  EG_RETURN_IF_ERROR(backend_.Wait(*all_in_));
  EG_RETURN_IF_ERROR(backend_.Wait(*all_out_));
  return result;
}

absl::Status HostStep::QueueTrain(const Over& over, std::uint64_t dropout_key, const std::vector<std::span<float>>& gradients,
                                  const std::vector<std::span<float>>& row_gradients) {
  std::vector<Out> made(gradients.size()), rows_made(row_gradients.size());
  for (std::size_t v = 0; v < made.size() && v < gradients_.size(); ++v) {
    EG_ASSIGN_OR_RETURN(made[v], Room<float>(gradients[v].size(), absl::StrCat("gradient of ", graph_.variables()[v].name), &gradients_[v]));
  }
  for (std::size_t t = 0; t < rows_made.size() && t < row_gradients_.size(); ++t) {
    EG_ASSIGN_OR_RETURN(rows_made[t],
                        Room<float>(row_gradients[t].size(), absl::StrCat("gradient of ", graph_.tables()[t].name), &row_gradients_[t]));
  }
  EG_RETURN_IF_ERROR(graph_.QueueTrainStep(over.weights, over.rows, over.batch, dropout_key, made, rows_made, train_events_));
  for (std::size_t v = made.size(); v-- > 0;) {  // the last layer's first
    backend_.Await(Lane::kOut, *made_[v]);
    backend_.Download(Lane::kOut, std::as_bytes(made[v]), std::as_writable_bytes(gradients[v]));
  }
  backend_.Record(Lane::kCompute, *all_made_);
  backend_.Await(Lane::kOut, *all_made_);
  for (std::size_t t = 0; t < rows_made.size(); ++t)
    backend_.Download(Lane::kOut, std::as_bytes(rows_made[t]), std::as_writable_bytes(row_gradients[t]));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> HostStep::TrainStep(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch,
                                               std::uint64_t dropout_key, const std::vector<std::span<float>>& gradients,
                                               const std::vector<std::span<float>>& row_gradients) {
  if (backend_.host_memory()) return graph_.TrainStep(weights, rows, batch, dropout_key, gradients, row_gradients);
  EG_RETURN_IF_ERROR(MakeEvents());
  absl::StatusOr<Over> over = BringAll(weights, rows, batch);
  return Finish(over.ok() ? QueueTrain(*over, dropout_key, gradients, row_gradients) : over.status());
}

absl::StatusOr<StepResult> HostStep::Evaluate(const std::vector<std::span<const float>>& weights, const Rows& rows, const Batch& batch) {
  if (backend_.host_memory()) return graph_.Evaluate(weights, rows, batch);
  EG_RETURN_IF_ERROR(MakeEvents());
  absl::StatusOr<Over> over = BringAll(weights, rows, batch);
  return Finish(over.ok() ? graph_.QueueEvaluate(over->weights, over->rows, over->batch, evaluate_events_) : over.status());
}

}  // namespace evergrad::worker
