#include "worker/backend/cuda/step_times.h"

#include <algorithm>

namespace evergrad::worker {
namespace {

// The limit of spans of one queue in one step; further spans are not measured.
constexpr std::size_t kSpansMax = 4096;

}  // namespace

StepTimes::~StepTimes() {
  for (auto& step : copies_)
    for (Copies& queue : step)
      for (const Span& span : queue.spans) Drop(span);
  for (const Span& span : edges_) Drop(span);
  Drop(step_);
  Drop({told_, nullptr});
}

void StepTimes::Drop(const Span& span) {
  for (EgEvent* const event : {span.first, span.second})
    if (event != nullptr) api_->drop_event(event);
}

EgEvent* StepTimes::Make() {
  EgCudaError error{};
  EgEvent* event = nullptr;
  if (on_ && api_->make_event(context_, 1, &event, &error) != EG_CUDA_OK) on_ = false;
  return on_ ? event : nullptr;
}

void StepTimes::Record(DeviceQueue queue, EgEvent* event) {
  EgCudaError error{};
  if (on_ && api_->record(context_, static_cast<std::int32_t>(queue), event, &error) != EG_CUDA_OK)
    on_ = false;
}

double StepTimes::Seconds(const Span& span) {
  EgCudaError error{};
  float milliseconds = 0;
  if (on_ && api_->milliseconds(span.first, span.second, &milliseconds, &error) != EG_CUDA_OK)
    on_ = false;
  return on_ ? std::max(0.0, static_cast<double>(milliseconds) * 1e-3) : 0.0;
}

void StepTimes::BeforeCopy(DeviceQueue queue) {
  Copies& copies = copies_[turn_][QueueIndex(queue)];
  if (!on_ || copies.open || copies.used >= kSpansMax) return;
  if (copies.used == copies.spans.size()) {
    const Span span{Make(), Make()};
    if (!on_) return Drop(span);
    copies.spans.push_back(span);
  }
  Record(queue, copies.spans[copies.used].first);
  copies.open = on_;
}

void StepTimes::AfterCopies(DeviceQueue queue) {
  Copies& copies = copies_[turn_][QueueIndex(queue)];
  if (!copies.open) return;
  copies.open = false;
  Record(queue, copies.spans[copies.used++].second);
}

void StepTimes::BeforeStep() {
  if (begun_) return;
  for (EgEvent** const event : {&step_.first, &step_.second, &told_})
    if (*event == nullptr) *event = Make();
  if (!on_) return;
  Record(DeviceQueue::kCompute, step_.first);
  begun_ = before_ = on_;
}

void StepTimes::BeginCompute() {
  AfterCopies(DeviceQueue::kIn);  // copies requested after the step's end belong to another span
  waits_ = 0;
  waiting_ = ended_ = false;
  if (before_) return Record(DeviceQueue::kCompute, told_);
  BeforeStep();
  before_ = false;
}

void StepTimes::EndCompute() {
  if (!begun_) return;
  Record(DeviceQueue::kCompute, step_.second);
  ended_ = on_;
}

EgEvent* StepTimes::BeginWait() {
  if (!on_ || !begun_ || waits_ >= kSpansMax) return nullptr;
  if (waits_ == edges_.size()) {
    edges_.push_back({Make(), nullptr});
    edges_.back().second = Make();
    if (!on_) return nullptr;
  }
  waiting_ = true;
  return edges_[waits_].first;
}

EgEvent* StepTimes::EndWait() {
  if (!waiting_) return nullptr;
  waiting_ = false;
  return edges_[waits_++].second;
}

void StepTimes::ReadCopies(std::array<Copies, 2>* copies) {
  double* const sums[] = {&sums_.in, &sums_.out};
  for (std::size_t queue = 0; queue < 2; ++queue) {
    Copies& one = (*copies)[queue];
    for (std::size_t i = 0; i < one.used; ++i) {
      EgCudaError error{};
      std::int32_t passed = 0;
      if (api_->passed(one.spans[i].second, &passed, &error) == EG_CUDA_OK && passed != 0)
        *sums[queue] += Seconds(one.spans[i]);
    }
    one.used = 0;
  }
}

void StepTimes::Abandon() {
  for (Copies& queue : copies_[turn_]) queue.used = 0, queue.open = false;
  begun_ = before_ = ended_ = waiting_ = false;
}

void StepTimes::Finished() {
  if (on_ && ended_) {
    double stalled = before_ ? Seconds({step_.first, told_}) : 0.0;
    for (std::size_t i = 0; i < waits_; ++i) stalled += Seconds(edges_[i]);
    const double all = Seconds(step_);
    sums_.stalled += std::min(stalled, all);
    sums_.kernels += std::max(0.0, all - stalled);
    ++sums_.steps;
  }
  begun_ = before_ = ended_ = waiting_ = false;
  turn_ = 1 - turn_;
  // The copies of the previous step are read here. All of these copies are done, because the
  // present step has waited for later copies.
  ReadCopies(&copies_[turn_]);
}

}  // namespace evergrad::worker
