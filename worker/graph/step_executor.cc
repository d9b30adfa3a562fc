#include "worker/graph/step_executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/graph/step_inputs.h"
#include "worker/graph/summary.h"

namespace evergrad::worker {
namespace {

// Returns a number for a new graph. Several graphs may use one backend, which distinguishes their
// steps by this number.
std::uint64_t NextGraphNumber() {
  static std::atomic<std::uint64_t> next{0};
  return ++next;
}

}  // namespace

StepExecutor::StepExecutor(GraphNodes nodes, Backend* backend)
    : nodes_(std::move(nodes)),
      backend_(*backend),
      buffers_(nodes_, backend_),
      gradient_written_(nodes_.storages.size()),
      cast_made_(nodes_.storages.size()),
      results_(nodes_),
      step_keys_(nodes_.keys),
      number_(NextGraphNumber()) {}

absl::Status StepExecutor::Allocate() {
  EG_RETURN_IF_ERROR(results_.Allocate(backend_));
  EG_RETURN_IF_ERROR(buffers_.AllocateNarrowed());
  if (step_keys_.empty()) return absl::OkStatus();
  EG_ASSIGN_OR_RETURN(
      keys_, backend_.Allocate(step_keys_.size() * sizeof(std::uint64_t), "keys of a step"));
  return absl::OkStatus();
}

std::string StepExecutor::Summary() const { return SummaryOf(nodes_); }

absl::Status StepExecutor::Lookup(const Batch& batch, UniqueIds* scratch,
                                  std::vector<TableRows>* rows) const {
  return LookUpRows(nodes_, batch, scratch, rows);
}

std::vector<AnyIn> StepExecutor::InputsOf(const GraphLayer& node, const Batch& batch) const {
  std::vector<AnyIn> inputs;
  inputs.reserve(node.inputs.size());
  for (const std::size_t input : node.inputs)
    inputs.push_back(buffers_.DataAs(input, batch, node.reads));
  return inputs;
}

std::vector<AnyIn> StepExecutor::VariablesOf(const GraphLayer& node,
                                             const std::vector<AnyIn>& weights) {
  std::vector<AnyIn> variables;
  for (std::size_t v = node.first_variable; v < node.end_variable(); ++v) {
    variables.push_back(IsReadAsItCame(node, v, weights[v]) ? weights[v]
                        : nodes_.IsNarrowed(node, v)        ? AnyIn(buffers_.NarrowedOf(v))
                                                     : AnyIn(buffers_.WideWeight(v, weights[v])));
  }
  return variables;
}

std::vector<Out> StepExecutor::GradientsOf(const GraphLayer& node,
                                           const std::vector<AnyOut>& gradients) {
  std::vector<Out> wide;
  for (std::size_t v = node.first_variable; v < node.end_variable(); ++v)
    wide.push_back(buffers_.WideGradient(v, gradients[v]));
  return wide;
}

void StepExecutor::HandOut(In gradient, AnyOut wanted, std::size_t number) {
  if (wanted.is_float32()) return;
  backend_.Copy(gradient, wanted);
  backend_.FindNotFinite(wanted, &results_.overflows()[number]);
}

void StepExecutor::CastInputs(const GraphLayer& node, const Batch& batch) {
  for (const std::size_t input : node.inputs) {
    const std::size_t storage = nodes_.values[input].storage;
    if (nodes_.storages[storage].type == node.reads || cast_made_[storage]) continue;
    cast_made_[storage] = true;
    backend_.Copy(buffers_.DataOf(input, batch), buffers_.CastOf(input, batch.size));
  }
}

void StepExecutor::Regularize(double l2, In values, Out gradient, double* squares) {
  if (l2 == 0) return;
  backend_.SumOfSquares(values, squares);
  if (!gradient.empty()) backend_.AddScaled(static_cast<float>(2 * l2), values, gradient);
}

void StepExecutor::Sign(const std::vector<AnyIn>& weights, const Rows& rows, const Batch& batch,
                        const std::vector<AnyOut>& gradients,
                        const std::vector<AnyOut>& row_gradients, const StepMarks& marks,
                        bool training) {
  signature_.assign(
      {number_, buffers_.generation(), static_cast<std::uint64_t>(batch.size), training ? 1u : 0u});
  const auto address = [this](const void* at) {
    signature_.push_back(reinterpret_cast<std::uintptr_t>(at));
  };
  const auto all = [&](const auto& spans) {
    for (const auto& span : spans) {
      address(span.data());
      signature_.push_back(span.size());
      signature_.push_back(static_cast<std::uint64_t>(span.type()));
    }
  };
  all(weights);
  all(gradients);
  all(row_gradients);
  all(rows.values);
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t)
    address(rows.positions.empty() ? (*rows.lookup)[t].position.data() : rows.positions[t].data());
  for (const Values& input : batch.inputs) address(input.floats.data());
  address(batch.labels.data());
  signature_.push_back(std::bit_cast<std::uint32_t>(loss_scale_));
  for (const QueueMark* mark : marks.there) address(mark);
  for (const QueueMark* mark : marks.made) address(mark);
}

