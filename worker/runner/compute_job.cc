#include "worker/runner/compute_job.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_type.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"
#include "common/tensor/convert.h"
#include "worker/backend/precision.h"
#include "worker/runner/describe_model.h"
#include "worker/runner/export_files.h"
#include "worker/runner/shortfall.h"

namespace evergrad::worker {
namespace {

// Returns Shortfall::kAbility if this worker's device does not support the precision.
absl::StatusOr<Precision> PrecisionOf(const config::JobSpec& spec, const Backend& backend) {
  const std::string& name = spec.training.precision;
  const std::optional<Precision> precision = ParsePrecision(name);
  const absl::Status can =
      precision ? backend.CheckPrecision(*precision) : absl::InvalidArgumentError("unknown name");
  if (can.ok()) return *precision;
  return WithShortfall(
      Shortfall::kAbility,
      absl::FailedPreconditionError(absl::StrCat(
          "this worker's device cannot compute in the job's precision: training.precision=", name,
          " device=", backend.name(), ": ", can.message())));
}

// Returns Internal if the layout's tables or variables differ from the graph's.
absl::Status CheckLayout(const Layout& layout, const Graph& graph) {
  bool tables_fit = layout.tables().size() == graph.tables().size();
  for (std::size_t t = 0; tables_fit && t < graph.tables().size(); ++t) {
    tables_fit = layout.tables()[t].name == graph.tables()[t].name &&
                 layout.tables()[t].dimension == graph.tables()[t].dimension;
  }
  if (!tables_fit)
    return absl::InternalError(
        absl::StrCat("the plan's tables differ from the model's: plan=", layout.tables().size(),
                     " model=", graph.tables().size()));
  const auto& have = layout.variables();
  const auto& want = graph.variables();
  for (std::size_t i = 0; i < std::max(have.size(), want.size()); ++i) {
    if (i < have.size() && i < want.size() && have[i].name == want[i].name &&
        have[i].shape == want[i].shape)
      continue;
    return absl::InternalError(
        absl::StrCat("the plan's variables differ from the model's: position=", i,
                     " model=", i < want.size() ? want[i].name + want[i].shape.ToString() : "-",
                     " plan=", i < have.size() ? have[i].name + have[i].shape.ToString() : "-"));
  }
  return absl::OkStatus();
}

}  // namespace

ComputeBackend::ComputeBackend(BackendOptions options)
    : make_([options = std::move(options)] { return MakeBackend(options); }) {}

absl::StatusOr<Backend*> ComputeBackend::Get() {
  if (backend_ == nullptr) {
    EG_ASSIGN_OR_RETURN(backend_, make_());
    on_device_ = !backend_->host_memory();
    MutexLock lock(&mu_);
    host_ = backend_->host();
  }
  return backend_.get();
}

tensor::AlignedBuffer ComputeBackend::Stage(std::size_t bytes) const {
  std::shared_ptr<HostMemory> host;
  {
    MutexLock lock(&mu_);
    host = host_;
  }
  if (host == nullptr) return {};
  absl::StatusOr<tensor::AlignedBuffer> memory = host->Allocate(bytes);
  if (memory.ok()) return *std::move(memory);
  staging_refused_.fetch_add(1);
  return {};
}

std::optional<DeviceUse> ComputeBackend::use() const {
  read_ = true;
  MutexLock lock(&mu_);
  return use_;
}

void ComputeBackend::TakeUse() {
  if (!on_device_) return;
  const bool ask = read_.exchange(false);
  std::optional<DeviceUse> use = backend_->device_use(ask);
  MutexLock lock(&mu_);
  if (use && use_ && !ask)
    use->utilization = use_->utilization, use->memory.free = use_->memory.free;
  use_ = std::move(use);
}

void AddMetrics(const std::vector<MetricSum>& step, std::vector<MetricSum>* total) {
  total->resize(step.size());
  for (std::size_t m = 0; m < step.size(); ++m) (*total)[m].Add(step[m]);
}

void FillSums(const std::vector<std::string>& names, const std::vector<MetricSum>& measured,
              bool with_counts, v1::ClosureMetrics* to) {
  for (std::size_t m = 0; m < names.size() && m < measured.size(); ++m) {
    if (!measured[m].counts.empty() && !with_counts) continue;
    v1::NamedSum& sum = *to->add_sums();
    sum.set_name(names[m]);
    switch (config::FindBuilt(config::Metrics(), names[m])->kind) {
      case MetricType::kAuc:
        sum.set_reduction(v1::AUC);
        for (const std::int64_t count : measured[m].counts) sum.add_counts(count);
        break;
      case MetricType::kRootMeanSquaredError:
        sum.set_reduction(v1::ROOT_MEAN);
        sum.set_sum(measured[m].sum);
        break;
      case MetricType::kAccuracy:
        sum.set_is_integer(true);
        sum.set_count(measured[m].count);
        break;
    }
  }
}

ComputeJob::ComputeJob(std::shared_ptr<const config::JobSpec> spec, std::uint64_t seed,
                       std::shared_ptr<ComputeBackend> backend, DataOptions data_options,
                       metrics::Limit* data_limit)
    : spec_(std::move(spec)),
      seed_(seed),
      backend_(std::move(backend)),
      data_options_(std::move(data_options)),
      data_limit_(data_limit) {}

absl::StatusOr<std::shared_ptr<const Dataset>> ComputeJob::OpenSource(
    const config::SourceSpec& source, const Dataset* train) const {
  absl::StatusOr<std::unique_ptr<Dataset>> opened =
      OpenDataset(source, spec_->data.fields, train, data_options_);
  if (!opened.ok()) {
    const absl::Status& status = opened.status();
    if (absl::IsResourceExhausted(status)) data_limit_->refused.Add();
    // These errors mean that the file is missing on this host. Errors in its contents would occur
    // on other hosts, too.
    const bool here =
        absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status);
    return here ? WithShortfall(Shortfall::kInput, status) : status;
  }
  std::unique_ptr<Dataset> data = *std::move(opened);
  data_limit_->current.Set(
      std::max(data_limit_->current.value(), static_cast<double>(data->bytes_held())));
  return std::shared_ptr<const Dataset>(std::move(data));
}

