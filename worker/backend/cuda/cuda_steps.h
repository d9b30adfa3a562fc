// The Backend on a GPU without its primitives: memory, copies and their order, steps and errors.
//
//   CudaSteps ◀─ CudaProducts (dense layers, convolutions) ◀─ the class of cuda_backend.cc (the
//   other primitives)
//
// Each state machine is a member whose class has a file of its own. A member may refer to members
// that are declared before it. WorkMemory and PlanCache also refer to the recorder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/device_copies.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/first_error.h"
#include "worker/backend/cuda/plan_cache.h"
#include "worker/backend/cuda/step_recorder.h"
#include "worker/backend/cuda/step_times.h"
#include "worker/backend/cuda/work_memory.h"

namespace evergrad::worker {

class CudaSteps : public CudaBackend {
 public:
  CudaSteps(const DeviceChoice& choice, const CudaOptions& options, EgContext* context);
  ~CudaSteps() override;

  std::string name() const override { return name_; }
  CudaStats stats() const override;

  // ---- Memory

  bool host_memory() const override { return false; }
  absl::StatusOr<Memory> Allocate(std::size_t bytes, absl::string_view what) override;
  std::shared_ptr<HostMemory> host() const override { return pinned_; }
  MemoryUse memory() const override { return work_.device()->use(); }
  std::optional<DeviceUse> device_use(bool ask_driver) override;

  // ---- Copies and their order

  void Upload(DeviceQueue queue, std::span<const std::byte> from,
              std::span<std::byte> to) override {
    copies_.Upload(queue, from, to);
  }
  void Download(DeviceQueue queue, std::span<const std::byte> from,
                std::span<std::byte> to) override {
    copies_.Download(queue, from, to);
  }
  absl::StatusOr<std::unique_ptr<QueueMark>> MakeQueueMark() override;
  void Record(DeviceQueue queue, QueueMark& mark) override;
  void Await(DeviceQueue queue, QueueMark& mark) override;
  absl::Status Wait(QueueMark& mark) override;

  // ---- Steps

  bool BeginStep(std::span<const std::uint64_t> signature) override;
  void EndStep() override { recorder_.EndStep(); }
  absl::Status Finish(std::span<const std::byte> result, std::span<std::byte> to) override;
  absl::Status TakeError() override { return error_.Take(); }
  void SetReproducible(bool yes) override { plans_.SetReproducible(yes); }
  absl::Status CheckPrecision(Precision precision) const override;
  std::size_t InputsMax() const override { return EG_LIST_MAX; }
  void SetTf32(bool yes) override { tf32_ = yes; }
  void Enter(absl::string_view layer, Phase phase) override { recorder_.Enter(layer, phase); }

 protected:
  template <typename Arguments>  // a struct of cuda_ops.h
  void Compute(const Arguments& arguments) {
    recorder_.Compute(arguments);
  }
  // Returns nullptr after an error.
  template <typename T>
  T* Scratch(std::int64_t bytes) {
    return reinterpret_cast<T*>(work_.Grow(WorkPiece::kScratch, bytes));
  }

  const EgCudaApi* const api_;
  EgContext* const context_;  // closed by closes_

 private:
  const std::string name_;
  const bool tensor_cores_;  // whether the device has TF32 (sm_80 and later)
  // The buffers share this object, because they may outlive the backend.
  const std::shared_ptr<PinnedMemory> pinned_;
  const std::unique_ptr<EgContext, decltype(EgCudaApi::close)> closes_;

 protected:
  FirstError error_;
  // The destructors run in the opposite order: graphs before events and plans, and all of them
  // before the memory that they use.
  WorkMemory work_;
  PlanCache plans_;
  bool tf32_ = false;
  std::uint64_t products_widened_ = 0;

 private:
  ResultCopy results_;
  StepTimes times_;
  DeviceCopies copies_;
  StepRecorder recorder_;
};

}  // namespace evergrad::worker
