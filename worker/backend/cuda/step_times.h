// Measures the duration of a step's copies and kernels with events of the device.
//
//   kIn, kOut   ─ copy copy ── Await ── copy ─
//               A span: copies requested one after another; the queue may idle at an Await.
//   kCompute    [ begin … ├ waits for a copy ┤ … end ]
//               Begin and end are outside of a captured step, the edges of a wait inside it.
//
// The owner records the events that BeginWait and EndWait return. An error of the measurement is no
// error of the step: if the device refuses to measure, measuring ends. Not thread-safe; used on the
// context's thread. The context outlives the object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

class StepTimes {
 public:
  struct Sums {
    std::uint64_t steps = 0;
    double in = 0, kernels = 0, out = 0, stalled = 0;  // seconds
  };

  StepTimes(const EgCudaApi* api, EgContext* context) : api_(api), context_(context) {}
  ~StepTimes();

  // BeforeCopy is called before a copy is queued in kIn or kOut. AfterCopies is called if the next
  // request may make the queue wait, or if the host will wait. An event that an idle queue records
  // has the time of the request.
  void BeforeCopy(DeviceQueue queue);
  void AfterCopies(DeviceQueue queue);

  // Must be called when an Await is queued in kCompute between two steps. This wait counts as a
  // part of the next step.
  void BeforeStep();
  // The owner calls BeginCompute before, and EndCompute after, the requests to kCompute in a step,
  // outside of its capture.
  void BeginCompute();
  void EndCompute();
  // BeginWait and EndWait are called inside a step. Each returns the event to record on kCompute
  // before the first, or after the last, of a series of Awaits; nullptr means none. Neither
  // function is called for a replayed step, whose graph contains the events of `waits` waits.
  EgEvent* BeginWait();
  EgEvent* EndWait();
  bool waiting() const { return waiting_; }
  std::size_t waits() const { return waits_; }
  void Replayed(std::size_t waits) { waits_ = waits; }

  // Declares that kCompute has done the whole step. The step's copies may still be in progress;
  // their times are read with the next step.
  void Finished();
  // Declares that the step failed, so that it is not counted.
  void Abandon();
  const Sums& sums() const { return sums_; }

 private:
  using Span = std::pair<EgEvent*, EgEvent*>;
  struct Copies {
    std::vector<Span> spans;
    std::size_t used = 0;
    bool open = false;
  };
  static std::size_t QueueIndex(DeviceQueue queue) { return queue == DeviceQueue::kIn ? 0 : 1; }
  EgEvent* Make();
  void Drop(const Span& span);
  void Record(DeviceQueue queue, EgEvent* event);
  double Seconds(const Span& span);
  void ReadCopies(std::array<Copies, 2>* copies);

  const EgCudaApi* const api_;
  EgContext* const context_;
  bool on_ = true;
  // The copies of this step and of the previous step, by queue.
  std::array<std::array<Copies, 2>, 2> copies_;
  std::size_t turn_ = 0;
  Span step_{};
  EgEvent* told_ = nullptr;  // recorded by BeginCompute, if the step began in BeforeStep
  std::vector<Span> edges_;  // edges of waits; graphs contain them, so they are kept
  std::size_t waits_ = 0;
  bool waiting_ = false, begun_ = false, before_ = false, ended_ = false;
  Sums sums_;
};

}  // namespace evergrad::worker
