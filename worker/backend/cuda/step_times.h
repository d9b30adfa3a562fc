// How long a step's copies and kernels take, by events of the device.
//
//   kIn, kOut   ─ copy copy ── Await ── copy ─        a span: copies that were asked for one behind
//   the other; the lane may idle at an Await kCompute    [ begin … ├ waits for a copy ┤ … end ]
//   begin and end lie outside of a captured step, the edges of a wait within it
//
// The owner records the events that it is handed, where it is told to. Nothing here is an error of
// a step: where the device refuses to measure, there is no measuring from then on. Not thread-safe;
// the thread of the context, which outlives this.
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

  // A copy is asked of kIn or kOut next; what the lane is asked for next may make it wait, or the
  // host will wait: an event that an idle lane is asked to record says when it was asked.
  void BeforeCopy(Lane lane);
  void AfterCopies(Lane lane);

  // kCompute is told to wait, with no step open: the next step begins here.
  void BeforeStep();
  // Around what kCompute is asked for in a step; outside of its capture.
  void BeginCompute();
  void EndCompute();
  // Within it: the event to be recorded, on kCompute, before the first of a series of Awaits and
  // behind the last. Null: none. Of a step that is replayed neither is asked for: its graph has
  // them, `waits` of them.
  EgEvent* BeginWait();
  EgEvent* EndWait();
  bool waiting() const { return waiting_; }
  std::size_t waits() const { return waits_; }
  void Replayed(std::size_t waits) { waits_ = waits; }

  // kCompute has done all of the step. Its copies may still be under way: they are read with the
  // next one.
  void Finished();
  // The step came to an error: it is not counted.
  void Abandon();
  const Sums& sums() const { return sums_; }

 private:
  using Span = std::pair<EgEvent*, EgEvent*>;
  struct Copies {
    std::vector<Span> spans;
    std::size_t used = 0;
    bool open = false;
  };
  static std::size_t LaneOf(Lane lane) { return lane == Lane::kIn ? 0 : 1; }
  EgEvent* Make();
  void Drop(const Span& span);
  void Record(Lane lane, EgEvent* event);
  double Seconds(const Span& span);
  void ReadCopies(std::array<Copies, 2>* copies);

  const EgCudaApi* const api_;
  EgContext* const context_;
  bool on_ = true;
  std::array<std::array<Copies, 2>, 2> copies_;  // of this step and the last, by lane
  std::size_t turn_ = 0;
  Span step_{};
  EgEvent* told_ = nullptr;  // BeginCompute of a step that BeforeStep began
  std::vector<Span> edges_;  // of waits; graphs have them inside, so they stay
  std::size_t waits_ = 0;
  bool waiting_ = false, begun_ = false, before_ = false, ended_ = false;
  Sums sums_;
};

}  // namespace evergrad::worker