absl::Status ComputeJob::Open(const Needs& needs) {
  if (!config::TypeOf(*spec_).trains_model) return absl::OkStatus();
  // The model is opened first, because its errors can be found without reading data.
  if (needs.graph && graph_ == nullptr) {
    EG_ASSIGN_OR_RETURN(Backend* const backend, backend_->Get());
    EG_ASSIGN_OR_RETURN(precision_, PrecisionOf(*spec_, *backend));
    EG_ASSIGN_OR_RETURN(graph_, Graph::Build(spec_->model, backend, precision_));
    steps_.emplace(graph_.get(), backend);
    if (precision_ == Precision::kMixedFloat16) loss_scale_.emplace();
    bound_ = false;
  }
  const bool eval = needs.eval && eval_ == nullptr && spec_->data.eval;
  if ((needs.train || (eval && NeedsTrain(spec_->data.fields))) && train_ == nullptr) {
    if (!spec_->data.train)
      return UserError(absl::InvalidArgumentError("no training data: spec.data.train is missing"));
    EG_ASSIGN_OR_RETURN(train_, OpenSource(*spec_->data.train, nullptr));
    bound_ = false;
  }
  if (eval) {
    EG_ASSIGN_OR_RETURN(eval_, OpenSource(*spec_->data.eval, train_.get()));
    bound_ = false;
  }
  if (!bound_ && graph_ != nullptr) {
    if (train_ != nullptr) EG_RETURN_IF_ERROR(inputs_.Bind(*spec_, *graph_, *train_, "train"));
    if (eval_ != nullptr) EG_RETURN_IF_ERROR(inputs_.Bind(*spec_, *graph_, *eval_, "eval"));
    bound_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::DescribeResult> ComputeJob::Describe() const {
  return DescribeModel(*spec_, seed_, *graph_, *train_, eval_.get());
}

absl::Status ComputeJob::UseLayout(std::shared_ptr<const Layout> layout) {
  if (layout_ == layout) return absl::OkStatus();
  if (graph_ != nullptr) EG_RETURN_IF_ERROR(CheckLayout(*layout, *graph_));
  layout_ = std::move(layout);
  weights_.emplace(layout_, /*as_pulled=*/graph_ != nullptr && on_device());
  if (steps_) steps_->AllChanged();
  return absl::OkStatus();
}

void ComputeJob::Absorb(std::vector<PulledShard> pulled) {
  for (const PulledShard& shard : pulled) {
    if (steps_) steps_->Changed(layout_->slice(shard.shard).variable);
  }
  weights_->Absorb(std::move(pulled));
}

absl::Status ComputeJob::CheckWeights() const {
  if (weights_ && weights_->complete()) return absl::OkStatus();
  return absl::InternalError("a step does not have all of its weights");
}

absl::StatusOr<std::vector<std::span<const float>>> ComputeJob::Weights(
    std::vector<tensor::AlignedBuffer>* widened) const {
  EG_RETURN_IF_ERROR(CheckWeights());
  return weights_->Spans(widened);
}

namespace {

Element ElementOf(tensor::WireType type) { return static_cast<Element>(type); }
static_assert(static_cast<int>(tensor::WireType::kFloat32) == static_cast<int>(Element::kFloat32) &&
              static_cast<int>(tensor::WireType::kFloat16) == static_cast<int>(Element::kFloat16) &&
              static_cast<int>(tensor::WireType::kBFloat16) ==
                  static_cast<int>(Element::kBFloat16));

}  // namespace

absl::StatusOr<std::vector<AnyIn>> ComputeJob::StepWeights() const {
  EG_RETURN_IF_ERROR(CheckWeights());
  std::vector<AnyIn> weights;
  for (const TypedSpan& span : weights_->Held())
    weights.emplace_back(span.data, span.elements, ElementOf(span.type));
  return weights;
}

absl::StatusOr<std::shared_ptr<ComputeJob::BatchRows>> ComputeJob::RowsOf(
    const ReadyBatch& batch, const std::shared_ptr<const Layout>& layout,
    UniqueIds* scratch) const {
  if (layout->tables().empty()) return std::shared_ptr<BatchRows>();
  Batch inputs;
  inputs.size = batch.size;
  inputs.inputs = inputs_.Of(*graph_, batch);
  auto rows = std::make_shared<BatchRows>();
  EG_RETURN_IF_ERROR(graph_->Lookup(inputs, scratch, &rows->lookup));
  if (rows->lookup.size() != layout->tables().size())
    return absl::InternalError("the plan's tables differ from the model's");
  std::vector<std::span<const std::int64_t>> ids;
  ids.reserve(rows->lookup.size());
  for (const TableRows& table : rows->lookup) ids.emplace_back(table.ids);
  rows->slots = std::make_shared<const SlotRows>(layout, ids);
  return rows;
}

namespace {

Rows ValuesOf(const ComputeJob::BatchRows* rows, const Layout& layout) {
  Rows values;
  if (rows == nullptr) return values;
  values.lookup = &rows->lookup;
  for (std::size_t t = 0; t < rows->values.size(); ++t) {
    const std::span<const float> floats = rows->values[t].floats();
    const tensor::WireType wire = layout.tables()[t].wire;
    if (!rows->as_pulled || wire == tensor::WireType::kFloat32 || floats.empty())
      values.values.emplace_back(floats);
    else
      values.values.emplace_back(
          tensor::NarrowHome(wire, const_cast<float*>(floats.data()), floats.size()), floats.size(),
          ElementOf(wire));
  }
  return values;
}

}  // namespace

absl::StatusOr<Batch> ComputeJob::InputsOf(const ReadyBatch& batch,
                                           tensor::AlignedBuffer* as_floats) const {
  Batch inputs;
  inputs.size = batch.size;
  inputs.inputs = inputs_.Of(*graph_, batch);
  EG_ASSIGN_OR_RETURN(
      inputs.labels,
      inputs_.LabelsOf(
          *spec_, batch, [this](std::size_t bytes) { return StageOrHeap(bytes); }, as_floats));
  return inputs;
}

absl::StatusOr<Batch> ComputeJob::StepInputs(const ReadyBatch& batch) {
  if (ahead_.get() == &batch) {
    labels_side_ = 1 - labels_side_;
    ahead_.reset();  // the caller owns the batch
    return std::move(ahead_inputs_);
  }
  ForgetPrefetch();
  return InputsOf(batch, &labels_[labels_side_]);
}

void ComputeJob::ForgetPrefetch() {
  if (ahead_ == nullptr) return;
  steps_->ForgetPrefetch();
  ahead_.reset();
}

void ComputeJob::CopyAhead(std::shared_ptr<const ReadyBatch> batch) {
  if (!steps_ || !on_device()) return;
  ForgetPrefetch();
  absl::StatusOr<Batch> inputs = InputsOf(*batch, &labels_[1 - labels_side_]);
  if (!inputs.ok()) return;
  ahead_inputs_ = *std::move(inputs);
  ahead_ = std::move(batch);
  steps_->PrefetchBatch(ahead_inputs_);
}

HostStep::Meanwhile ComputeJob::CopyingNext(NextBatch* next) {
  if (next == nullptr || !on_device()) return nullptr;
  return [this, next] {
    if (auto batch = next->Take(nullptr)) CopyAhead(std::move(batch));
  };
}

namespace {

// Returns the name of the variable or the table, given by index (-1 for none), with a gradient that
// its wire type cannot represent; "" if there is none.
std::string Overflow(const Layout& layout, int variable, int table) {
  const auto say = [](const char* what, const auto& laid) {
    return absl::StrCat(what, "=", laid.name, " wire_dtype=", tensor::WireTypeName(laid.wire));
  };
  if (variable >= 0) return say("variable", layout.variables()[static_cast<std::size_t>(variable)]);
  return table >= 0 ? say("table", layout.tables()[static_cast<std::size_t>(table)]) : "";
}

}  // namespace

std::shared_ptr<GradientBuffer> ComputeJob::MakeGradients(Backend& backend) const {
  if (backend.host_memory()) return std::make_shared<GradientBuffer>(layout_);
  std::vector<tensor::AlignedBuffer> buffers;
  buffers.reserve(layout_->variables().size());
  for (const LaidVariable& variable : layout_->variables())
    buffers.push_back(StageOrHeap(variable.wire_bytes()));
  return std::make_shared<GradientBuffer>(layout_, std::move(buffers));
}

std::vector<tensor::AlignedBuffer> ComputeJob::MakeRowGradients(Backend& backend,
                                                                const BatchRows& rows) const {
  if (backend.host_memory()) return rows.slots->MakeRows();
  std::vector<tensor::AlignedBuffer> buffers;
  for (std::size_t t = 0; t < rows.lookup.size(); ++t)
    buffers.push_back(StageOrHeap(rows.lookup[t].ids.size() * layout_->tables()[t].row_bytes()));
  return buffers;
}

tensor::AlignedBuffer ComputeJob::StageOrHeap(std::size_t bytes) const {
  if (bytes == 0) return {};
  tensor::AlignedBuffer staged = backend_->Stage(bytes);
  return staged.size() > 0 ? std::move(staged) : tensor::AlignedBuffer(bytes);
}

absl::StatusOr<ComputeJob::Step> ComputeJob::Train(const ReadyBatch& batch, BatchRows* rows,
                                                   std::uint64_t dropout_key, NextBatch* next) {
  EG_ASSIGN_OR_RETURN(const std::vector<AnyIn> weights, StepWeights());
  Step step;
  EG_ASSIGN_OR_RETURN(Backend* const backend, backend_->Get());
  const bool wire = !backend->host_memory();  // true: the gradients are narrowed on the device
  backend->SetReproducible(spec_->strategy.deterministic);
  backend->SetTf32(precision_ == Precision::kTf32);
  step.gradients = MakeGradients(*backend);
  std::vector<AnyOut> gradients, row_spans;
  for (std::uint32_t v = 0; v < layout_->variables().size(); ++v) {
    const LaidVariable& laid = layout_->variables()[v];
    gradients.emplace_back(step.gradients->wire(v), laid.shape.elements(),
                           wire ? ElementOf(laid.wire) : Element::kFloat32);
  }
  if (rows != nullptr)
    step.row_gradients =
        std::make_shared<std::vector<tensor::AlignedBuffer>>(MakeRowGradients(*backend, *rows));
  for (std::size_t t = 0; rows != nullptr && t < step.row_gradients->size(); ++t) {
    const LaidTable& laid = layout_->tables()[t];
    row_spans.emplace_back((*step.row_gradients)[t].data(),
                           rows->lookup[t].ids.size() * laid.dimension,
                           wire ? ElementOf(laid.wire) : Element::kFloat32);
  }
  EG_ASSIGN_OR_RETURN(const Batch inputs, StepInputs(batch));
  if (loss_scale_) graph_->SetLossScale(step.loss_scale = loss_scale_->scale());
  const std::uint64_t ahead = steps_->prefetched();
  EG_ASSIGN_OR_RETURN(step.result,
                      steps_->TrainStep(weights, ValuesOf(rows, *layout_), inputs, dropout_key,
                                        gradients, row_spans, CopyingNext(next)));
  step.ahead = steps_->prefetched() > ahead;
  step.too_large =
      loss_scale_ && loss_scale_->After(step.result.finite) == LossScale::Verdict::kSkip;
  backend_->TakeUse();
  if (!wire) {
    ToWire(rows, &step);
    return step;
  }
  step.overflowed = Overflow(*layout_, step.result.overflowed, step.result.rows_overflowed);
  return step;
}

void ComputeJob::ToWire(const BatchRows* rows, Step* step) const {
  const int variable = step->gradients->ToWire(),
            table = rows == nullptr ? -1 : rows->slots->ToWire(step->row_gradients.get());
  step->overflowed = Overflow(*layout_, variable, table);
}

absl::StatusOr<ComputeJob::FunctionStep> ComputeJob::RunFunction(sdk::FunctionCall& call) {
  std::vector<tensor::AlignedBuffer> widened;
  EG_ASSIGN_OR_RETURN(const auto weights, Weights(&widened));
  std::vector<sdk::FunctionCall::Variable> variables;
  variables.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    variables.push_back(
        {layout_->variables()[i].name, layout_->variables()[i].shape.dims(), weights[i]});
  FunctionStep step;
  EG_ASSIGN_OR_RETURN(step.outcome, call.Step(variables, [&](std::uint32_t variable) {
    if (step.gradients == nullptr)
      step.gradients = std::make_shared<GradientBuffer>(layout_, /*zeroed=*/true);
    return step.gradients->variable(variable);
  }));
  for (const std::uint32_t variable : step.outcome.pushed) {
    const std::span<const float> gradient = step.gradients->variable(variable);
    step.finite = step.finite && std::all_of(gradient.begin(), gradient.end(),
                                             [](float g) { return std::isfinite(g); });
  }
  if (step.gradients != nullptr) step.overflowed = Overflow(*layout_, step.gradients->ToWire(), -1);
  if (step.outcome.last) step.result = call.result();
  return step;
}

absl::StatusOr<StepResult> ComputeJob::Evaluate(const ReadyBatch& batch, const BatchRows* rows,
                                                NextBatch* next) {
  EG_ASSIGN_OR_RETURN(const std::vector<AnyIn> weights, StepWeights());
  EG_ASSIGN_OR_RETURN(Backend* const backend, backend_->Get());
  backend->SetReproducible(spec_->strategy.deterministic);
  backend->SetTf32(precision_ == Precision::kTf32);
  EG_ASSIGN_OR_RETURN(const Batch inputs, StepInputs(batch));
  absl::StatusOr<StepResult> result =
      steps_->Evaluate(weights, ValuesOf(rows, *layout_), inputs, CopyingNext(next));
  backend_->TakeUse();
  return result;
}

absl::StatusOr<ComputeJob::Exported> ComputeJob::Export() const {
  Exported exported;
  EG_ASSIGN_OR_RETURN(const auto weights, Weights(&exported.widened));
  std::vector<weights::NamedTensor> tensors;
  for (std::size_t i = 0; i < weights.size(); ++i)
    tensors.push_back({layout_->variables()[i].name, layout_->variables()[i].shape, weights[i]});
  EG_ASSIGN_OR_RETURN(exported.files,
                      MakeExport(tensors, train_ == nullptr ? std::vector<FieldVocabulary>()
                                                            : train_->Vocabularies()));
  return exported;
}

}  // namespace evergrad::worker
