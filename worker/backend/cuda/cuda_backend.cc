#include "worker/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/backend/cuda/algorithm_choice.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/kernels/columns.h"
#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/library.h"
#include "worker/backend/cuda/step_times.h"

namespace evergrad::worker {
namespace {

static_assert(sizeof(EgLossResult) == sizeof(LossResult) &&
              offsetof(EgLossResult, bad_value) == offsetof(LossResult, bad_value));
static_assert(cuda::kNoRow == kAbsent);

constexpr std::int32_t QueueNumber(DeviceQueue queue) { return static_cast<std::int32_t>(queue); }
static_assert(QueueNumber(DeviceQueue::kCompute) == EG_LANE_COMPUTE &&
              QueueNumber(DeviceQueue::kIn) == EG_LANE_IN &&
              QueueNumber(DeviceQueue::kOut) == EG_LANE_OUT);

// Size of a piece in the ring. One piece is filled while the previous one is transferred.
constexpr std::uint64_t kStagingPiece = 4ull << 20;
constexpr std::size_t kPlansMax = 4096;
constexpr std::int32_t kCandidatesMax = 8, kFirstMax = 4;
constexpr int kMeasuredRuns = 3;  // the first run warms up
// An allocation that failed because the device was out of memory is tried again after this number
// of calls, or at once if this process has released some memory.
constexpr std::uint32_t kAskedAgain = 1000;

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kLoss: return "loss";
    case Phase::kBackward: return "backward";
    case Phase::kFinish: return "finish";
  }
  return "";
}

std::uint64_t HashOf(std::span<const std::uint64_t> words, std::uint64_t more) {
  std::uint64_t h = 0xCBF29CE484222325ull ^ more;
  for (const std::uint64_t word : words) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return h;
}

struct PlanKey {
  EgPlanKey key;  // zeroed before it is filled in
  friend bool operator<(const PlanKey& a, const PlanKey& b) {
    return std::memcmp(&a.key, &b.key, sizeof(EgPlanKey)) < 0;
  }
};

class CudaQueueMark final : public QueueMark {
 public:
  using Drop = std::function<void(EgEvent*)>;
  CudaQueueMark(const Drop& drop, EgEvent* event) : drop_(drop), event_(event) {}
  ~CudaQueueMark() override { drop_(event_); }
  EgEvent* get() const { return event_; }

 private:
  const Drop& drop_;  // owned by the backend, which outlives it
  EgEvent* const event_;
};

EgPoolShape ToC(const PoolShape& s) {
  return {s.batch,  s.in_h,   s.in_w,     s.channels, s.out_h,   s.out_w,
          s.pool_h, s.pool_w, s.stride_h, s.stride_w, s.pad_top, s.pad_left};
}
static_assert(static_cast<int>(Element::kFloat32) == EG_FLOAT32 &&
              static_cast<int>(Element::kFloat16) == EG_FLOAT16 &&
              static_cast<int>(Element::kBFloat16) == EG_BFLOAT16);
std::int32_t ToC(Activation a) {
  switch (a) {
    case Activation::kRelu: return EG_RELU;
    case Activation::kTanh: return EG_TANH;
    case Activation::kSigmoid: return EG_SIGMOID;
    default: return EG_LINEAR;
  }
}

template <typename T>
struct OpOf;
#define EG_OP_OF_(name, type)                   \
  template <>                                   \
  struct OpOf<type> {                           \
    static constexpr std::int32_t kOp = name;   \
    static constexpr const char* kName = #name; \
  };
EG_OPS(EG_OP_OF_)
#undef EG_OP_OF_

class CudaBackendImpl final : public CudaBackend {
 public:
  CudaBackendImpl(const DeviceChoice& choice, const CudaOptions& options, EgContext* context)
      : api_(choice.api),
        context_(context),
        options_(options),
        name_(choice.text),
        memory_(std::make_shared<DeviceMemory>(api_, context)),
        pinned_(std::make_shared<PinnedMemory>(api_)),
        times_(std::make_unique<StepTimes>(api_, context)),
        tensor_cores_(choice.device.major >= 8),
        ring_(options.staging_bytes),
        capture_(options.capture) {}

  ~CudaBackendImpl() override {
    // The destructor waits, because queued work may read the memory that is freed now.
    EgCudaError ignored{};
    EgEvent* done = nullptr;
    for (const DeviceQueue queue : {DeviceQueue::kCompute, DeviceQueue::kIn, DeviceQueue::kOut}) {
      if (api_->make_event(context_, 0, &done, &ignored) != EG_CUDA_OK) continue;
      if (api_->record(context_, QueueNumber(queue), done, &ignored) == EG_CUDA_OK)
        static_cast<void>(api_->wait(done, &ignored));
      api_->drop_event(done);
    }
    if (ranges_ > 0) api_->pop_range();
    for (const auto& [key, replay] : graphs_) api_->drop_graph(replay.graph);
    while (!staged_.empty()) Unstage();
    times_.reset();
    if (finished_ != nullptr) api_->drop_event(finished_);
    for (const auto& [key, choice] : plans_)
      if (choice.plan != nullptr) api_->drop_plan(choice.plan);
    for (tensor::AlignedBuffer* const buffer :
         {&scratch_, &filters_, &narrow_, &wide_, &padded_, &workspace_, &result_, &ring_memory_})
      *buffer = tensor::AlignedBuffer();
    EG_CHECK(memory_.use_count() == 1);  // nothing else outlives a backend
    memory_.reset();
    api_->close(context_);
  }

  std::string name() const override { return name_; }
  CudaStats stats() const override {
    return {memory_->cache().stats(), ring_.stats(),    capture_.stats(), plans_made_,
            plans_measured_,          products_widened_};
  }

  // ---- Memory

  bool host_memory() const override { return false; }
  absl::StatusOr<Memory> Allocate(std::size_t bytes, absl::string_view what) override {
    EG_ASSIGN_OR_RETURN(tensor::AlignedBuffer buffer, DeviceMemory::Allocate(memory_, bytes, what));
    return Memory(std::move(buffer));
  }
  std::shared_ptr<HostMemory> host() const override { return pinned_; }
  MemoryUse memory() const override { return memory_->use(); }

  std::optional<DeviceUse> device_use(bool ask_driver) override {
    const StepTimes::Sums& times = times_->sums();
    const GraphCapture::Stats& capture = capture_.stats();
    DeviceUse use;
    use.name = name_;
    use.memory = memory_->use(ask_driver);
    use.measured = times.steps;
    use.in_bytes = in_bytes_, use.staged_bytes = staged_bytes_;
    use.in = times.in, use.out = times.out, use.kernels = times.kernels,
    use.stalled = times.stalled;
    use.eager = capture.eager, use.captures = capture.captures, use.replays = capture.replays;
    use.recaptures = capture.recaptures;
    use.crowded = capture.crowded, use.graphs = capture.graphs;
    EgCudaError error{};
    float share = 0;
    if (ask_driver && api_->utilization(context_, &share, &error) == EG_CUDA_OK)
      use.utilization = share;
    return use;
  }

  // ---- Copies and their order

