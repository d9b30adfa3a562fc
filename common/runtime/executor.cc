#include "common/runtime/executor.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace evergrad::runtime {
namespace {

using namespace std::chrono_literals;

// The limit of a delay, so that now + delay does not overflow.
constexpr std::chrono::nanoseconds kDelayMax = std::chrono::hours(24 * 365 * 10);
constexpr std::size_t kThreadNameMax = 15;

// Timers in the order of their due times. Timers with equal times are in the order of their
// creation.
using TimerKey = std::pair<MonoTime, std::uint64_t>;
using Timers = std::map<TimerKey, Task>;

MonoTime DueTime(MonoTime now, std::chrono::nanoseconds delay) {
  return now + std::clamp(delay, std::chrono::nanoseconds(0), kDelayMax);
}

void NameThisThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, kThreadNameMax).c_str());
}

}  // namespace

// ---------------------------------------------------------------- ThreadExecutor

struct ThreadExecutor::Impl {
  explicit Impl(Options o) : options(std::move(o)) {}

  void Run() {
    NameThisThread(options.name);
    std::deque<Task> batch;
    for (;;) {
      {
        MutexLock lock(&mu);
        if (user == User::kOwnThread) {
          user = User::kNobody;
          running = 0;
        }
        for (;;) {
          if (user == User::kBorrower) {
            awaits_borrower = true;
            wake.Wait(&mu);
            continue;
          }
          MoveDueTimers();
          if (!queue.empty()) break;
          if (stopping) return;
          if (timers.empty()) {
            wake.Wait(&mu);
          } else {
            wake.WaitFor(&mu, timers.begin()->first.first - clock.Now());
          }
        }
        batch.swap(queue);
        running = batch.size();
        user = User::kOwnThread;
      }
      // The thread takes the whole queue at once, so that the lock is taken once for many tasks.
      // Tasks that these tasks post run afterwards.
      while (!batch.empty()) {
        Task task = std::move(batch.front());
        batch.pop_front();
        task();
        task = nullptr;  // Destroyed before the next task runs, and without the lock.
        running.fetch_sub(1, std::memory_order_relaxed);
      }
    }
  }

  void MoveDueTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (timers.empty() || stopping) return;
    const MonoTime now = clock.Now();
    while (!timers.empty() && timers.begin()->first.first <= now) {
      queue.push_back(std::move(timers.begin()->second));
      timers.erase(timers.begin());
    }
  }

  const Options options;
  RealClock clock;
  mutable Mutex mu;
  CondVar wake;
  std::deque<Task> queue ABSL_GUARDED_BY(mu);
  Timers timers ABSL_GUARDED_BY(mu);
  std::uint64_t next_timer ABSL_GUARDED_BY(mu) = 0;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  enum class User { kNobody, kOwnThread, kBorrower };
  // The thread that runs the executor's tasks at present. It changes only under the lock, so each
  // such thread sees the effects of the previous one.
  User user ABSL_GUARDED_BY(mu) = User::kNobody;
  // Whether the executor's thread must look for tasks again once the borrowing thread has finished.
  bool awaits_borrower ABSL_GUARDED_BY(mu) = false;
  std::atomic<std::size_t> running{0};
  // This mutex is held while joining, so that a second Shutdown() returns only once the thread has
  // ended.
  Mutex join_mu;
  std::thread thread;
  std::thread::id id;
};

ThreadExecutor::ThreadExecutor(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  impl_->id = impl_->thread.get_id();
}

ThreadExecutor::~ThreadExecutor() { Shutdown(); }

bool ThreadExecutor::Post(Task task) {
  {
    MutexLock lock(&impl_->mu);
    if (!impl_->stopping) {
      EG_CHECK_MSG(impl_->queue.size() < impl_->options.queue_max,
                   "the executor's queue is full: executor=" + impl_->options.name);
      const bool was_empty = impl_->queue.empty();
      impl_->queue.push_back(std::move(task));
      if (was_empty && impl_->user == Impl::User::kNobody) impl_->wake.NotifyOne();
      return true;
    }
  }
  return false;  // `task` is destroyed without the lock, because its destructor may post.
}

