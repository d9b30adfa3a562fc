// Submits the requests of kCompute, and records those of a step in order to run them again.
//
//   BeginStep ─▶ Enter, Compute, RunPlan, Record, Await ─▶ EndStep
//      replay     the step's graph is launched, and the caller makes no request
//      capture    each request goes into a graph and into a list. EndStep launches the graph.
//                 A request that cannot be captured ends the capture: the requests of the list run
//                 now, and later requests run as they are made
//      eager      each request runs as it is made
//
// GraphCapture chooses one of the three for each step. This class owns the graphs. Before it
// destroys an event, it destroys the graphs that contain the event. After an error (FirstError)
// requests do nothing. Used on the context's thread; the arguments of the constructor outlive the
// object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/first_error.h"
#include "worker/backend/cuda/graph_capture.h"
#include "worker/backend/cuda/step_times.h"

namespace evergrad::worker {

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

class StepRecorder {
 public:
  StepRecorder(const EgCudaApi* api, EgContext* context, const GraphCapture::Options& options,
               StepTimes* times, FirstError* error)
      : api_(api), context_(context), times_(times), error_(error), capture_(options) {}
  ~StepRecorder();  // the queues must have done all work

  // `fingerprint` covers the addresses and numbers of a graph that are not in `key`. Returns true
  // if the step is replayed.
  bool BeginStep(GraphCapture::Key key, std::uint64_t fingerprint);
  void EndStep();
  void Enter(absl::string_view layer, Phase phase);

  template <typename Arguments>  // a struct of cuda_ops.h
  void Compute(const Arguments& arguments) {
    Compute(OpOf<Arguments>::kOp, OpOf<Arguments>::kName, &arguments, sizeof arguments);
  }
  // The plan and its workspace stay valid until StopCapture.
  void RunPlan(const char* name, EgPlan* plan, const EgPlanArguments& arguments);
  // The events of other queues are never captured.
  void Record(DeviceQueue queue, EgEvent* event);
  void Await(DeviceQueue queue, EgEvent* event);
  // Ends the measurement of a wait of kCompute. Must be called before work is queued behind the
  // last Await.
  void EndWait();

  // Ends the capture without a graph; no effect if no step is captured. Must be called before
  // memory is allocated, plans are made, or anything else is done that is impossible during a
  // capture.
  void StopCapture(const std::string& reason);
  void DropEvent(EgEvent* event);
  const GraphCapture::Stats& stats() const { return capture_.stats(); }

 private:
  // A request, recorded while the step is captured.
  struct Work {
    enum class Kind { kOp, kPlan, kRecord, kAwait } kind = Kind::kOp;
    const char* name = "";
    std::int32_t op = 0;
    std::vector<std::byte> arguments;  // for an operation
    EgPlan* plan = nullptr;
    EgPlanArguments plan_arguments{};
    DeviceQueue queue = DeviceQueue::kCompute;
    EgEvent* event = nullptr;
    std::string layer;
    Phase phase = Phase::kForward;
  };
  struct Replay {
    EgGraph* graph = nullptr;
    std::size_t waits = 0;  // number of measured waits in the graph
    std::set<EgEvent*> events;
  };

  void Compute(std::int32_t op, const char* name, const void* arguments, std::size_t bytes);
  void RequestEvent(Work::Kind kind, DeviceQueue queue, EgEvent* event);
  void BeginWait();
  void Request(Work work);
  std::int32_t Submit(const Work& work, EgCudaError* error);
  void RunRecorded(const std::string& reason);
  void DropGraph(GraphCapture::Key key);
  void EnterRange(const std::string& name);
  void LeaveRange();

  const EgCudaApi* const api_;
  EgContext* const context_;
  StepTimes* const times_;
  FirstError* const error_;
  GraphCapture capture_;
  std::map<GraphCapture::Key, Replay> graphs_;
  GraphCapture::Key key_ = 0;
  bool in_step_ = false, capturing_ = false;
  std::vector<Work> recorded_;
  bool profiled_ = true;  // true until the first range reports that no profiler is attached
  bool in_range_ = false;
};

}  // namespace evergrad::worker