  void Upload(DeviceQueue queue, std::span<const std::byte> from,
              std::span<std::byte> to) override {
    if (from.empty() || !error_.ok()) return;
    memory_->UsedBy(queue, to.data());
    if (queue != DeviceQueue::kCompute) times_->BeforeCopy(queue);
    EgCudaError error{};
    in_bytes_ += from.size();
    if (pinned_->Holds(from.data(), from.size()) || !HaveRing()) {
      Check("upload",
            api_->copy(context_, QueueNumber(queue), EG_COPY_IN, to.data(), from.data(),
                       from.size(), &error),
            error);
      return;
    }
    // Copies go through the ring, piece by piece. The caller waits only for its own copies into the
    // ring.
    for (std::size_t at = 0; at < from.size() && error_.ok();) {
      const std::size_t bytes =
          std::min<std::size_t>(from.size() - at, std::min(kStagingPiece, ring_.capacity()));
      const std::optional<StagingRing::StagingBlock> block = Stage(bytes);
      if (!block) return;
      std::byte* const piece = ring_memory_.data() + block->offset;
      std::memcpy(piece, from.data() + at, bytes);
      staged_bytes_ += bytes;
      EgEvent* event = nullptr;
      if (Check("upload", api_->make_event(context_, 0, &event, &error), error) &&
          (!Check("upload",
                  api_->copy(context_, QueueNumber(queue), EG_COPY_IN, to.data() + at, piece, bytes,
                             &error),
                  error) ||
           !Check("upload", api_->record(context_, QueueNumber(queue), event, &error), error)))
        api_->drop_event(std::exchange(event, nullptr));
      ring_.Submit(block->ticket);
      staged_.emplace_back(block->ticket, event);
      at += bytes;
    }
  }
  void Download(DeviceQueue queue, std::span<const std::byte> from,
                std::span<std::byte> to) override {
    if (from.empty() || !error_.ok()) return;
    memory_->UsedBy(queue, from.data());
    if (queue != DeviceQueue::kCompute) times_->BeforeCopy(queue);
    EgCudaError error{};
    Check("download",
          api_->copy(context_, QueueNumber(queue), EG_COPY_OUT, to.data(), from.data(), from.size(),
                     &error),
          error);
  }
  absl::StatusOr<std::unique_ptr<QueueMark>> MakeQueueMark() override {
    EgCudaError error{};
    EgEvent* event = nullptr;
    if (api_->make_event(context_, 0, &event, &error) != EG_CUDA_OK) return StatusOf(error);
    return std::make_unique<CudaQueueMark>(drop_event_, event);
  }
  void Record(DeviceQueue queue, QueueMark& mark) override {
    if (queue == DeviceQueue::kCompute) EndWait();
    RecordEvent(queue, static_cast<CudaQueueMark&>(mark).get());
  }
  void Await(DeviceQueue queue, QueueMark& mark) override {
    if (queue != DeviceQueue::kCompute)
      times_->AfterCopies(queue);
    else if (!in_step_)
      times_->BeforeStep();
    else
      BeginWait();
    Work work;
    work.kind = Work::Kind::kAwait;
    work.queue = queue;
    work.event = static_cast<CudaQueueMark&>(mark).get();
    Do(std::move(work));
  }
  absl::Status Wait(QueueMark& mark) override {
    EgCudaError error{};
    if (api_->wait(static_cast<CudaQueueMark&>(mark).get(), &error) == EG_CUDA_OK)
      return absl::OkStatus();
    return DeviceFailed("wait", error);
  }

  // ---- Steps

  bool BeginStep(std::span<const std::uint64_t> signature) override {
    EG_CHECK(!in_step_);
    in_step_ = true;
    key_ = HashOf(signature, (fastest_ ? 1 : 0) + (tf32_ ? 2 : 0));
    times_->BeginCompute();
    // The following numbers are properties of a graph beyond the caller's signature.
    const std::uint64_t ours[] = {
        state_,         Address(scratch_), Address(filters_),  Address(narrow_),
        Address(wide_), Address(padded_),  Address(workspace_)};
    const GraphCapture::Decision decision = capture_.Next(key_, HashOf(ours, key_));
    if (decision.drop) DropGraph(key_);
    for (const GraphCapture::Key evicted : decision.evicted) DropGraph(evicted);
    if (!error_.ok()) {
      // Nothing may be computed until the earlier error has been returned.
      if (decision.action == GraphCapture::Action::kCapture)
        capture_.Failed(key_, "an earlier error");
      return false;
    }
    EgCudaError error{};
    if (decision.action == GraphCapture::Action::kReplay) {
      const Replay& graph = graphs_.at(key_);
      times_->Replayed(graph.waits);
      EnterRange("replay");
      return Check("replay", api_->launch(context_, graph.graph, &error), error);
    }
    if (decision.action == GraphCapture::Action::kCapture) {
      capturing_ = api_->begin_capture(context_, &error) == EG_CUDA_OK;
      if (!capturing_) capture_.Failed(key_, error.text);
    }
    return false;
  }

  void EndStep() override {
    EG_CHECK(in_step_);
    EndWait();
    in_step_ = false;
    LeaveRange();
    if (capturing_) {
      capturing_ = false;
      EgCudaError error{};
      EgGraph* graph = nullptr;
      if (api_->end_capture(context_, &graph, &error) != EG_CUDA_OK) {
        RunRecorded(error.text);
      } else if (!error_.ok()) {  // the graph lacks the calls after the error, so it must not run
        api_->drop_graph(graph);
        recorded_.clear();
        capture_.Failed(key_, std::string(error_.message()));
      } else {
        Replay& replay = graphs_[key_] = {graph, times_->waits(), {}};
        for (const Work& work : recorded_)
          if (work.event != nullptr) replay.events.insert(work.event);
        capture_.Captured(key_, recorded_.size());
        recorded_.clear();
        Check("launch of a captured step", api_->launch(context_, graph, &error), error);
      }
    }
    times_->EndCompute();
    layer_ = {};
  }

  absl::Status Finish(std::span<const std::byte> result, std::span<std::byte> to) override {
    times_->AfterCopies(DeviceQueue::kIn);
    times_->AfterCopies(DeviceQueue::kOut);
    EgCudaError error{};
    if (error_.ok() && result_.size() < result.size()) {
      if (absl::StatusOr<tensor::AlignedBuffer> grown = pinned_->Allocate(result.size());
          grown.ok())
        result_ = *std::move(grown);
    }
    // Without page-locked memory the driver copies the result.
    const bool direct = result_.size() < result.size();
    std::byte* const result_to = direct ? to.data() : result_.data();
    if (finished_ == nullptr)
      Check("finish", api_->make_event(context_, 0, &finished_, &error), error);
    if (error_.ok() && !result.empty())
      Check("finish",
            api_->copy(context_, EG_LANE_COMPUTE, EG_COPY_OUT, result_to, result.data(),
                       result.size(), &error),
            error);
    // The host waits after an error, too, because no part of the step may still run when the caller
    // continues.
    if (finished_ != nullptr) {
      if (api_->record(context_, EG_LANE_COMPUTE, finished_, &error) != EG_CUDA_OK ||
          api_->wait(finished_, &error) != EG_CUDA_OK) {
        error_.Update(DeviceFailed("finish", error));
      }
    }
    if (error_.ok() && !result.empty() && !direct)
      std::memcpy(to.data(), result_.data(), result.size());
    error_.ok() ? times_->Finished() : times_->Abandon();
    return TakeError();
  }

  absl::Status TakeError() override { return std::exchange(error_, absl::OkStatus()); }

  void SetReproducible(bool yes) override {
    // Plans and graphs of either kind are kept for their next use, because jobs take turns.
    fastest_ = !yes;
  }

