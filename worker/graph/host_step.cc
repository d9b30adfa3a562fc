#include "worker/graph/host_step.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {

template <typename T>
bool SameSpan(std::span<const T> a, std::span<const T> b) {
  return a.data() == b.data() && a.size() == b.size();
}
bool SameSpans(const Batch& a, const Batch& b) {
  const auto same = [](const Values& v, const Values& w) {
    return SameSpan(v.floats, w.floats) && SameSpan(v.ids, w.ids);
  };
  return a.size == b.size && SameSpan(a.labels, b.labels) &&
         std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), same);
}

std::span<const std::byte> Bytes(AnyIn x) {
  return {static_cast<const std::byte*>(x.data()), x.size_bytes()};
}
std::span<std::byte> Bytes(AnyOut x) { return {static_cast<std::byte*>(x.data()), x.size_bytes()}; }

}  // namespace

std::size_t CapacityForRows(std::size_t rows) {
  const std::size_t want = std::max<std::size_t>(rows + rows / 16, 64),
                    unit = std::bit_floor(want) / 8;
  return (want + unit - 1) / unit * unit;
}

HostStep::HostStep(Graph* graph, Backend* backend)
    : graph_(*graph), backend_(*backend), current_(graph->variables().size(), false) {
  const std::size_t variables = graph_.variables().size(), tables = graph_.tables().size();
  types_.resize(variables, Element::kFloat32);
  rows_capacity_.resize(tables);
  weights_.resize(variables);
  gradients_.resize(variables);
  for (Side& side : sides_) side.inputs.resize(graph_.inputs().size());
  row_values_.resize(tables);
  row_gradients_.resize(tables);
  positions_.resize(tables);
}

HostStep::~HostStep() { ForgetPrefetch(); }

