#include "worker/backend/self_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace evergrad::worker {
namespace {

constexpr double kTolerance = 1e-4;

// Makes random arrays on one backend, and keeps its results and its first error.
class Bench {
 public:
  Bench(Backend* backend, std::uint64_t seed) : backend_(*backend), seed_(seed) {}

  Memory Make(std::size_t elements) {
    absl::StatusOr<Memory> memory = backend_.Allocate(elements * sizeof(float), "self-check");
    if (memory.ok()) return *std::move(memory);
    status_.Update(memory.status());
    return {};
  }
  Memory Draw(std::size_t elements) {
    std::vector<float> values(elements);
    const std::uint64_t key = random::KeyOf(seed_, absl::StrCat("self-check/", ++drawn_));
    for (std::size_t i = 0; i < elements; ++i) values[i] = 2 * random::Uniform(key, i) - 1;
    return Put(std::as_bytes(std::span(values)));
  }
  Memory Put(std::span<const std::byte> bytes) {
    Memory memory = Make((bytes.size() + sizeof(float) - 1) / sizeof(float));
    if (memory.bytes() < bytes.size()) return memory;
    const std::span<std::byte> to = memory.as<std::byte>().first(bytes.size());
    backend_.host_memory() ? static_cast<void>(std::memcpy(to.data(), bytes.data(), bytes.size()))
                           : backend_.Upload(DeviceQueue::kCompute, bytes, to);
    return memory;
  }
  template <typename T = float>
  void Keep(const char* name, const Memory& memory) {
    std::vector<T> values(memory.as<T>().size());
    const std::span<std::byte> to = std::as_writable_bytes(std::span(values));
    if (backend_.host_memory())
      std::memcpy(to.data(), memory.as<std::byte>().data(), to.size());
    else
      backend_.Download(DeviceQueue::kCompute, memory.as<std::byte>().first(to.size()), to);
    if (absl::StatusOr<std::unique_ptr<QueueMark>> done = backend_.MakeQueueMark(); done.ok()) {
      backend_.Record(DeviceQueue::kCompute, **done);
      status_.Update(backend_.Wait(**done));
    } else {
      status_.Update(done.status());
    }
    kept_.emplace_back(name, std::vector<double>(values.begin(), values.end()));
  }
  void Keep(const char* name, std::span<const float> values) {
    kept_.emplace_back(name, std::vector<double>(values.begin(), values.end()));
  }
  void Update(const absl::Status& status) { status_.Update(status); }
  std::uint64_t seed() const { return seed_; }
  const absl::Status& status() const { return status_; }
  const std::vector<std::pair<const char*, std::vector<double>>>& kept() const { return kept_; }