bool ThreadExecutor::RunIfIdle(const Task& task) {
  {
    MutexLock lock(&impl_->mu);
    if (impl_->stopping || impl_->user != Impl::User::kNobody || !impl_->queue.empty())
      return false;
    impl_->user = Impl::User::kBorrower;
    impl_->running = 1;
  }
  task();
  MutexLock lock(&impl_->mu);
  impl_->user = Impl::User::kNobody;
  impl_->running = 0;
  // The notification is sent under the lock, because the executor may be destroyed once its thread
  // has ended.
  if (std::exchange(impl_->awaits_borrower, false) || !impl_->queue.empty())
    impl_->wake.NotifyOne();
  return true;
}

bool ThreadExecutor::PostAfter(std::chrono::nanoseconds delay, Task task) {
  {
    MutexLock lock(&impl_->mu);
    if (!impl_->stopping) {
      EG_CHECK_MSG(impl_->timers.size() < impl_->options.queue_max,
                   "the executor has too many timers: executor=" + impl_->options.name);
      const TimerKey key(DueTime(impl_->clock.Now(), delay), impl_->next_timer++);
      impl_->timers.emplace(key, std::move(task));
      if (impl_->timers.begin()->first == key) impl_->wake.NotifyOne();
      return true;
    }
  }
  return false;
}

void ThreadExecutor::Shutdown() {
  EG_CHECK_MSG(!InThisThread(), "an executor cannot be shut down from its own thread: executor=" +
                                    impl_->options.name);
  Timers dropped;
  {
    MutexLock lock(&impl_->mu);
    impl_->stopping = true;
    dropped.swap(impl_->timers);
    impl_->wake.NotifyOne();
  }
  dropped.clear();
  MutexLock lock(&impl_->join_mu);
  if (impl_->thread.joinable()) impl_->thread.join();
}

bool ThreadExecutor::InThisThread() const { return std::this_thread::get_id() == impl_->id; }

std::size_t ThreadExecutor::queue_depth() const {
  MutexLock lock(&impl_->mu);
  return impl_->queue.size() + impl_->running.load(std::memory_order_relaxed);
}

// ---------------------------------------------------------------- Thread

struct Thread::Impl {
  std::thread thread;
};

Thread::Thread(absl::string_view name, std::function<void()> body)
    : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([name = std::string(name), body = std::move(body)]() mutable {
    NameThisThread(name);
    body();
    body = nullptr;  // Captured objects are destroyed on this thread, before a Join() returns.
  });
}

Thread::~Thread() { Join(); }
Thread::Thread(Thread&&) noexcept = default;
Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

void Thread::Join() {
  if (impl_ && impl_->thread.joinable()) impl_->thread.join();
}

// ---------------------------------------------------------------- Event

struct WaitableEvent::Impl {
  mutable Mutex mu;
  CondVar changed;
  bool set ABSL_GUARDED_BY(mu) = false;
};

WaitableEvent::WaitableEvent() : impl_(std::make_unique<Impl>()) {}
WaitableEvent::~WaitableEvent() = default;

void WaitableEvent::Set() {
  // The notification is sent under the lock, because a waiter may destroy the event as soon as it
  // sees that the event is set.
  MutexLock lock(&impl_->mu);
  impl_->set = true;
  impl_->changed.NotifyAll();
}

bool WaitableEvent::IsSet() const {
  MutexLock lock(&impl_->mu);
  return impl_->set;
}

void WaitableEvent::Wait() {
  MutexLock lock(&impl_->mu);
  while (!impl_->set) impl_->changed.Wait(&impl_->mu);
}

bool WaitableEvent::WaitFor(std::chrono::nanoseconds timeout) {
  RealClock clock;
  const MonoTime until = DueTime(clock.Now(), timeout);
  MutexLock lock(&impl_->mu);
  while (!impl_->set) {
    const auto left = until - clock.Now();
    if (left <= 0ns) return false;
    impl_->changed.WaitFor(&impl_->mu, left);
  }
  return true;
}

}  // namespace evergrad::runtime
