#include "worker/backend/cuda/cuda_steps.h"

#include <utility>

#include "common/base/status.h"
#include "worker/backend/cuda/cuda_types.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

std::uint64_t HashOf(std::span<const std::uint64_t> words, std::uint64_t more) {
  std::uint64_t h = 0xCBF29CE484222325ull ^ more;
  for (const std::uint64_t word : words) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return h;
}

class CudaQueueMark final : public QueueMark {
 public:
  CudaQueueMark(StepRecorder* recorder, EgEvent* event) : recorder_(recorder), event_(event) {}
  ~CudaQueueMark() override { recorder_->DropEvent(event_); }
  EgEvent* event() const { return event_; }

 private:
  StepRecorder* const recorder_;  // owned by the backend, which outlives the mark
  EgEvent* const event_;
};

EgEvent* EventOf(QueueMark& mark) { return static_cast<CudaQueueMark&>(mark).event(); }

}  // namespace

CudaSteps::CudaSteps(const DeviceChoice& choice, const CudaOptions& options, EgContext* context)
    : api_(choice.api),
      context_(context),
      name_(choice.text),
      tensor_cores_(choice.device.major >= 8),
      pinned_(std::make_shared<PinnedMemory>(api_)),
      closes_(context, api_->close),
      work_(std::make_shared<DeviceMemory>(api_, context), &recorder_, &error_),
      plans_(api_, context, options.workspace_bytes_max, &work_, &recorder_, &error_),
      results_(api_, context, pinned_.get(), &error_),
      times_(api_, context),
      copies_(api_, context, options.staging_bytes, work_.device().get(), pinned_.get(), &times_,
              &error_),
      recorder_(api_, context, options.capture, &times_, &error_) {}

CudaSteps::~CudaSteps() {
  // The destructor waits for the queues, because queued work may read the memory that is freed
  // next.
  EgCudaError ignored{};
  EgEvent* done = nullptr;
  for (const DeviceQueue queue : {DeviceQueue::kCompute, DeviceQueue::kIn, DeviceQueue::kOut}) {
    if (api_->make_event(context_, 0, &done, &ignored) != EG_CUDA_OK) continue;
    if (api_->record(context_, QueueNumber(queue), done, &ignored) == EG_CUDA_OK)
      static_cast<void>(api_->wait(done, &ignored));
    api_->drop_event(done);
  }
}

CudaStats CudaSteps::stats() const {
  return {
      work_.device()->cache().stats(), copies_.ring_stats(), recorder_.stats(), plans_.stats().made,
      plans_.stats().measured,         products_widened_};
}

absl::StatusOr<Memory> CudaSteps::Allocate(std::size_t bytes, absl::string_view what) {
  EG_ASSIGN_OR_RETURN(tensor::AlignedBuffer buffer,
                      DeviceMemory::Allocate(work_.device(), bytes, what));
  return Memory(std::move(buffer));
}

std::optional<DeviceUse> CudaSteps::device_use(bool ask_driver) {
  const StepTimes::Sums& times = times_.sums();
  const GraphCapture::Stats& capture = recorder_.stats();
  DeviceUse use;
  use.name = name_;
  use.memory = work_.device()->use(ask_driver);
  use.measured = times.steps;
  use.in_bytes = copies_.in_bytes(), use.staged_bytes = copies_.staged_bytes();
  use.in = times.in, use.out = times.out, use.kernels = times.kernels, use.stalled = times.stalled;
  use.eager = capture.eager, use.captures = capture.captures, use.replays = capture.replays;
  use.recaptures = capture.recaptures;
  use.crowded = capture.crowded, use.graphs = capture.graphs;
  EgCudaError error{};
  float share = 0;
  if (ask_driver && api_->utilization(context_, &share, &error) == EG_CUDA_OK)
    use.utilization = share;
  return use;
}

absl::StatusOr<std::unique_ptr<QueueMark>> CudaSteps::MakeQueueMark() {
  EgCudaError error{};
  EgEvent* event = nullptr;
  if (api_->make_event(context_, 0, &event, &error) != EG_CUDA_OK) return StatusOf(error);
  return std::make_unique<CudaQueueMark>(&recorder_, event);
}

void CudaSteps::Record(DeviceQueue queue, QueueMark& mark) {
  recorder_.Record(queue, EventOf(mark));
}

void CudaSteps::Await(DeviceQueue queue, QueueMark& mark) { recorder_.Await(queue, EventOf(mark)); }

absl::Status CudaSteps::Wait(QueueMark& mark) {
  EgCudaError error{};
  if (api_->wait(EventOf(mark), &error) == EG_CUDA_OK) return absl::OkStatus();
  return error_.DeviceFailed("wait", error);
}

bool CudaSteps::BeginStep(std::span<const std::uint64_t> signature) {
  const GraphCapture::Key key =
      HashOf(signature, (plans_.reproducible() ? 0 : 1) + (tf32_ ? 2 : 0));
  // A graph also depends on the addresses of the work memory and on the plans. The caller's
  // signature does not contain them.
  return recorder_.BeginStep(key, HashOf(work_.addresses(), key ^ plans_.generation()));
}

absl::Status CudaSteps::Finish(std::span<const std::byte> result, std::span<std::byte> to) {
  times_.AfterCopies(DeviceQueue::kIn);
  times_.AfterCopies(DeviceQueue::kOut);
  results_.Fetch(result, to);
  error_.ok() ? times_.Finished() : times_.Abandon();
  return error_.Take();
}

absl::Status CudaSteps::CheckPrecision(Precision precision) const {
  if (precision == Precision::kFloat32 || tensor_cores_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this precision needs a GPU of compute capability 8.0 or higher");
}

}  // namespace evergrad::worker