 private:
  Backend& backend_;
  const std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
  absl::Status status_;
  std::vector<std::pair<const char*, std::vector<double>>> kept_;
};

// The sizes include primes and odd numbers, because kernels tend to fail at tails.
void Run(Backend& backend, Bench* bench) {
  {
    constexpr std::int64_t kBatch = 37, kIn = 48, kOut = 29;
    const Memory x = bench->Draw(kBatch * kIn), w = bench->Draw(kIn * kOut), b = bench->Draw(kOut);
    Memory y = bench->Make(kBatch * kOut), dy = bench->Draw(kBatch * kOut);
    Memory dx = bench->Make(kBatch * kIn), dw = bench->Make(kIn * kOut), db = bench->Make(kOut);
    if (!bench->status().ok()) return;
    backend.Enter("self-check", Phase::kForward);
    backend.DenseForward(kBatch, kIn, kOut, x.as<float>(), w.as<float>(), b.as<float>(),
                         Activation::kTanh, y.as<float>());
    bench->Keep("dense", y);
    backend.Enter("self-check", Phase::kBackward);
    backend.DenseBackward(kBatch, kIn, kOut, x.as<float>(), w.as<float>(), Activation::kTanh,
                          y.as<float>(), dy.as<float>(), dx.as<float>(), dw.as<float>(),
                          db.as<float>());
    bench->Keep("dense gradient of x", dx);
    bench->Keep("dense gradient of w", dw);
    bench->Keep("dense gradient of b", db);
  }
  {
    const Conv2dShape s{3, 13, 11, 8, 7, 6, 16, 3, 3, 2, 2, 1, 1, 1, 1};
    const auto inputs = static_cast<std::size_t>(s.batch * s.in_h * s.in_w * s.in_c),
               outputs = static_cast<std::size_t>(s.batch * s.out_h * s.out_w * s.filters);
    const auto weights = static_cast<std::size_t>(s.kernel_h * s.kernel_w * s.in_c * s.filters),
               filters = static_cast<std::size_t>(s.filters);
    const Memory x = bench->Draw(inputs), w = bench->Draw(weights), b = bench->Draw(filters);
    Memory y = bench->Make(outputs), dy = bench->Draw(outputs), dx = bench->Make(inputs),
           dw = bench->Make(weights), db = bench->Make(filters);
    if (!bench->status().ok()) return;
    backend.Conv2dForward(s, x.as<float>(), w.as<float>(), b.as<float>(), Activation::kLinear,
                          y.as<float>());
    bench->Keep("conv2d", y);
    backend.Conv2dBackward(s, x.as<float>(), w.as<float>(), Activation::kLinear, y.as<float>(),
                           dy.as<float>(), dx.as<float>(), dw.as<float>(), db.as<float>());
    bench->Keep("conv2d gradient of x", dx);
    bench->Keep("conv2d gradient of w", dw);
    bench->Keep("conv2d gradient of b", db);
  }
  {
    constexpr std::size_t kElements = 10007;
    const Memory x = bench->Draw(kElements);
    Memory y = bench->Draw(kElements), z = bench->Make(kElements),
           sum = bench->Make(sizeof(double) / sizeof(float));
    const std::uint64_t key = 77;
    const Memory keys = bench->Put(std::as_bytes(std::span(&key, 1)));
    if (!bench->status().ok()) return;
    backend.AddScaled(0.5f, x.as<float>(), y.as<float>());
    bench->Keep("add scaled", y);
    backend.Dropout(0.25, keys.as<std::uint64_t>().first(1), y.as<float>(), z.as<float>());
    bench->Keep("dropout", z);
    backend.ActivationForward(Activation::kSigmoid, 1, kElements, z.as<float>(), y.as<float>());
    bench->Keep("sigmoid", y);
    backend.SumOfSquares(y.as<float>(), sum.as<double>().data());
    bench->Keep<double>("sum of squares", sum);
  }
}

// Runs a step as a worker does, often enough to be recorded and replayed. The input is copied
// before the step, and the first result is copied after an event inside the step, while the step
// continues. A copy that does not wait for the current step would return the values of another
// step.
void RunSteps(Backend& backend, Bench* bench) {
  constexpr std::size_t kElements = 1 << 14;
  // The step is so long that a copy that does not wait for it would finish earlier.
  constexpr int kSteps = 6, kPasses = 64;
  Memory x = bench->Make(kElements), y = bench->Make(kElements), z = bench->Make(kElements);
  if (!bench->status().ok()) return;
  absl::StatusOr<tensor::AlignedBuffer> in = backend.AllocateHost(x.bytes()),
                                        out = backend.AllocateHost(x.bytes());
  absl::StatusOr<std::unique_ptr<QueueMark>> there = backend.MakeQueueMark(),
                                             made = backend.MakeQueueMark(),
                                             left = backend.MakeQueueMark();
  for (const absl::Status& status :
       {in.status(), out.status(), there.status(), made.status(), left.status()})
    bench->Update(status);
  if (!bench->status().ok()) return;
  const std::uint64_t signature[] = {reinterpret_cast<std::uintptr_t>(x.as<float>().data()),
                                     reinterpret_cast<std::uintptr_t>(there->get())};
  for (int step = 0; step < kSteps; ++step) {
    const std::uint64_t key = random::KeyOf(bench->seed(), absl::StrCat("self-check/step ", step));
    for (std::size_t i = 0; i < kElements; ++i) in->floats()[i] = random::Uniform(key, i);
    backend.Upload(DeviceQueue::kIn, {in->data(), in->size()}, x.as<std::byte>());
    backend.Record(DeviceQueue::kIn, **there);
    if (!backend.BeginStep(signature)) {
      backend.Enter("self-check", Phase::kForward);
      backend.Await(DeviceQueue::kCompute, **there);
      backend.Scale(1, x.as<float>(), y.as<float>());
      for (int pass = 0; pass < kPasses; ++pass)
        backend.AddScaled(0.25f, x.as<float>(), y.as<float>());
      backend.Record(DeviceQueue::kCompute, **made);
      backend.Scale(2, y.as<float>(), z.as<float>());
    }
    backend.EndStep();
    backend.Await(DeviceQueue::kOut, **made);
    backend.Download(DeviceQueue::kOut, y.as<std::byte>(), {out->data(), out->size()});
    backend.Record(DeviceQueue::kOut, **left);
    bench->Update(backend.Finish({}, {}));
    bench->Update(backend.Wait(**left));
    bench->Update(backend.Wait(**there));
    if (!bench->status().ok()) return;
    bench->Keep("step with copies", out->floats());
    bench->Keep("last output of a step", z);
  }
}

}  // namespace