void StepExecutor::UploadKeys(std::uint64_t dropout_key) {
  if (step_keys_.empty()) return;
  for (const GraphLayer& node : nodes_.layers) {
    if (node.key) step_keys_[*node.key] = *node.layer->StepKey(dropout_key);
  }
  backend_.Upload(DeviceQueue::kCompute, std::as_bytes(std::span(step_keys_)),
                  keys_.as<std::byte>().first(step_keys_.size() * sizeof(std::uint64_t)));
}

void StepExecutor::PrepareVariables(const GraphLayer& node, const std::vector<AnyIn>& weights,
                                    const StepMarks& marks) {
  for (std::size_t v = node.first_variable; v < node.end_variable(); ++v) {
    if (v < marks.there.size() && marks.there[v] != nullptr)
      backend_.Await(DeviceQueue::kCompute, *marks.there[v]);
    const bool as_it_came = IsReadAsItCame(node, v, weights[v]);
    if (!weights[v].is_float32() && (!as_it_came || nodes_.variables[v].l2 != 0))
      backend_.Copy(weights[v], buffers_.WeightCopyOf(v, weights[v].size()));
    if (nodes_.IsNarrowed(node, v) && !as_it_came)
      backend_.Copy(buffers_.WideWeight(v, weights[v]), buffers_.NarrowedOf(v));
  }
}

void StepExecutor::Forward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows,
                           const Batch& batch, const StepMarks& marks) {
  cast_made_.assign(cast_made_.size(), false);
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t) {
    if (rows.values[t].is_float32()) continue;
    backend_.Enter(nodes_.tables[t].name, Phase::kForward);
    backend_.Copy(rows.values[t], buffers_.RowsCopyOf(t, rows.values[t].size()));
  }
  for (const GraphLayer& node : nodes_.layers) {
    if (node.layer->is_view()) continue;
    backend_.Enter(node.layer->name(), Phase::kForward);
    PrepareVariables(node, weights, marks);
    if (node.embedding == nullptr) CastInputs(node, batch);
    pass.key = KeyOf(node);
    const AnyOut y = buffers_.OutputOf(node.output, batch.size);
    if (node.embedding != nullptr)
      node.embedding->Gather(pass, PositionsOf(node, rows, batch.size),
                             buffers_.WideRows(node.table, rows.values[node.table]),
                             WeightsOf(node, batch), y);
    else if (node.layer->merges())
      node.layer->Merge(pass, InputsOf(node, batch), y);
    else
      node.layer->Forward(pass, VariablesOf(node, weights),
                          buffers_.DataAs(node.inputs[0], batch, node.reads), y);
  }
}

template <typename Write>
void StepExecutor::Contribute(std::size_t value, std::int64_t batch, Element type, Write write) {
  const std::size_t storage = nodes_.values[value].storage;
  const AnyOut total = buffers_.GradientOf(value, batch);
  const bool first = !gradient_written_[storage];
  gradient_written_[storage] = true;
  if (first && type == total.type()) return write(total);
  const AnyOut part = buffers_.Scratch(total.size(), type);
  write(part);
  if (first)
    backend_.Copy(part, total);
  else
    backend_.AddScaled(1, part, total);
}