  absl::Status CheckPrecision(Precision precision) const override {
    if (precision == Precision::kFloat32 || tensor_cores_) return absl::OkStatus();
    return absl::FailedPreconditionError("it needs a GPU of compute capability 8.0 or higher");
  }

  std::size_t InputsMax() const override { return EG_LIST_MAX; }
  void SetTf32(bool yes) override { tf32_ = yes; }

  void Enter(absl::string_view layer, Phase phase) override {
    layer_ = layer;
    phase_ = phase;
    if (profiled_) EnterRange(absl::StrCat(layer, " ", PhaseName(phase)));
  }

  // ---- Dense layers and windows

  void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w, In b,
                    Activation activation, AnyOut y) override {
    EgPlanKey key = MatmulKey(batch, out, in, false, false);
    SetTypes(&key, x.type(), y.type());
    // With an activation, the bias is added in its pass; otherwise in the product's epilogue, which
    // takes a bias of the output's type.
    key.bias = !b.empty() && activation == Activation::kLinear && y.is_float32() ? 1 : 0;
    key.alignment = AlignmentOf({x.data(), w.data(), b.data(), y.data()});
    EgPlanArguments p{};
    p.a = x.data(), p.b = w.data(), p.bias = b.data(), p.d = y.data();
    bool added = key.bias != 0;
    if (!RunPlan("dense forward", key, p)) {
      added = false;
      key.bias = 0;
      MustRunPlan("dense forward", key, p);
    }
    FinishRows(batch, out, added ? In() : b, activation, y);
  }

  void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w,
                     Activation activation, AnyIn y, AnyOut dy, AnyOut dx, Out dw,
                     Out db) override {
    ThroughActivation(activation, batch, out, y, dy);
    const AnyIn g = Narrow(dy, x.type());
    if (g.empty()) return;
    EgPlanKey key = MatmulKey(in, out, batch, true, false);
    SetTypes(&key, x.type(), Element::kFloat32);
    key.bias_gradient = db.empty() ? 0 : 1;
    key.alignment = AlignmentOf({x.data(), g.data(), dw.data(), db.data()});
    EgPlanArguments p{};
    p.a = x.data(), p.b = g.data(), p.d = dw.data(), p.sums = db.data();
    if (!RunPlan("dense weight gradient", key, p)) {
      key.bias_gradient = 0;
      MustRunPlan("dense weight gradient", key, p);
      if (!db.empty()) ColumnSums(batch, out, dy, db);
    }
    if (dx.empty()) return;
    key = MatmulKey(batch, in, out, false, true);
    SetTypes(&key, x.type(), dx.type());
    key.alignment = AlignmentOf({g.data(), w.data(), dx.data()});
    p = {};
    p.a = g.data(), p.b = w.data(), p.d = dx.data();
    MustRunPlan("dense input gradient", key, p);
  }

  void Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b, Activation activation,
                     AnyOut y) override {
    float* const filters = Filters(s);
    if (filters == nullptr) return;
    const std::int64_t window = s.kernel_h * s.kernel_w * s.in_c,
                       positions = s.batch * s.out_h * s.out_w;
    Compute(EgTranspose{window, s.filters, w.data(), filters, ToC(w.type()), ToC(w.type())});
    EgPlanKey key = ConvKey(EG_PLAN_CONV, s);
    SetTypes(&key, x.type(), y.type());
    key.alignment = AlignmentOf({x.data(), filters, b.data(), y.data()});
    key.bias = b.empty() ? 0 : 1;
    key.relu = activation == Activation::kRelu ? 1 : 0;
    EgPlanArguments p{};
    p.a = x.data(), p.b = filters, p.bias = b.data(), p.d = y.data();
    if ((key.bias != 0 || key.relu != 0) &&
        (activation == Activation::kLinear || activation == Activation::kRelu) &&
        RunAnyPlan("conv2d forward", key, p))
      return;
    key.bias = key.relu = 0;
    MustRunPlan("conv2d forward", key, p);
    FinishRows(positions, s.filters, b, activation, y);
  }

  void Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation, AnyIn y,
                      AnyOut dy, AnyOut dx, Out dw, Out db) override {
    const std::int64_t window = s.kernel_h * s.kernel_w * s.in_c,
                       positions = s.batch * s.out_h * s.out_w;
    // cuDNN's only engine with 16-bit operands and float32 results does not divide its sum, which
    // took half of a ResNet-50's step. cuBLASLt divides it.
    if (IsProduct(s))
      return DenseBackward(positions, s.in_c, s.filters, x, w, activation, y, dy, dx, dw, db);
    float* const filters = Filters(s);
    if (filters == nullptr) return;
    ThroughActivation(activation, positions, s.filters, y, dy);
    if (!db.empty()) ColumnSums(positions, s.filters, dy, db);
    EgPlanKey key = ConvKey(EG_PLAN_CONV_FILTER, s);
    // The sums are float32, and each is rounded once to the operands' type.
    SetTypes(&key, x.type(), x.type());
    key.alignment = AlignmentOf({x.data(), filters, dy.data()});
    EgPlanArguments p{};
    p.a = dy.data(), p.b = x.data(), p.d = filters;
    MustRunPlan("conv2d weight gradient", key, p);
    Compute(EgTranspose{s.filters, window, filters, dw.data(), ToC(x.type()), EG_FLOAT32});
    if (dx.empty()) return;
    Compute(EgTranspose{window, s.filters, w.data(), filters, ToC(w.type()), ToC(w.type())});
    key = ConvKey(EG_PLAN_CONV_DATA, s);
    SetTypes(&key, x.type(), dx.type());
    key.alignment = AlignmentOf({dx.data(), filters, dy.data()});
    p = {};
    p.a = dy.data(), p.b = filters, p.d = dx.data();
    MustRunPlan("conv2d input gradient", key, p);
  }

  void MaxPoolForward(const PoolShape& s, AnyIn x, AnyOut y,
                      std::span<std::int32_t> argmax) override {
    Compute(EgMaxPool{ToC(s), x.data(), y.data(), argmax.data(), ToC(x.type()), 0});
  }
  void MaxPoolBackward(const PoolShape& s, AnyIn dy, std::span<const std::int32_t> argmax,
                       AnyOut dx) override {
    Compute(EgMaxPoolBack{ToC(s), dy.data(), argmax.data(), dx.data(), ToC(dy.type()), 0});
  }
  void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                AnyIn x, AnyOut y) override {
    Compute(EgAveragePool{batch, positions, channels, x.data(), y.data(), ToC(x.type()), 0});
  }
  void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                 AnyIn dy, AnyOut dx) override {
    Compute(EgAveragePoolBack{batch, positions, channels, dy.data(), dx.data(), ToC(dy.type()), 0});
  }

  // ---- Element by element

  void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                         AnyOut y) override {
    if (a == Activation::kSoftmax)
      Compute(EgSoftmax{rows, columns, x.data(), y.data(), ToC(x.type()), 0});
    else
      Compute(EgActivate{rows * columns, x.data(), y.data(), ToC(a), ToC(x.type())});
  }
  void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn y, AnyIn dy,
                          AnyOut dx) override {
    if (a == Activation::kSoftmax)
      Compute(EgSoftmaxBack{rows, columns, y.data(), dy.data(), dx.data(), ToC(y.type()), 0});
    else
      Compute(
          EgActivateBack{rows * columns, y.data(), dy.data(), dx.data(), ToC(a), ToC(y.type())});
  }
  void Dropout(double rate, std::span<const std::uint64_t> key, AnyIn x, AnyOut y) override {
    Compute(EgDropout{Size(x), rate, key.data(), x.data(), y.data(), ToC(x.type()), 0});
  }
  void Zero(std::span<std::byte> memory) override { Compute(EgZero{memory.size(), memory.data()}); }
  void Copy(AnyIn x, AnyOut y) override {
    Compute(EgCast{Size(x), x.data(), y.data(), ToC(x.type()), ToC(y.type())});
  }
  void Scale(float factor, In x, Out y) override {
    Compute(EgScale{Size(x), x.data(), y.data(), factor, 0, EG_FLOAT32, EG_FLOAT32});
  }
  void AddScaled(float factor, AnyIn x, AnyOut y) override {
    Compute(EgScale{Size(x), x.data(), y.data(), factor, 1, ToC(x.type()), ToC(y.type())});
  }
  void Sum(std::span<const AnyIn> inputs, AnyOut y) override {
    // Inputs beyond the limit of one launch are added to the float32 result of the previous launch.
    float* so_far = nullptr;
    if (inputs.size() > EG_LIST_MAX) {
      so_far = y.is_float32() ? y.floats().data()
                              : Scratch<float>(static_cast<std::int64_t>(sizeof(float)) * Size(y));
      if (so_far == nullptr) return;
    }
    for (std::size_t begin = 0; begin < inputs.size(); begin += EG_LIST_MAX) {
      const bool last = begin + EG_LIST_MAX >= inputs.size();
      EgSum a{};
      a.n = Size(y);
      a.before = begin == 0 ? nullptr : so_far;
      a.y = last ? y.data() : so_far;
      a.x_type = ToC(inputs[begin].type());
      a.y_type = last ? ToC(y.type()) : EG_FLOAT32;
      a.count =
          static_cast<std::int32_t>(std::min<std::size_t>(EG_LIST_MAX, inputs.size() - begin));
      for (std::int32_t i = 0; i < a.count; ++i)
        a.inputs[i] = inputs[begin + static_cast<std::size_t>(i)].data();
      Compute(a);
    }
  }
  void Multiply(AnyIn a, AnyIn b, AnyOut y) override {
    Compute(EgMultiply{Size(y), a.data(), b.data(), y.data(), ToC(y.type()), 0});
  }
  void CopyColumns(std::int64_t rows, std::int64_t width, AnyIn x, std::int64_t x_columns,
                   std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                   std::int64_t y_begin) override {
    Compute(EgCopyColumns{rows, width, x_columns, x_begin, y_columns, y_begin, x.data(), y.data(),
                          ToC(x.type()), 0});
  }

  // ---- Normalization

  void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, channels, 2));
    if (scratch == nullptr) return;
    Compute(EgBatchNorm{rows, channels, epsilon, x.data(), gamma.data(), beta.data(), mean.data(),
                        variance.data(), y.data(), scratch, ToC(x.type()), 0});
  }
  void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                          In gamma, In beta, In mean, In variance, AnyOut y) override {
    Compute(EgBatchNormInference{rows, channels, epsilon, x.data(), gamma.data(), beta.data(),
                                 mean.data(), variance.data(), y.data(), ToC(x.type()), 0});
  }
  void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                         In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    double* const scratch = Scratch<double>(cuda::BatchNormBackScratch(rows, channels));
    if (scratch == nullptr) return;
    Compute(EgBatchNormBack{rows, channels, epsilon, x.data(), gamma.data(), mean.data(),
                            variance.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data(),
                            scratch, ToC(x.type()), 0});
  }
  void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    Compute(EgLayerNorm{rows, columns, epsilon, x.data(), gamma.data(), beta.data(), mean.data(),
                        variance.data(), y.data(), ToC(x.type()), 0});
  }
  void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                         In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, columns, 2));
    if (scratch == nullptr) return;
    Compute(EgLayerNormBack{rows, columns, epsilon, x.data(), gamma.data(), mean.data(),
                            variance.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data(),
                            scratch, ToC(x.type()), 0});
  }

  // ---- Products of vectors

  void DotForward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                  Out y) override {
    Compute(EgDot{batch, elements, normalize ? 1 : 0, 0, a.data(), b.data(), y.data()});
  }
  void DotBackward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b, In dy,
                   Out da) override {
    Compute(
        EgDotBack{batch, elements, normalize ? 1 : 0, 0, a.data(), b.data(), dy.data(), da.data()});
  }
  void FactorizationForward(std::int64_t batch, std::int64_t dimension, std::span<const In> inputs,
                            Out sums, Out y) override {
    if (!ListFits("factorization", inputs.size())) return;
    EgFactorization a{};
    a.batch = batch;
    a.dimension = dimension;
    a.count = static_cast<std::int32_t>(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      a.inputs[i] = inputs[i].data();
      a.fields[i] = Size(inputs[i]) / (batch * dimension);
    }
    a.sums = sums.data();
    a.y = y.data();
    Compute(a);
  }
  void FactorizationBackward(std::int64_t batch, std::int64_t dimension, In v, In sums, In dy,
                             Out dv) override {
    Compute(EgFactorizationBack{batch, Size(v) / (batch * dimension), dimension, v.data(),
                                sums.data(), dy.data(), dv.data()});
  }

  // ---- Embeddings

  void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position, In rows,
                       In weights, AnyOut y) override {
    if (!ListFits("embedding", s.widths.size())) return;
    Compute(
        EgGather{ToC(s), position.data(), rows.data(), weights.data(), y.data(), ToC(y.type()), 0});
  }
  void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                        In weights, AnyIn dy, Out row_gradients) override {
    if (!ListFits("embedding", s.widths.size()) || position.empty()) return;
    EgScatter a{ToC(s),
                Size(row_gradients) / s.dimension,
                position.data(),
                weights.data(),
                dy.data(),
                row_gradients.data(),
                nullptr,
                ToC(dy.type()),
                0};
    const std::int64_t sort = api_->sort_bytes(context_, a.s.batch * a.s.ids);
    if (sort < 0)
      return Refuse("embedding",
                    absl::InternalError("the sort does not report the memory that it needs"));
    a.scratch = Scratch<std::byte>(cuda::ScatterScratch::Of(a.s.batch, a.s.ids, sort).bytes);
    if (a.scratch != nullptr) Compute(a);
  }

  // ---- Results of a step for the host

  void ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient,
                   LossResult* result) override {
    std::byte* const scratch = Scratch<std::byte>(cuda::LossScratch(batch));
    if (scratch == nullptr) return;
    const std::int32_t type = loss.type == LossType::kSparseCategoricalCrossentropy
                                  ? EG_SPARSE_CATEGORICAL
                              : loss.type == LossType::kBinaryCrossentropy ? EG_BINARY
                                                                           : EG_MEAN_SQUARED;
    Compute(EgLoss{type, loss.from_logits ? 1 : 0, loss.accuracy ? 1 : 0, 0, batch, loss.rows,
                   loss.columns, output.data(), labels.data(), gradient.data(),
                   reinterpret_cast<EgLossResult*>(result), scratch});
  }
  void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) override {
    Compute(EgAuc{Size(output), from_logits ? 1 : 0, kAucBins, output.data(), labels.data(),
                  counts.data()});
  }
  void SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels,
                        double* sum) override {
    double* const scratch = Scratch<double>(8 * batch);
    if (scratch != nullptr)
      Compute(EgMeanSquares{batch, elements, output.data(), labels.data(), sum, scratch});
  }
  void SumOfSquares(In x, double* sum) override {
    double* const scratch = Scratch<double>(std::max<std::int64_t>(8, cuda::SumScratch(Size(x))));
    if (scratch != nullptr) Compute(EgSquares{Size(x), x.data(), sum, scratch});
  }
  void FindNotFinite(AnyIn x, std::uint64_t* found) override {
    Compute(EgNotFinite{Size(x), x.data(), found, ToC(x.type()), 0});
  }

 private:
  // One request of a step, recorded while the step is captured.
  struct Work {
    enum class Kind { kOp, kPlan, kRecord, kAwait } kind = Kind::kOp;
    DeviceQueue queue = DeviceQueue::kCompute;
    std::int32_t op = 0;
    const char* name = "";
    std::vector<std::byte> arguments;  // for an operation
    EgPlanKey key{};
    EgPlanArguments plan{};
    EgEvent* event = nullptr;
    std::string layer;
    Phase phase = Phase::kForward;
  };
  struct Choice {
    // The plan. nullptr if the library has none for this key, or if every plan was out of memory.
    EgPlan* plan = nullptr;
    std::uint64_t workspace_bytes = 0;
    std::string refused = {};     // the library's reason for offering no plan, if it reports one
    std::string no_memory = {};   // the memory error, if that is the reason; the plan is then
                                  // requested again later, not at each call
    std::uint64_t used_then = 0;  // bytes in use at that time
    std::uint32_t asked_since = 0;
  };

  static std::int64_t Size(AnyIn x) { return static_cast<std::int64_t>(x.size()); }
  static std::uint64_t Address(const tensor::AlignedBuffer& buffer) {
    return reinterpret_cast<std::uint64_t>(buffer.data());
  }

  static EgPlanKey MatmulKey(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
                             bool transpose_b) {
    EgPlanKey key{};
    key.kind = EG_PLAN_MATMUL;
    key.m = m, key.n = n, key.k = k;
    key.transpose_a = transpose_a ? 1 : 0;
    key.transpose_b = transpose_b ? 1 : 0;
    return key;
  }
  static EgPlanKey ConvKey(std::int32_t kind, const Conv2dShape& s) {
    EgPlanKey key{};
    key.kind = kind;
    key.batch = s.batch, key.in_h = s.in_h, key.in_w = s.in_w, key.in_c = s.in_c,
    key.out_h = s.out_h, key.out_w = s.out_w, key.filters = s.filters;
    key.kernel_h = s.kernel_h, key.kernel_w = s.kernel_w, key.stride_h = s.stride_h,
    key.stride_w = s.stride_w;
    key.pad_top = s.pad_top, key.pad_left = s.pad_left;
    key.pad_bottom = PadBehind(s.out_h, s.stride_h, s.kernel_h, s.pad_top, s.in_h, s.pad_bottom);
    key.pad_right = PadBehind(s.out_w, s.stride_w, s.kernel_w, s.pad_left, s.in_w, s.pad_right);
    return key;
  }
  // Returns the padding behind the last window. There, padding by less than a stride has no effect,
  // so several values are equivalent. The function chooses the value nearest to the padding in
  // front, because cuDNN has engines mainly for equal padding on both sides.
  static std::int64_t PadBehind(std::int64_t out, std::int64_t stride, std::int64_t kernel,
                                std::int64_t before, std::int64_t in, std::int64_t given) {
    const std::int64_t needed = (out - 1) * stride + kernel - before - in;
    if (needed > given) return given;  // an invalid convolution; the library reports it
    return std::clamp<std::int64_t>(before, std::max<std::int64_t>(needed, 0),
                                    std::max<std::int64_t>(needed + stride - 1, 0));
  }
  static std::int32_t AlignmentOf(std::initializer_list<const void*> pointers) {
    std::uintptr_t all = 0;
    for (const void* const p : pointers) all |= reinterpret_cast<std::uintptr_t>(p);
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
  }
  static EgEmbedding ToC(const EmbeddingShape& s) {
    EgEmbedding e{};
    e.batch = s.batch;
    e.dimension = s.dimension;
    e.combiner = s.combiner == Combiner::kNone   ? EG_NONE
                 : s.combiner == Combiner::kSum  ? EG_BAG_SUM
                 : s.combiner == Combiner::kMean ? EG_BAG_MEAN
                                                 : EG_BAG_SQRTN;
    e.count = static_cast<std::int32_t>(s.widths.size());
    for (std::size_t i = 0; i < s.widths.size(); ++i) e.ids += e.widths[i] = s.widths[i];
    return e;
  }
  static std::int32_t ToC(Element e) { return static_cast<std::int32_t>(e); }
  static std::int32_t ToC(Activation a) { return worker::ToC(a); }
  static EgPoolShape ToC(const PoolShape& s) { return worker::ToC(s); }

  absl::Status Error(absl::StatusCode code, absl::string_view primitive,
                     absl::string_view why) const {
    return absl::Status(
        code, absl::StrCat("backend could not compute: layer=", layer_,
                           " phase=", PhaseName(phase_), " primitive=", primitive, " cause=", why));
  }
  absl::Status DeviceFailed(absl::string_view primitive, const EgCudaError& error) const {
    return Error(absl::StatusCode::kUnavailable, primitive,
                 absl::StrCat("the device has failed: ", error.text));
  }
  void Refuse(absl::string_view primitive, const absl::Status& status) {
    if (error_.ok()) error_ = Error(status.code(), primitive, status.message());
  }
  // Keeps the first error. Returns true if there is none.
  bool Check(absl::string_view primitive, std::int32_t kind, const EgCudaError& error) {
    if (kind == EG_CUDA_OK) return true;
    if (!error_.ok()) return false;
    if (kind == EG_CUDA_NO_MEMORY)
      Refuse(primitive, absl::ResourceExhaustedError(error.text));
    else if (kind == EG_CUDA_FAILED)
      error_ = DeviceFailed(primitive, error);
    else
      Refuse(primitive, absl::InternalError(error.text));
    return false;
  }
  bool ListFits(absl::string_view primitive, std::size_t count) {
    if (count <= EG_LIST_MAX) return true;
    Refuse(primitive, absl::InternalError(absl::StrCat("too many inputs for a GPU: got=", count,
                                                       " max=", EG_LIST_MAX)));
    return false;
  }

  // The ranges of a profile mark requests, not kernels. A replayed step has one range, and its
  // kernels have the ranges of their capture.
  void EnterRange(const std::string& name) {
    if (!profiled_) return;
    LeaveRange();
    profiled_ = api_->push_range(name.c_str()) != 0;
    if (profiled_) ++ranges_;
  }
  void LeaveRange() {
    if (ranges_ > 0) api_->pop_range();
    ranges_ = 0;
  }

  // ---- Memory of our own

  // Grows memory of the compute queue. The old memory is freed in the queue's order. Returns
  // nullptr after an error.
  std::byte* Grow(tensor::AlignedBuffer* buffer, std::int64_t bytes, const char* what) {
    if (!error_.ok()) return nullptr;
    const std::size_t want = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16));
    if (buffer->size() >= want) return buffer->data();
    StopCapture(absl::StrCat(what, " grew"));  // nothing is allocated while a step is captured
    absl::StatusOr<tensor::AlignedBuffer> grown =
        DeviceMemory::Allocate(memory_, std::max(want, 2 * buffer->size()), what);
    if (!grown.ok()) return Refuse(what, grown.status()), nullptr;
    *buffer = *std::move(grown);
    return buffer->data();
  }
  template <typename T>
  T* Scratch(std::int64_t bytes) {
    return reinterpret_cast<T*>(Grow(&scratch_, bytes, "scratch"));
  }
  // Returns whether the gradients of a convolution are those of a dense layer at each position.
  // Sizes are whole accesses of 16 bytes, because a 16-bit product of another size would be
  // widened.
  static bool IsProduct(const Conv2dShape& s) {
    return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
           s.out_h == s.in_h && s.out_w == s.in_w && s.in_c % 8 == 0 && s.filters % 8 == 0;
  }
  float* Filters(const Conv2dShape& s) {
    return reinterpret_cast<float*>(Grow(
        &filters_,
        static_cast<std::int64_t>(sizeof(float)) * s.kernel_h * s.kernel_w * s.in_c * s.filters,
        "filters"));
  }

  // Returns false if there is no page-locked memory for the ring. The driver then copies through
  // its own memory, slowly.
  bool HaveRing() {
    if (ring_memory_.size() > 0) return true;
    absl::StatusOr<tensor::AlignedBuffer> memory = pinned_->Allocate(ring_.capacity());
    if (memory.ok()) ring_memory_ = *std::move(memory);
    return memory.ok();
  }
  std::optional<StagingRing::StagingBlock> Stage(std::size_t bytes) {
    EgCudaError error{};
    // Frees the places of the copies that have completed, without waiting.
    while (!staged_.empty()) {
      std::int32_t passed = 0;
      EgEvent* const event = staged_.front().second;
      if (event != nullptr && (api_->passed(event, &passed, &error) != EG_CUDA_OK || passed == 0))
        break;
      Unstage();
    }
    for (;;) {
      if (const auto block = ring_.Acquire(bytes)) return block;
      if (staged_.empty())
        return Refuse("upload",
                      absl::InternalError("the staging ring is full but holds no copies")),
               std::nullopt;
      EgEvent* const event = staged_.front().second;
      if (event != nullptr && !Check("upload", api_->wait(event, &error), error))
        return std::nullopt;
      Unstage();
    }
  }
  void Unstage() {
    ring_.Reached(staged_.front().first);
    if (staged_.front().second != nullptr) api_->drop_event(staged_.front().second);
    staged_.pop_front();
  }

  // ---- Work

  void RecordEvent(DeviceQueue queue, EgEvent* event) {
    Work work;
    work.kind = Work::Kind::kRecord;
    work.queue = queue;
    work.event = event;
    Do(std::move(work));
  }
  void BeginWait() {
    if (times_->waiting() || !error_.ok()) return;
    if (EgEvent* const event = times_->BeginWait()) RecordEvent(DeviceQueue::kCompute, event);
  }
  void EndWait() {
    if (!times_->waiting()) return;
    if (EgEvent* const event = times_->EndWait()) RecordEvent(DeviceQueue::kCompute, event);
  }

  template <typename Arguments>
  void Compute(const Arguments& arguments) {
    if (!error_.ok()) return;
    EndWait();
    if (capturing_) {
      Work work;
      work.kind = Work::Kind::kOp;
      work.op = OpOf<Arguments>::kOp;
      work.name = OpOf<Arguments>::kName;
      work.arguments.resize(sizeof arguments);
      std::memcpy(work.arguments.data(), &arguments, sizeof arguments);
      return Do(std::move(work));
    }
    EgCudaError error{};
    Check(OpOf<Arguments>::kName,
          api_->compute(context_, OpOf<Arguments>::kOp, &arguments, sizeof arguments, &error),
          error);
  }

  void Do(Work work) {
    if (!error_.ok()) return;
    EgCudaError error{};
    if (!capturing_) {
      Check(work.name, Issue(work, &error), error);
      return;
    }
    work.layer = std::string(layer_);
    work.phase = phase_;
    recorded_.push_back(std::move(work));
    if (Issue(recorded_.back(), &error) != EG_CUDA_OK) StopCapture(error.text);
  }
  std::int32_t Issue(Work& work, EgCudaError* error) {
    switch (work.kind) {
      case Work::Kind::kOp:
        return api_->compute(context_, work.op, work.arguments.data(), work.arguments.size(),
                             error);
      case Work::Kind::kRecord:
        return api_->record(context_, QueueNumber(work.queue), work.event, error);
      case Work::Kind::kAwait:
        return api_->await(context_, QueueNumber(work.queue), work.event, error);
      case Work::Kind::kPlan: {
        const Choice& choice = plans_.at(PlanKey{work.key});
        work.plan.workspace = workspace_.data();
        work.plan.workspace_bytes = choice.workspace_bytes;
        return api_->run_plan(context_, choice.plan, &work.plan, error);
      }
    }
    return EG_CUDA_FAILED;
  }

  // Ends the capture without a graph. The recorded requests run now, and later requests run as they
  // are made.
  void StopCapture(const std::string& reason) {
    if (!capturing_) return;
    capturing_ = false;
    EgCudaError error{};
    EgGraph* graph = nullptr;
    if (api_->end_capture(context_, &graph, &error) == EG_CUDA_OK) api_->drop_graph(graph);
    RunRecorded(reason);
  }
  void RunRecorded(const std::string& reason) {
    capture_.Failed(key_, reason);
    const absl::string_view layer = layer_;
    const Phase phase = phase_;
    for (Work& work : recorded_) {
      if (!error_.ok()) break;
      layer_ = work.layer;
      phase_ = work.phase;
      EgCudaError error{};
      Check(work.name, Issue(work, &error), error);
    }
    layer_ = layer;
    phase_ = phase;
    recorded_.clear();
  }

  // ---- Plans

  // Returns false if the library has no plan for this key; true if one runs or an error was stored.
  bool RunPlan(const char* name, EgPlanKey key, const EgPlanArguments& arguments) {
    if (!error_.ok()) return true;
    EndWait();
    key.reserved = fastest_ ? 1 : 0;
    auto choice = plans_.find(PlanKey{key});
    if (choice != plans_.end() && !choice->second.no_memory.empty() &&
        (memory_->use(false).used < choice->second.used_then ||
         ++choice->second.asked_since == kAskedAgain)) {
      plans_.erase(choice);
      choice = plans_.end();
    }
    if (choice == plans_.end()) {
      StopCapture("a plan had to be made");
      if (plans_.size() >= kPlansMax) ForgetPlans();
      if (!MakeChoice(name, key, arguments)) return true;
      choice = plans_.find(PlanKey{key});
    }
    if (choice->second.plan == nullptr) return false;
    if (choice->second.workspace_bytes > 0 &&
        Grow(&workspace_, static_cast<std::int64_t>(choice->second.workspace_bytes), "workspace") ==
            nullptr)
      return true;
    Work work;
    work.kind = Work::Kind::kPlan;
    work.name = name;
    work.key = key;
    work.plan = arguments;
    Do(std::move(work));
    return true;
  }
  // Like RunPlan. A convolution with more padding on one side than on the other may have no plan,
  // because few of cuDNN's engines, or none, support such padding. Then a copy of the image with
  // zeros around it is used.
  bool RunAnyPlan(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments) {
    if (RunPlan(name, key, arguments)) return true;
    if (key.pad_top == key.pad_bottom && key.pad_left == key.pad_right) return false;
    EgPlanKey even = key;
    const std::int64_t rows = std::abs(key.pad_bottom - key.pad_top),
                       columns = std::abs(key.pad_right - key.pad_left);
    const std::int64_t above = std::max<std::int64_t>(key.pad_top - key.pad_bottom, 0),
                       left = std::max<std::int64_t>(key.pad_left - key.pad_right, 0);
    even.in_h += rows, even.in_w += columns;
    even.pad_top = even.pad_bottom = std::min(key.pad_top, key.pad_bottom);
    even.pad_left = even.pad_right = std::min(key.pad_left, key.pad_right);
    const std::int32_t type = key.kind == EG_PLAN_CONV_DATA ? key.d_type : key.type;
    const std::int64_t elements = even.batch * even.in_h * even.in_w * even.in_c;
    if (elements > kElementsMax) return false;
    std::byte* const padded =
        Grow(&padded_, elements * (type == EG_FLOAT32 ? 4 : 2), "padded images");
    if (padded == nullptr) return true;
    EgPlanArguments p = arguments;
    const void* const images = key.kind == EG_PLAN_CONV ? p.a : p.b;
    if (key.kind == EG_PLAN_CONV) p.a = padded;
    if (key.kind == EG_PLAN_CONV_DATA) p.d = padded;
    if (key.kind == EG_PLAN_CONV_FILTER) p.b = padded;
    even.alignment = AlignmentOf({p.a, p.b, p.d, key.bias != 0 ? p.bias : nullptr});
    if (const Choice* const choice = Find(even);
        choice != nullptr && choice->plan == nullptr && choice->no_memory.empty())
      return false;
    if (key.kind != EG_PLAN_CONV_DATA)
      Compute(EgPad{key.batch, key.in_h, key.in_w, even.in_h, even.in_w, key.in_c, above, left,
                    images, padded, type, 0});
    if (!RunPlan(name, even, p)) return false;
    if (key.kind == EG_PLAN_CONV_DATA)
      Compute(EgPad{key.batch, even.in_h, even.in_w, key.in_h, key.in_w, key.in_c, -above, -left,
                    padded, arguments.d, type, 0});
    return true;
  }
  // Runs the product of the key. If the library has no plan for it, runs another product that is as
  // exact.
  void MustRunPlan(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments) {
    if (RunAnyPlan(name, key, arguments)) return;
    if (const Choice* const choice = Find(key); choice != nullptr && !choice->no_memory.empty())
      return Refuse(name, absl::ResourceExhaustedError(
                              absl::StrCat("out of memory for an algorithm: ", choice->no_memory)));
    if (key.type != EG_FLOAT32) return RunWide(name, key, arguments);
    EgPlanKey exact = key;
    exact.tf32 = 0;
    if (key.tf32 != 0) return MustRunPlan(name, exact, arguments);
    const Choice* const choice = Find(key);
    const std::string why =
        choice == nullptr || choice->refused.empty() ? "" : absl::StrCat(": ", choice->refused);
    Refuse(name,
           absl::InternalError(absl::StrCat("the library has no algorithm for this shape", why)));
  }
  const Choice* Find(EgPlanKey key) const {
    key.reserved = fastest_ ? 1 : 0;
    const auto choice = plans_.find(PlanKey{key});
    return choice == plans_.end() ? nullptr : &choice->second;
  }

  // Computes a product of 16-bit operands in float32 and rounds the result once. The products are
  // exact, because TF32 has all bits of the operands, and they use tensor cores if there is an
  // algorithm. This function is for sizes that are not a multiple of 16 bytes, for which there may
  // be few or no algorithms with 16 bits. The conversion costs a pass per operand.
  void RunWide(const char* name, EgPlanKey key, EgPlanArguments p) {
    const std::int64_t filters = key.filters * key.kernel_h * key.kernel_w * key.in_c;
    const std::int64_t inputs = key.batch * key.in_h * key.in_w * key.in_c,
                       outputs = key.batch * key.out_h * key.out_w * key.filters;
    std::int64_t a = key.m * key.k, b = key.k * key.n, d = key.m * key.n;
    if (key.kind == EG_PLAN_CONV) a = inputs, b = filters, d = outputs;
    if (key.kind == EG_PLAN_CONV_DATA) a = outputs, b = filters, d = inputs;
    if (key.kind == EG_PLAN_CONV_FILTER) a = outputs, b = inputs, d = filters;
    const auto bytes = [](std::int64_t elements) { return (4 * elements + 255) / 256 * 256; };
    const std::int32_t d_type = key.d_type;
    void* const result = p.d;
    std::byte* const wide = Grow(
        &wide_, bytes(a) + bytes(b) + (d_type == EG_FLOAT32 ? 0 : bytes(d)), "widened operands");
    if (wide == nullptr) return;
    std::byte* const wide_b = wide + bytes(a);
    Compute(EgCast{a, p.a, wide, key.type, EG_FLOAT32});
    Compute(EgCast{b, p.b, wide_b, key.type, EG_FLOAT32});
    p.a = wide, p.b = wide_b;
    if (d_type != EG_FLOAT32) p.d = wide_b + bytes(b);
    key.type = key.d_type = EG_FLOAT32;
    key.tf32 = 1;
    key.alignment = AlignmentOf({p.a, p.b, p.d});
    ++products_widened_;
    MustRunPlan(name, key, p);
    if (d_type != EG_FLOAT32) Compute(EgCast{d, p.d, result, EG_FLOAT32, d_type});
  }

  // Measures the candidate plans on the arrays of the call. The outputs of the call may be
  // overwritten, because the call itself overwrites them. Returns false if an error was stored.
  bool MakeChoice(const char* name, const EgPlanKey& key, const EgPlanArguments& arguments) {
    EgCudaError error{};
    EgPlanInfo infos[kCandidatesMax];
    std::int32_t count = 0;
    Choice choice;
    const std::int32_t offered =
        api_->plans(context_, &key, infos, fastest_ ? kCandidatesMax : kFirstMax, &count, &error);
    if (offered == EG_CUDA_BAD_SHAPE)  // the library has no plan, and reports why
      count = 0, choice.refused = error.text;
    else if (!Check(name, offered, error))
      return false;
    std::vector<AlgorithmCandidate> candidates;
    candidates.reserve(static_cast<std::size_t>(count));
    for (std::int32_t i = 0; i < count; ++i)
      candidates.push_back({infos[i].workspace_bytes, infos[i].deterministic != 0});
    std::vector<EgPlan*> made(candidates.size(), nullptr);
    const auto try_one = [&](std::size_t i) -> absl::StatusOr<double> {
      EgCudaError failed{};
      absl::StatusOr<double> seconds = 0.0;
      if (api_->make_plan(context_, &key, static_cast<std::int32_t>(i), &made[i], &failed) !=
          EG_CUDA_OK)
        seconds = StatusOf(failed);
      else if (fastest_)
        seconds = Measure(made[i], candidates[i].workspace_bytes, arguments);
      if (absl::IsResourceExhausted(seconds.status()))
        choice.no_memory = std::string(seconds.status().message());
      return seconds;
    };
    const absl::StatusOr<AlgorithmChoice> chosen =
        ChooseAlgorithm(candidates, options_.workspace_bytes_max, !fastest_, try_one);
    choice.used_then = memory_->use(false).used;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (made[i] == nullptr) continue;
      if (chosen.ok() && i == chosen->index)
        choice = {made[i], candidates[i].workspace_bytes};
      else
        api_->drop_plan(made[i]);
    }
    plans_[PlanKey{key}] = choice;
    if (choice.plan != nullptr) ++plans_made_;
    if (fastest_ && chosen.ok()) plans_measured_ += chosen->measured;
    return error_.ok();
  }
  // Queued work may run the plans' code, so it must end first. Graphs contain the plans, so they
  // are captured again.
  void ForgetPlans() {
    StopCapture("plans were discarded");
    EgCudaError error{};
    EgEvent* done = nullptr;
    if (Check("plans", api_->make_event(context_, 0, &done, &error), error)) {
      if (Check("plans", api_->record(context_, EG_LANE_COMPUTE, done, &error), error))
        Check("plans", api_->wait(done, &error), error);
      api_->drop_event(done);
    }
    for (const auto& [key, choice] : plans_)
      if (choice.plan != nullptr) api_->drop_plan(choice.plan);
    plans_.clear();
    ++state_;
  }

  absl::StatusOr<double> Measure(EgPlan* plan, std::uint64_t workspace_bytes,
                                 EgPlanArguments arguments) {
    if (workspace_bytes > 0 &&
        Grow(&workspace_, static_cast<std::int64_t>(workspace_bytes), "workspace") == nullptr)
      return std::exchange(error_, absl::OkStatus());
    arguments.workspace = workspace_.data();
    arguments.workspace_bytes = workspace_bytes;
    EgCudaError error{};
    EgEvent *begin = nullptr, *end = nullptr;
    float best = std::numeric_limits<float>::infinity();
    const auto measured = [&]() -> std::int32_t {
      std::int32_t kind = api_->make_event(context_, 1, &begin, &error);
      if (kind == EG_CUDA_OK) kind = api_->make_event(context_, 1, &end, &error);
      for (int run = 0; run < kMeasuredRuns && kind == EG_CUDA_OK; ++run) {
        float milliseconds = 0;
        kind = api_->record(context_, EG_LANE_COMPUTE, begin, &error);
        if (kind == EG_CUDA_OK) kind = api_->run_plan(context_, plan, &arguments, &error);
        if (kind == EG_CUDA_OK) kind = api_->record(context_, EG_LANE_COMPUTE, end, &error);
        if (kind == EG_CUDA_OK) kind = api_->wait(end, &error);
        if (kind == EG_CUDA_OK) kind = api_->milliseconds(begin, end, &milliseconds, &error);
        if (kind == EG_CUDA_OK && run > 0) best = std::min(best, milliseconds);
      }
      return kind;
    };
    const std::int32_t kind = measured();
    for (EgEvent* const event : {begin, end})
      if (event != nullptr) api_->drop_event(event);
    if (kind != EG_CUDA_OK) return StatusOf(error);
    return static_cast<double>(best) * 1e-3;
  }

  // Graphs that contain the event are destroyed first. A caller's signature could not tell the
  // event from the next one at its address.
  void DropEvent(EgEvent* event) {
    for (auto graph = graphs_.begin(); graph != graphs_.end();) {
      const auto next = std::next(graph);
      if (graph->second.events.count(event) != 0) {
        capture_.Forget(graph->first);
        DropGraph(graph->first);
      }
      graph = next;
    }
    api_->drop_event(event);
  }
  void DropGraph(GraphCapture::Key key) {
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) return;
    api_->drop_graph(found->second.graph);
    graphs_.erase(found);
  }

  // ---- Parts of primitives

  // y = activation(y + b) in one pass, or none if there is nothing to do.
  void FinishRows(std::int64_t rows, std::int64_t columns, In b, Activation activation, AnyOut y) {
    if (!b.empty() || (activation != Activation::kLinear && activation != Activation::kSoftmax))
      Compute(EgBiasActivate{rows, columns, b.data(), y.data(), ToC(activation), ToC(y.type())});
    if (activation == Activation::kSoftmax)
      Compute(EgSoftmax{rows, columns, y.data(), y.data(), ToC(y.type()), 0});
  }
  void ThroughActivation(Activation activation, std::int64_t rows, std::int64_t columns, AnyIn y,
                         AnyOut dy) {
    if (activation != Activation::kLinear) ActivationBackward(activation, rows, columns, y, dy, dy);
  }
  void ColumnSums(std::int64_t rows, std::int64_t columns, AnyIn x, Out y) {
    double* const scratch = Scratch<double>(cuda::ColumnScratch(rows, columns, 1));
    if (scratch != nullptr)
      Compute(EgColumnSums{rows, columns, x.data(), y.data(), scratch, ToC(x.type()), 0});
  }

  // Returns `x` converted to `type`, valid until the next call. Empty if an error was stored.
  AnyIn Narrow(AnyIn x, Element type) {
    if (x.type() == type) return x;
    std::byte* const to =
        Grow(&narrow_, static_cast<std::int64_t>(x.size() * BytesOf(type)), "narrowed gradient");
    if (to == nullptr) return {};
    Compute(EgCast{Size(x), x.data(), to, ToC(x.type()), ToC(type)});
    return {to, x.size(), type};
  }
  void SetTypes(EgPlanKey* key, Element operands, Element result) const {
    key->type = ToC(operands);
    key->d_type = ToC(result);
    key->tf32 = tf32_ && operands == Element::kFloat32 ? 1 : 0;
  }

  const EgCudaApi* const api_;
  EgContext* const context_;
  const CudaOptions options_;
  const std::string name_;
  std::shared_ptr<DeviceMemory> memory_;  // shared with its buffers
  // The buffers share the ownership of pinned_, because they may outlive the backend.
  const std::shared_ptr<PinnedMemory> pinned_;
  std::unique_ptr<StepTimes> times_;  // destroyed before the context
  absl::Status error_;
  absl::string_view layer_;
  Phase phase_ = Phase::kForward;
  int ranges_ = 0;
  bool profiled_ = true;  // true until the first range reports that no profiler is attached

  tensor::AlignedBuffer scratch_, filters_, narrow_, wide_, padded_, workspace_, result_;
  EgEvent* finished_ = nullptr;

  const bool tensor_cores_;  // sm_80 and later
  bool fastest_ = false, tf32_ = false;
  std::uint64_t state_ = 0;
  std::map<PlanKey, Choice> plans_;
  std::uint64_t plans_made_ = 0, plans_measured_ = 0, products_widened_ = 0;

  StagingRing ring_;
  tensor::AlignedBuffer ring_memory_;
  std::uint64_t in_bytes_ = 0, staged_bytes_ = 0;
  // The event is nullptr if the copy was refused.
  std::deque<std::pair<StagingRing::Ticket, EgEvent*>> staged_;

  GraphCapture capture_;
  struct Replay {
    EgGraph* graph = nullptr;
    std::size_t waits = 0;  // number of measured waits in the graph
    std::set<EgEvent*> events;
  };
  std::map<GraphCapture::Key, Replay> graphs_;
  const CudaQueueMark::Drop drop_event_ = [this](EgEvent* event) { DropEvent(event); };
  GraphCapture::Key key_ = 0;
  bool in_step_ = false, capturing_ = false;
  std::vector<Work> recorded_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(const DeviceChoice& choice,
                                                             const CudaOptions& options) {
  EG_CHECK(choice.gpu());
  EgCudaError error{};
  EgContext* context = nullptr;
  const EgOpenOptions open{choice.device.ordinal, 0};
  if (choice.api->open(&open, &context, &error) != EG_CUDA_OK) {
    const absl::Status status = StatusOf(error);
    return absl::Status(status.code(),
                        absl::StrCat(choice.name, " cannot be opened: ", status.message()));
  }
  return std::make_unique<CudaBackendImpl>(choice, options, context);
}

}  // namespace evergrad::worker