absl::Status CompareBackends(Backend& device, Backend& reference, std::uint64_t seed) {
  Bench got(&device, seed), want(&reference, seed);
  Run(device, &got);
  if (got.status().ok()) RunSteps(device, &got);
  EG_RETURN_IF_ERROR(device.TakeError());
  EG_RETURN_IF_ERROR(got.status());
  Run(reference, &want);
  if (want.status().ok()) RunSteps(reference, &want);
  EG_RETURN_IF_ERROR(reference.TakeError());
  EG_RETURN_IF_ERROR(want.status());
  for (std::size_t i = 0; i < want.kept().size(); ++i) {
    const auto& [name, values] = want.kept()[i];
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::fabs(value));
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double there = got.kept()[i].second[j];
      if (!(std::fabs(there - values[j]) <= kTolerance * largest))
        return absl::DataLossError(
            absl::StrCat("primitive=", name, " want=", values[j], " got=", there));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceChoice> ChooseCheckedDevice(absl::string_view device,
                                                 const std::string& library, std::uint64_t seed) {
  EG_ASSIGN_OR_RETURN(DeviceChoice choice, ChooseDevice(device, library));
  if (!choice.gpu()) return choice;
  absl::Status status;
  {
    absl::StatusOr<std::unique_ptr<CudaBackend>> gpu = MakeCudaBackend(choice, {});
    status = gpu.status();
    if (gpu.ok()) {
      absl::StatusOr<std::unique_ptr<Backend>> cpu = MakeCpuBackend(1, false);
      status = cpu.ok() ? CompareBackends(**gpu, **cpu, seed) : cpu.status();
    }
  }
  if (status.ok()) return choice;
  const std::string why =
      absl::IsDataLoss(status)
          ? absl::StrCat(choice.name,
                         " does not compute the same values as the CPU: ", status.message(),
                         " seed=", seed)
          : std::string(status.message());
  EG_ASSIGN_OR_RETURN(const DeviceName name, ParseDevice(device));
  if (name.kind == DeviceName::Kind::kGpu)
    return UserError(
        absl::FailedPreconditionError(absl::StrCat("device ", device, " is not usable: ", why)));
  DeviceChoice cpu;
  cpu.name = "cpu";
  cpu.text = absl::StrCat("cpu: ", why);
  return cpu;
}

}  // namespace evergrad::worker