void StepExecutor::Losses(const Batch& batch, bool with_gradients) {
  for (std::size_t l = 0; l < nodes_.losses.size(); ++l) {
    const GraphLoss& node = nodes_.losses[l];
    backend_.Enter(node.name, Phase::kLoss);
    const In output = buffers_.DataOf(node.value, batch).floats();
    const auto compute = [&](AnyOut to) {
      const Out gradient = to.floats();
      backend_.ComputeLoss(node.loss, batch.size, output, batch.labels, gradient, results_.loss(l));
      if (!gradient.empty() && loss_scale_ != 1) backend_.Scale(loss_scale_, gradient, gradient);
    };
    if (with_gradients && nodes_.values[node.value].needs_gradient)
      Contribute(node.value, batch.size, Element::kFloat32, compute);
    else
      compute({});
  }
  const Loss& loss = nodes_.losses[0].loss;
  const In output = buffers_.DataOf(nodes_.losses[0].value, batch).floats();
  for (std::size_t m = 0; m < nodes_.metrics.size(); ++m) {
    if (const auto counts = results_.counts(m); !counts.empty())
      backend_.CountAuc(loss.from_logits, output, batch.labels, counts);
    if (const auto sum = results_.sum(m); !sum.empty())
      backend_.SumOfMeanSquares(batch.size, loss.label_elements(), output, batch.labels,
                                sum.data());
  }
}

void StepExecutor::FinishGradients(const GraphLayer& node, const std::vector<AnyIn>& weights,
                                   const std::vector<AnyOut>& gradients, const StepMarks& marks) {
  for (std::size_t v = node.first_variable; v < node.end_variable(); ++v) {
    const Out gradient = buffers_.WideGradient(v, gradients[v]);
    if (!nodes_.variables[v].is_moving_average()) Unscale(gradient);
    Regularize(nodes_.variables[v].l2, buffers_.WideWeight(v, weights[v]), gradient,
               results_.squares(v));
    backend_.FindNotFinite(gradient, results_.not_finite().data());
    HandOut(gradient, gradients[v], v);
    if (v < marks.made.size() && marks.made[v] != nullptr)
      backend_.Record(DeviceQueue::kCompute, *marks.made[v]);
  }
}

void StepExecutor::FinishRowGradients(const Rows& rows, const std::vector<AnyOut>& row_gradients) {
  for (std::size_t t = 0; t < nodes_.tables.size(); ++t) {
    backend_.Enter(nodes_.tables[t].name, Phase::kFinish);
    const Out gradient = buffers_.WideRowGradient(t, row_gradients[t]);
    Unscale(gradient);
    Regularize(nodes_.tables[t].l2, buffers_.WideRows(t, rows.values[t]), gradient,
               results_.row_squares(t));
    backend_.FindNotFinite(gradient, results_.not_finite().data());
    HandOut(gradient, row_gradients[t], nodes_.variables.size() + t);
  }
}

void StepExecutor::Backward(Pass pass, const std::vector<AnyIn>& weights, const Rows& rows,
                            const Batch& batch, const std::vector<AnyOut>& gradients,
                            const std::vector<AnyOut>& row_gradients, const StepMarks& marks) {
  for (std::size_t n = nodes_.layers.size(); n-- > 0;) {
    const GraphLayer& node = nodes_.layers[n];
    if (node.layer->is_view() || !nodes_.values[node.output].needs_gradient) continue;
    backend_.Enter(node.layer->name(), Phase::kBackward);
    pass.key = KeyOf(node);
    // The gradient exists, because every layer reaches a loss.
    EG_CHECK(gradient_written_[nodes_.values[node.output].storage]);
    const AnyOut dy = buffers_.GradientOf(node.output, batch.size);
    if (node.embedding != nullptr) {
      node.embedding->Scatter(pass, PositionsOf(node, rows, batch.size), WeightsOf(node, batch), dy,
                              buffers_.WideRowGradient(node.table, row_gradients[node.table]));
      continue;
    }
    if (node.layer->merges()) {
      const std::vector<AnyIn> inputs = InputsOf(node, batch);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!nodes_.values[node.inputs[i]].needs_gradient) continue;
        Contribute(node.inputs[i], batch.size, node.reads, [&](AnyOut dx) {
          node.layer->Unmerge(pass, inputs, buffers_.DataOf(node.output, batch), dy, i, dx);
        });
      }
      continue;
    }
    const std::size_t input = node.inputs[0];
    const auto backward = [&](AnyOut dx) {
      node.layer->Backward(
          pass, VariablesOf(node, weights), buffers_.DataAs(input, batch, node.reads),
          buffers_.DataOf(node.output, batch), dy, dx, GradientsOf(node, gradients));
    };
    if (nodes_.values[input].needs_gradient) {
      Contribute(input, batch.size, node.reads, backward);
    } else {
      backward({});
    }
    FinishGradients(node, weights, gradients, marks);
  }
  FinishRowGradients(rows, row_gradients);
}