absl::Status HostStep::MakeQueueMarks() {
  if (all_out_ != nullptr) return absl::OkStatus();
  for (std::size_t v = there_.size(); v < weights_.size(); ++v) {
    EG_ASSIGN_OR_RETURN(std::unique_ptr<QueueMark> there, backend_.MakeQueueMark());
    EG_ASSIGN_OR_RETURN(std::unique_ptr<QueueMark> made, backend_.MakeQueueMark());
    train_marks_.there.push_back(there.get());
    train_marks_.made.push_back(made.get());
    evaluate_marks_.there.push_back(there.get());
    there_.push_back(std::move(there));
    made_.push_back(std::move(made));
  }
  for (Side& side : sides_) {
    EG_ASSIGN_OR_RETURN(side.there, backend_.MakeQueueMark());
  }
  EG_ASSIGN_OR_RETURN(rows_there_, backend_.MakeQueueMark());
  EG_ASSIGN_OR_RETURN(all_made_, backend_.MakeQueueMark());
  EG_ASSIGN_OR_RETURN(all_in_, backend_.MakeQueueMark());
  EG_ASSIGN_OR_RETURN(all_out_, backend_.MakeQueueMark());
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::span<T>> HostStep::Reserve(std::size_t elements, absl::string_view what,
                                               Memory* memory) {
  if (elements == 0) return std::span<T>();
  if (memory->bytes() < elements * sizeof(T)) {
    *memory = {};  // freed first, because the old and the new size may not fit together
    EG_ASSIGN_OR_RETURN(*memory, backend_.Allocate(elements * sizeof(T), what));
  }
  return memory->as<T>().first(elements);
}

template <typename T>
absl::StatusOr<std::span<const T>> HostStep::Bring(std::span<const T> from, absl::string_view what,
                                                   Memory* memory) {
  EG_ASSIGN_OR_RETURN(const std::span<T> to, Reserve<T>(from.size(), what, memory));
  if (!from.empty())
    backend_.Upload(DeviceQueue::kIn, std::as_bytes(from), std::as_writable_bytes(to));
  return to;
}

absl::StatusOr<AnyOut> HostStep::ReserveOf(std::size_t elements, Element type,
                                           absl::string_view what, Memory* memory) {
  EG_ASSIGN_OR_RETURN(const std::span<std::byte> reserved,
                      Reserve<std::byte>(elements * BytesOf(type), what, memory));
  return AnyOut(reserved.data(), elements, type);
}

absl::StatusOr<AnyIn> HostStep::BringRows(std::size_t table, AnyIn rows) {
  const config::TableSpec& spec = graph_.tables()[table];
  const std::size_t dimension = spec.dimension, count = rows.size() / dimension;
  if (count > rows_capacity_[table]) rows_capacity_[table] = CapacityForRows(count);
  EG_ASSIGN_OR_RETURN(
      const AnyOut reserved,
      ReserveOf(rows_capacity_[table] * dimension, rows.type(), spec.name, &row_values_[table]));
  if (!rows.empty())
    backend_.Upload(DeviceQueue::kIn, Bytes(rows), Bytes(reserved.subspan(0, rows.size())));
  if (spec.l2 != 0 && reserved.size() > rows.size())
    backend_.Zero(Bytes(reserved.subspan(rows.size(), reserved.size() - rows.size())));
  return AnyIn(reserved);
}

absl::StatusOr<Batch> HostStep::BringBatch(const Batch& batch, Side* side) {
  Batch over = batch;  // ids are not copied, because the graph only counts them
  for (std::size_t i = 0; i < batch.inputs.size() && i < side->inputs.size(); ++i) {
    EG_ASSIGN_OR_RETURN(over.inputs[i].floats,
                        Bring(batch.inputs[i].floats, graph_.inputs()[i].name, &side->inputs[i]));
  }
  EG_ASSIGN_OR_RETURN(over.labels, Bring(batch.labels, "labels", &side->labels));
  backend_.Record(DeviceQueue::kIn, *side->there);
  return over;
}

void HostStep::PrefetchBatch(const Batch& batch) {
  if (backend_.host_memory()) return;
  ForgetPrefetch();
  if (!MakeQueueMarks().ok()) return;
  const int side = in_step_ ? 1 - side_ : side_;
  absl::StatusOr<Batch> over = BringBatch(batch, &sides_[side]);
  // Within a step, a failed copy becomes an error of this step. Between steps the error is ignored,
  // and the next step copies its batch itself.
  const absl::Status refused = in_step_ ? absl::OkStatus() : backend_.TakeError();
  if (over.ok() && refused.ok()) {
    ahead_ = Ahead{side, batch, *std::move(over)};
    return;
  }
  // The queued copies read the caller's memory, so the call waits for them.
  backend_.Record(DeviceQueue::kIn, *sides_[side].there);
  static_cast<void>(backend_.Wait(*sides_[side].there));
}

void HostStep::ForgetPrefetch() {
  if (!ahead_) return;
  // The result is ignored, because the next step reports a device failure.
  static_cast<void>(backend_.Wait(*sides_[ahead_->side].there));
  ahead_.reset();
}

absl::StatusOr<HostStep::Over> HostStep::BringAll(const std::vector<AnyIn>& weights,
                                                  const Rows& rows, const Batch& batch) {
  Over over;
  if (ahead_ && SameSpans(ahead_->host, batch)) {
    side_ = ahead_->side;
    over.batch = std::move(ahead_->over);
    ahead_.reset();
    ++prefetched_;
  } else {
    ForgetPrefetch();
    EG_ASSIGN_OR_RETURN(over.batch, BringBatch(batch, &sides_[side_]));
  }
  backend_.Await(DeviceQueue::kCompute, *sides_[side_].there);
  over.rows.lookup = rows.lookup;
  over.rows.values.resize(rows.values.size());
  if (rows.lookup != nullptr) over.rows.positions.resize(rows.lookup->size());
  for (std::size_t t = 0; t < row_values_.size(); ++t) {
    const std::string& name = graph_.tables()[t].name;
    if (t < rows.values.size()) {
      EG_ASSIGN_OR_RETURN(over.rows.values[t], BringRows(t, rows.values[t]));
    }
    if (t < over.rows.positions.size()) {
      EG_ASSIGN_OR_RETURN(
          over.rows.positions[t],
          Bring(std::span<const std::uint32_t>((*rows.lookup)[t].position), name, &positions_[t]));
    }
  }
  if (!row_values_.empty()) {
    backend_.Record(DeviceQueue::kIn, *rows_there_);
    backend_.Await(DeviceQueue::kCompute, *rows_there_);
  }
  over.weights.resize(weights.size());
  for (std::size_t v = 0; v < weights.size() && v < weights_.size(); ++v) {
    const std::string& name = graph_.variables()[v].name;
    const bool current = current_[v] && types_[v] == weights[v].type() &&
                         weights_[v].bytes() >= weights[v].size_bytes();
    current_[v] = false;
    EG_ASSIGN_OR_RETURN(const AnyOut there,
                        ReserveOf(weights[v].size(), weights[v].type(), name, &weights_[v]));
    if (!current) {
      if (!weights[v].empty()) backend_.Upload(DeviceQueue::kIn, Bytes(weights[v]), Bytes(there));
      backend_.Record(DeviceQueue::kIn, *there_[v]);
    }
    over.weights[v] = there;
    types_[v] = weights[v].type();
    current_[v] = true;
  }
  return over;
}

absl::Status HostStep::Told(const absl::Status& refused, const Batch& batch,
                            bool with_gradients) const {
  if (!absl::IsResourceExhausted(refused)) return refused;
  Graph::CallersMemory ours;
  std::uint64_t elements = batch.labels.size();
  for (const Values& input : batch.inputs) elements += input.floats.size();
  ours.per_example = std::size(sides_) * elements * sizeof(float) /
                     static_cast<std::uint64_t>(std::max<std::int64_t>(1, batch.size));
  for (const Side& side : sides_) {
    ours.held += side.labels.bytes();
    for (const Memory& input : side.inputs) ours.held += input.bytes();
  }
  for (std::size_t v = 0; v < weights_.size(); ++v) {
    const std::uint64_t bytes = graph_.variables()[v].shape.elements() * BytesOf(types_[v]);
    if (weights_[v].bytes() < bytes) ours.still_wanted += bytes;
    if (with_gradients && gradients_[v].bytes() < bytes) ours.still_wanted += bytes;
  }
  return graph_.NoMemory(refused, batch.size, with_gradients, ours);
}

absl::StatusOr<StepResult> HostStep::Finish(const absl::Status& queued,
                                            const Meanwhile& meanwhile) {
  backend_.Record(DeviceQueue::kIn, *all_in_);  // prefetched copies are queued after this event
  if (queued.ok() && meanwhile) {
    in_step_ = true;
    meanwhile();
    in_step_ = false;
  }
  absl::StatusOr<StepResult> result = queued.ok() ? graph_.FinishStep() : queued;
  // The error of a copy of this step must not be reported as an error of the next step.
  if (!queued.ok()) backend_.TakeError().IgnoreError();
  if (!result.ok()) {
    AllChanged();  // queued copies may have failed
    ForgetPrefetch();
    // The event is recorded again, because an error may have prevented the record.
    backend_.Record(DeviceQueue::kIn, *all_in_);
  }
  backend_.Record(DeviceQueue::kOut, *all_out_);
  EG_RETURN_IF_ERROR(backend_.Wait(*all_in_));
  EG_RETURN_IF_ERROR(backend_.Wait(*all_out_));
  // After an error, the backend's memory has undefined values, and the step may still write to it.
  if (!result.ok()) {
    backend_.Record(DeviceQueue::kCompute, *all_made_);
    EG_RETURN_IF_ERROR(backend_.Wait(*all_made_));
  }
  if (absl::IsResourceExhausted(
          // Otherwise the memory of a batch that did not fit would be missing for a smaller batch.
          result.status())) {
    rows_capacity_.assign(rows_capacity_.size(), 0);
    for (std::vector<Memory>* const of_tables : {&row_values_, &row_gradients_})
      for (Memory& memory : *of_tables) memory = {};
  }
  return result;
}

absl::Status HostStep::QueueTrain(const Over& over, std::uint64_t dropout_key,
                                  const std::vector<AnyOut>& gradients,
                                  const std::vector<AnyOut>& row_gradients) {
  std::vector<AnyOut> made(gradients.size()), rows_made(row_gradients.size());
  const auto reserve = [this](std::size_t elements, Element type, const std::string& of,
                              Memory* memory, AnyOut* out) -> absl::Status {
    EG_ASSIGN_OR_RETURN(*out, ReserveOf(elements, type, absl::StrCat("gradient of ", of), memory));
    return absl::OkStatus();
  };
  absl::Status status;
  for (std::size_t v = 0; v < made.size() && v < gradients_.size() && status.ok(); ++v)
    status = reserve(gradients[v].size(), gradients[v].type(), graph_.variables()[v].name,
                     &gradients_[v], &made[v]);
  for (std::size_t t = 0; t < rows_made.size() && t < over.rows.values.size() && status.ok(); ++t)
    status = reserve(over.rows.values[t].size(), row_gradients[t].type(), graph_.tables()[t].name,
                     &row_gradients_[t], &rows_made[t]);
  if (!status.ok()) return Told(status, over.batch, true);
  EG_RETURN_IF_ERROR(graph_.QueueTrainStep(over.weights, over.rows, over.batch, dropout_key, made,
                                           rows_made, train_marks_));
  for (std::size_t v = made.size(); v-- > 0;) {  // the last layer's gradient is ready first
    backend_.Await(DeviceQueue::kOut, *made_[v]);
    backend_.Download(DeviceQueue::kOut, Bytes(AnyIn(made[v])), Bytes(gradients[v]));
  }
  backend_.Record(DeviceQueue::kCompute, *all_made_);
  backend_.Await(DeviceQueue::kOut, *all_made_);
  for (std::size_t t = 0; t < rows_made.size(); ++t)
    backend_.Download(DeviceQueue::kOut,
                      Bytes(AnyIn(rows_made[t].subspan(0, row_gradients[t].size()))),
                      Bytes(row_gradients[t]));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> HostStep::TrainStep(const std::vector<AnyIn>& weights, const Rows& rows,
                                               const Batch& batch, std::uint64_t dropout_key,
                                               const std::vector<AnyOut>& gradients,
                                               const std::vector<AnyOut>& row_gradients,
                                               const Meanwhile& meanwhile) {
  if (backend_.host_memory())
    return graph_.TrainStep(weights, rows, batch, dropout_key, gradients, row_gradients);
  for (std::size_t t = 0; t < row_gradients.size() && t < rows.values.size();
       ++t) {  // the copies have the allocated size
    if (row_gradients[t].size() != rows.values[t].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("row gradient elements mismatch: table=", graph_.tables()[t].name,
                       " want=", rows.values[t].size(), " got=", row_gradients[t].size()));
    }
  }
  EG_RETURN_IF_ERROR(MakeQueueMarks());
  absl::StatusOr<Over> over = BringAll(weights, rows, batch);
  return Finish(over.ok() ? QueueTrain(*over, dropout_key, gradients, row_gradients)
                          : Told(over.status(), batch, true),
                meanwhile);
}

absl::StatusOr<StepResult> HostStep::Evaluate(const std::vector<AnyIn>& weights, const Rows& rows,
                                              const Batch& batch, const Meanwhile& meanwhile) {
  if (backend_.host_memory()) return graph_.Evaluate(weights, rows, batch);
  EG_RETURN_IF_ERROR(MakeQueueMarks());
  absl::StatusOr<Over> over = BringAll(weights, rows, batch);
  return Finish(over.ok()
                    ? graph_.QueueEvaluate(over->weights, over->rows, over->batch, evaluate_marks_)
                    : Told(over.status(), batch, false),
                meanwhile);
}

}  // namespace evergrad::worker
