#include "coordinator/service/durability_gate.h"

#include <utility>

namespace evergrad::coordinator {

DurabilityGate::DurabilityGate(const StateStore* store, std::uint64_t bytes_max,
                               std::function<bool()> commit)
    : store_(store), bytes_max_(bytes_max), commit_(std::move(commit)) {}

void DurabilityGate::WhenDurable(std::function<void()> then) { Enter(0, std::move(then)); }

bool DurabilityGate::Admit(std::uint64_t bytes, std::function<void()> then) {
  if (bytes_ + bytes > bytes_max_) return false;
  bytes_ += bytes;
  Enter(bytes, std::move(then));
  return true;
}

void DurabilityGate::Enter(std::uint64_t bytes, std::function<void()> then) {
  if (!commit_()) return;
  const std::uint64_t accepted = store_->accepted();
  if (waiting_.empty() && store_->durable() >= accepted) {
    bytes_ -= bytes;
    then();
    return;
  }
  waiting_.push_back({accepted, bytes, std::move(then)});
}

bool DurabilityGate::IsOpen() {
  return commit_() && waiting_.empty() && store_->durable() >= store_->accepted();
}

void DurabilityGate::Release() {
  const std::uint64_t durable = store_->durable();
  while (!waiting_.empty() && waiting_.front().accepted <= durable) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_ -= next.bytes;
    next.then();
  }
}

}  // namespace evergrad::coordinator
