#include "tests/simulation/network.h"

#include <cstddef>
#include <utility>

namespace evergrad::simulation {
namespace {

constexpr std::size_t kCallsMax = 60;  // if this many calls are in flight, no push is sent

}  // namespace

bool Network::full() const { return calls_.size() >= kCallsMax; }

std::vector<SimulatedServer*> Network::ServersOf(const std::string& identity) const {
  std::vector<SimulatedServer*> listening;
  for (const auto& s : tasks_.servers()) {
    if (s->identity() == identity) listening.push_back(s.get());
  }
  return listening;
}

void Network::DeliverOne() {
  const bool faults = walk_.faults();
  const std::size_t i = walk_.random.Below(calls_.size());
  const Call call = calls_[i];
  if (!faults || walk_.random.Chance(0.9)) {  // else the call is delivered now and once more later
    calls_[i] = calls_.back();
    calls_.pop_back();
  } else {
    walk_.Count("call doubled");
  }
  if (faults && walk_.random.Chance(0.1)) {
    walk_.Count("call lost");
  } else if (!call.push) {
    if (SimulatedWorker* w = tasks_.WorkerOf(call.worker)) w->HandleAnswer(call);
  } else if (SimulatedServer* s = tasks_.ServerOf(call.server)) {
    Call answer = s->Serve(call);
    if (calls_.size() < 2 * kCallsMax) calls_.push_back(std::move(answer));
  }
}

}  // namespace evergrad::simulation
