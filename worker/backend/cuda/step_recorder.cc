#include "worker/backend/cuda/step_recorder.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/backend/cuda/cuda_types.h"

namespace evergrad::worker {

StepRecorder::~StepRecorder() {
  LeaveRange();
  for (const auto& [key, replay] : graphs_) api_->drop_graph(replay.graph);
}

// ---- Steps

bool StepRecorder::BeginStep(GraphCapture::Key key, std::uint64_t fingerprint) {
  EG_CHECK(!in_step_);
  in_step_ = true;
  key_ = key;
  times_->BeginCompute();
  const GraphCapture::Decision decision = capture_.Next(key_, fingerprint);
  if (decision.drop) DropGraph(key_);
  for (const GraphCapture::Key evicted : decision.evicted) DropGraph(evicted);
  if (!error_->ok()) {
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
    return error_->Check("replay", api_->launch(context_, graph.graph, &error), error);
  }
  if (decision.action == GraphCapture::Action::kCapture) {
    capturing_ = api_->begin_capture(context_, &error) == EG_CUDA_OK;
    if (!capturing_) capture_.Failed(key_, error.text);
  }
  return false;
}

void StepRecorder::EndStep() {
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
    } else if (!error_->ok()) {  // the graph lacks the calls after the error, so it must not run
      api_->drop_graph(graph);
      recorded_.clear();
      capture_.Failed(key_, std::string(error_->status().message()));
    } else {
      Replay& replay = graphs_[key_] = {graph, times_->waits(), {}};
      for (const Work& work : recorded_)
        if (work.event != nullptr) replay.events.insert(work.event);
      capture_.Captured(key_, recorded_.size());
      recorded_.clear();
      error_->Check("launch of a captured step", api_->launch(context_, graph, &error), error);
    }
  }
  times_->EndCompute();
  error_->Enter({}, error_->phase());
}

void StepRecorder::Enter(absl::string_view layer, Phase phase) {
  error_->Enter(layer, phase);
  if (profiled_) EnterRange(absl::StrCat(layer, " ", NameOf(phase)));
}

// The ranges in a profile show when work is requested, and not when kernels run. A replayed step
// has one range. A profiler attributes the kernels of such a step to the ranges in which they were
// captured.
void StepRecorder::EnterRange(const std::string& name) {
  if (!profiled_) return;
  LeaveRange();
  in_range_ = profiled_ = api_->push_range(name.c_str()) != 0;
}

void StepRecorder::LeaveRange() {
  if (std::exchange(in_range_, false)) api_->pop_range();
}

// ---- Requests

void StepRecorder::Compute(std::int32_t op, const char* name, const void* arguments,
                           std::size_t bytes) {
  if (!error_->ok()) return;
  EndWait();
  if (capturing_) {
    const std::byte* const first = static_cast<const std::byte*>(arguments);
    Work work;
    work.op = op;
    work.name = name;
    work.arguments.assign(first, first + bytes);
    return Request(std::move(work));
  }
  EgCudaError error{};
  error_->Check(name, api_->compute(context_, op, arguments, bytes, &error), error);
}

void StepRecorder::RunPlan(const char* name, EgPlan* plan, const EgPlanArguments& arguments) {
  Work work;
  work.kind = Work::Kind::kPlan;
  work.name = name;
  work.plan = plan;
  work.plan_arguments = arguments;
  Request(std::move(work));
}

void StepRecorder::Record(DeviceQueue queue, EgEvent* event) {
  if (queue == DeviceQueue::kCompute) EndWait();
  RequestEvent(Work::Kind::kRecord, queue, event);
}

void StepRecorder::Await(DeviceQueue queue, EgEvent* event) {
  if (queue != DeviceQueue::kCompute)
    times_->AfterCopies(queue);
  else if (!in_step_)
    times_->BeforeStep();
  else
    BeginWait();
  RequestEvent(Work::Kind::kAwait, queue, event);
}

void StepRecorder::BeginWait() {
  if (times_->waiting() || !error_->ok()) return;
  if (EgEvent* const event = times_->BeginWait())
    RequestEvent(Work::Kind::kRecord, DeviceQueue::kCompute, event);
}

void StepRecorder::EndWait() {
  if (!times_->waiting()) return;
  if (EgEvent* const event = times_->EndWait())
    RequestEvent(Work::Kind::kRecord, DeviceQueue::kCompute, event);
}

void StepRecorder::RequestEvent(Work::Kind kind, DeviceQueue queue, EgEvent* event) {
  Work work;
  work.kind = kind;
  work.queue = queue;
  work.event = event;
  Request(std::move(work));
}

void StepRecorder::Request(Work work) {
  if (!error_->ok()) return;
  EgCudaError error{};
  if (!capturing_) {
    error_->Check(work.name, Submit(work, &error), error);
    return;
  }
  work.layer = std::string(error_->layer());
  work.phase = error_->phase();
  recorded_.push_back(std::move(work));
  if (Submit(recorded_.back(), &error) != EG_CUDA_OK) StopCapture(error.text);
}

std::int32_t StepRecorder::Submit(const Work& work, EgCudaError* error) {
  switch (work.kind) {
    case Work::Kind::kOp:
      return api_->compute(context_, work.op, work.arguments.data(), work.arguments.size(), error);
    case Work::Kind::kPlan: return api_->run_plan(context_, work.plan, &work.plan_arguments, error);
    case Work::Kind::kRecord:
      return api_->record(context_, QueueNumber(work.queue), work.event, error);
    case Work::Kind::kAwait:
      return api_->await(context_, QueueNumber(work.queue), work.event, error);
  }
  return EG_CUDA_FAILED;
}

// ---- Captures and graphs

void StepRecorder::StopCapture(const std::string& reason) {
  if (!capturing_) return;
  capturing_ = false;
  EgCudaError error{};
  EgGraph* graph = nullptr;
  if (api_->end_capture(context_, &graph, &error) == EG_CUDA_OK) api_->drop_graph(graph);
  RunRecorded(reason);
}

void StepRecorder::RunRecorded(const std::string& reason) {
  capture_.Failed(key_, reason);
  const absl::string_view layer = error_->layer();
  const Phase phase = error_->phase();
  for (const Work& work : recorded_) {
    if (!error_->ok()) break;
    error_->Enter(work.layer, work.phase);
    EgCudaError error{};
    error_->Check(work.name, Submit(work, &error), error);
  }
  error_->Enter(layer, phase);
  recorded_.clear();
}

// A later event may get the same address, and the signature of a step could not distinguish the two
// events. The graphs that contain the event are therefore destroyed first.
void StepRecorder::DropEvent(EgEvent* event) {
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

void StepRecorder::DropGraph(GraphCapture::Key key) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) return;
  api_->drop_graph(found->second.graph);
  graphs_.erase(found);
}

}  // namespace evergrad::worker
