// A Loop (streams/loop.h) over gRPC. Its thread is the only one that reads its gRPC completion
// queue (rule 6 in transport.h). Private to the room.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/runtime/executor.h"
#include "common/transport/streams/loop.h"

namespace evergrad::transport {

// The object to which a tag of the queue points.
class GrpcEvent {
 public:
  virtual ~GrpcEvent() = default;
  virtual void OnEvent(bool ok) = 0;
};

// The tag for one operation of `owner`, which counts its pending operations. The tag calls
// owner->OnOp(op, ok).
template <class Owner, class Op>
class GrpcTag final : public GrpcEvent {
 public:
  GrpcTag(Owner* owner, Op op) : owner_(owner), op_(op) {}
  void OnEvent(bool ok) override { owner_->OnOp(op_, ok); }

 private:
  Owner* const owner_;
  const Op op_;
};

// A call with operations on the queue; the loop cannot end before the call is destroyed.
class GrpcCall {
 public:
  virtual ~GrpcCall() = default;
  virtual void Cancel() = 0;
};

class GrpcLoop final : public Loop {
 public:
  GrpcLoop(absl::string_view name, std::unique_ptr<grpc::CompletionQueue> queue);
  ~GrpcLoop() override;

  bool Post(runtime::Task task) override;
  bool PostAfter(std::chrono::nanoseconds delay, runtime::Task task) override;
  void Defer(runtime::Task task) override;
  bool InThisThread() const override {
    return thread_id_.load(std::memory_order_acquire) == std::this_thread::get_id();
  }

  // Runs the posted tasks, cancels all calls, waits until they are destroyed, and ends the queue
  // and the thread. Idempotent. Must not be called on the loop's thread. A server on this loop must
  // have been shut down first.
  void Shutdown();

  grpc::CompletionQueue* queue() { return queue_.get(); }
  // A call registers and removes itself with these methods, on the loop.
  void Add(GrpcCall* call) { calls_.insert(call); }
  void Remove(GrpcCall* call) { calls_.erase(call); }
  bool stopping() const { return cancelling_; }

 private:
  class Wake final : public GrpcEvent {
   public:
    void OnEvent(bool) override {}
  };
  using TimerKey = std::pair<MonoTime, std::uint64_t>;

  void Run();
  void RunTasks();
  // Returns the next time at which the thread must wake up by itself.
  std::optional<MonoTime> NextDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeUp();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  Mutex mu_;
  std::deque<runtime::Task> tasks_ ABSL_GUARDED_BY(mu_);
  std::map<TimerKey, runtime::Task> timers_ ABSL_GUARDED_BY(mu_);
  std::uint64_t next_timer_ ABSL_GUARDED_BY(mu_) = 0;
  bool wake_pending_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  MonoTime sleeping_until_ ABSL_GUARDED_BY(mu_) = MonoTime::max();

  Wake wake_;
  grpc::Alarm alarm_;  // at most one alarm is pending (wake_pending_)
  std::set<GrpcCall*> calls_;
  std::vector<runtime::Task> deferred_;  // Accessed by the loop's thread only.
  bool cancelling_ = false;
  std::atomic<std::thread::id> thread_id_{};
  Mutex join_mu_;
  std::optional<runtime::Thread> thread_;
};

}  // namespace evergrad::transport
