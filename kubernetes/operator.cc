#include "kubernetes/operator.h"

#include <algorithm>
#include <utility>

namespace evergrad::kubernetes {
namespace {

// The longest pause of the controller. It bounds the delay of steps that wait for a time.
constexpr std::chrono::milliseconds kPauseMax(500);

}  // namespace

Operator::Operator(ControllerOptions options, const Parts& parts)
    : parts_(parts),
      watch_({.api = parts.api,
              .feed = &feed_,
              .interruption = parts.interruption,
              .clock = parts.clock,
              .logger = parts.logger,
              .metrics = parts.metrics,
              .ready = parts.api_ready}),
      controller_(std::move(options), {.api = parts.api,
                                       .coordinator = parts.coordinator,
                                       .clock = parts.clock,
                                       .logger = parts.logger,
                                       .metrics = parts.metrics,
                                       .ready = parts.coordinator_ready,
                                       .wish_for_list = [this] { feed_.WishForList(); }}),
      watch_thread_(std::make_unique<runtime::Thread>("kube-watch", [this] { watch_.Run(); })),
      control_thread_(std::make_unique<runtime::Thread>("kube-control", [this] { Control(); })) {}

Operator::~Operator() {
  parts_.interruption->Interrupt();
  feed_.Stop();
}

void Operator::Control() {
  MonoTime next{0};
  while (!feed_.stopped()) {
    const MonoTime pause = std::clamp<MonoTime>(next - parts_.clock->Now(), MonoTime(0), kPauseMax);
    next = controller_.Round(feed_.Take(pause));
  }
}

}  // namespace evergrad::kubernetes
