#include "common/transport/grpc/grpc_loop.h"

#include <algorithm>

#include "common/base/check.h"

namespace evergrad::transport {

namespace {
// Limit of queued tasks, as in any executor. The number of tasks that callers post is bounded
// (post_limit.h), and so are the numbers of streams, calls and answers.
constexpr std::size_t kTasksMax = 1u << 20;
constexpr MonoTime kDelayMax = std::chrono::hours(24 * 365);  // Keeps now + delay from overflowing.

gpr_timespec GrpcDeadline(std::optional<MonoTime> due, MonoTime now) {
  if (!due) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left = std::max(*due - now, MonoTime{0});
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}
}  // namespace

GrpcLoop::GrpcLoop(absl::string_view name, std::unique_ptr<grpc::CompletionQueue> queue)
    : queue_(std::move(queue)) {
  thread_.emplace(name, [this] { Run(); });
}

GrpcLoop::~GrpcLoop() { Shutdown(); }

bool GrpcLoop::Post(runtime::Task task) {
  bool wake = false;
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      EG_CHECK_MSG(tasks_.size() < kTasksMax, "the limit of tasks posted to a loop was exceeded");
      tasks_.push_back(std::move(task));
      wake = !InThisThread() && !std::exchange(wake_pending_, true);
      if (!wake) return true;
    }
  }
  if (wake) WakeUp();
  return wake;  // If the loop is stopping, `task` is destroyed here, without the lock.
}

bool GrpcLoop::PostAfter(std::chrono::nanoseconds delay, runtime::Task task) {
  bool wake = false;
  {
    MutexLock lock(&mu_);
    if (stopping_) return false;
    const MonoTime due =
        Now() + std::clamp(delay, std::chrono::nanoseconds(0), std::chrono::nanoseconds(kDelayMax));
    timers_.emplace(TimerKey{due, next_timer_++}, std::move(task));
    wake = !InThisThread() && due < sleeping_until_ && !std::exchange(wake_pending_, true);
  }
  if (wake) WakeUp();
  return true;
}

void GrpcLoop::Defer(runtime::Task task) {
  if (!InThisThread()) {  // the loop has ended
    task();
    return;
  }
  deferred_.push_back(std::move(task));
}

// Only an alarm can wake a thread that waits at a completion queue. The alarm can be reused,
// because it is set again only after its event has been taken from the queue. The alarm is set to a
// time in the past, because gRPC rounds deadlines up to whole milliseconds. An alarm for the
// present time would fire half a millisecond late on average, and involve gRPC's timer thread.
void GrpcLoop::WakeUp() {
  alarm_.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&wake_));
}

std::optional<MonoTime> GrpcLoop::NextDue() {
  if (!tasks_.empty()) return MonoTime{0};
  if (timers_.empty() || stopping_) return std::nullopt;
  return timers_.begin()->first.first;
}

void GrpcLoop::RunTasks() {
  std::deque<runtime::Task> batch;
  {
    MutexLock lock(&mu_);
    const MonoTime now = timers_.empty() ? MonoTime{0} : Now();
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
      tasks_.push_back(std::move(timers_.begin()->second));
      timers_.erase(timers_.begin());
    }
    batch.swap(tasks_);
  }
  while (!batch.empty()) {
    runtime::Task task = std::move(batch.front());
    batch.pop_front();
    task();
  }
  while (!deferred_.empty()) {
    for (runtime::Task& task : std::exchange(deferred_, {})) task();
  }
}

void GrpcLoop::Run() {
  thread_id_.store(std::this_thread::get_id(), std::memory_order_release);
  bool queue_shut = false;
  for (;;) {
    RunTasks();
    std::optional<MonoTime> due;
    bool stop = false, waking = false;
    {
      MutexLock lock(&mu_);
      due = NextDue();
      sleeping_until_ = due.value_or(MonoTime::max());
      stop = stopping_ && tasks_.empty();
      waking = wake_pending_;
    }
    if (stop && !std::exchange(cancelling_, true)) {
      const std::set<GrpcCall*> calls = calls_;
      for (GrpcCall* call : calls) call->Cancel();
    }
    // The queue is not shut down while a wake-up is pending, because nothing may be queued after
    // Shutdown. Once the loop stops, no further wake-up follows.
    if (cancelling_ && calls_.empty() && !waking && !std::exchange(queue_shut, true))
      queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    switch (queue_->AsyncNext(&tag, &ok, GrpcDeadline(due, Now()))) {
      case grpc::CompletionQueue::SHUTDOWN: return;
      case grpc::CompletionQueue::TIMEOUT: break;
      case grpc::CompletionQueue::GOT_EVENT: {
        auto* event = static_cast<GrpcEvent*>(tag);
        if (event == &wake_) {
          MutexLock lock(&mu_);
          wake_pending_ = false;
        } else {
          event->OnEvent(ok);
        }
        break;
      }
    }
  }
}

void GrpcLoop::Shutdown() {
  EG_CHECK_MSG(!InThisThread(), "a transport was shut down from its own thread");
  std::map<TimerKey, runtime::Task> dropped;
  bool wake = false;
  {
    MutexLock lock(&mu_);
    if (!std::exchange(stopping_, true)) {
      dropped.swap(timers_);
      wake = !std::exchange(wake_pending_, true);
    }
  }
  dropped.clear();
  if (wake) WakeUp();
  MutexLock lock(&join_mu_);
  thread_.reset();
}

}  // namespace evergrad::transport