absl::Status StepExecutor::QueueTrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                          const Batch& batch, std::uint64_t dropout_key,
                                          const std::vector<AnyOut>& gradients,
                                          const std::vector<AnyOut>& row_gradients,
                                          const StepMarks& marks) {
  EG_RETURN_IF_ERROR(CheckBatch(nodes_, weights, rows, batch));
  EG_RETURN_IF_ERROR(CheckGradients(nodes_, rows, gradients, row_gradients));
  EG_RETURN_IF_ERROR(buffers_.Reserve(batch.size, true));
  EG_RETURN_IF_ERROR(buffers_.ReserveWide(weights, rows, gradients, row_gradients));
  const auto narrow = [](AnyOut wanted) { return !wanted.is_float32(); };
  handed_narrow_ = std::any_of(gradients.begin(), gradients.end(), narrow) ||
                   std::any_of(row_gradients.begin(), row_gradients.end(), narrow);
  UploadKeys(dropout_key);
  queued_ = batch.size, queued_gradients_ = true;
  Sign(weights, rows, batch, gradients, row_gradients, marks, true);
  if (!backend_.BeginStep(signature_)) {
    gradient_written_.assign(gradient_written_.size(), false);
    const Pass pass{backend_, batch.size, true, {}};
    backend_.Enter("step", Phase::kForward);
    backend_.Zero(std::as_writable_bytes(results_.not_finite()));
    if (handed_narrow_) backend_.Zero(std::as_writable_bytes(results_.overflows()));
    for (std::size_t t = 0; t < nodes_.tables.size(); ++t)
      backend_.Zero(std::as_writable_bytes(buffers_.WideRowGradient(t, row_gradients[t])));
    Forward(pass, weights, rows, batch, marks);
    Losses(batch, true);
    Backward(pass, weights, rows, batch, gradients, row_gradients, marks);
  }
  backend_.EndStep();
  return absl::OkStatus();
}

absl::Status StepExecutor::QueueEvaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                         const Batch& batch, const StepMarks& marks) {
  EG_RETURN_IF_ERROR(CheckBatch(nodes_, weights, rows, batch));
  EG_RETURN_IF_ERROR(buffers_.Reserve(batch.size, false));
  EG_RETURN_IF_ERROR(buffers_.ReserveWide(weights, rows, {}, {}));
  handed_narrow_ = false;
  queued_ = batch.size, queued_gradients_ = false;
  Sign(weights, rows, batch, {}, {}, marks, false);
  if (!backend_.BeginStep(signature_)) {
    backend_.Enter("step", Phase::kForward);
    backend_.Zero(std::as_writable_bytes(results_.not_finite()));
    Forward({backend_, batch.size, false, {}}, weights, rows, batch, marks);
    Losses(batch, false);
    backend_.Enter("regularizers", Phase::kFinish);
    for (std::size_t v = 0; v < nodes_.variables.size(); ++v)
      Regularize(nodes_.variables[v].l2, buffers_.WideWeight(v, weights[v]), {},
                 results_.squares(v));
    for (std::size_t t = 0; t < nodes_.tables.size(); ++t)
      Regularize(nodes_.tables[t].l2, buffers_.WideRows(t, rows.values[t]), {},
                 results_.row_squares(t));
  }
  backend_.EndStep();
  return absl::OkStatus();
}

absl::StatusOr<StepResult> StepExecutor::FinishStep() {
  EG_CHECK(queued_ > 0);
  const std::int64_t batch = std::exchange(queued_, 0);
  if (const absl::Status fetched = results_.Fetch(backend_); !fetched.ok())
    return absl::IsResourceExhausted(fetched) ? NoMemory(fetched, batch, queued_gradients_, {})
                                              : fetched;
  return results_.Read(batch, handed_narrow_);
}

}  // namespace evergrad::worker
