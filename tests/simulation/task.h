// The session of a task with the coordinator. Servers and workers are tasks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/simulation/messages.h"
#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {

// A queue that does not free its memory when it is emptied.
template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  void Push(T item) { items_.push_back(std::move(item)); }
  T Pop() {
    T item = std::move(items_[head_++]);
    if (head_ == items_.size()) Clear();
    return item;
  }
  void Clear() {
    items_.clear();
    head_ = 0;
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

class Task {
 public:
  // `walk` must outlive the task.
  Task(WalkContext& walk, int number) : process(number), walk_(walk) {}
  virtual ~Task() = default;

  // Begins a session with a Hello. The coordinator knows the session by the new `registration`.
  void BeginSession(TaskId registration) {
    connected = true;
    task = registration;
    SendHello();
  }
  // Ends the session. Messages in flight are lost.
  void EndSession();
  // Forgets all jobs up to the job `newest`. A coordinator with another store orders this.
  virtual void ForgetJobs(JobUid newest) = 0;

  const int process;            // number of the process; never reused
  bool connected = false;       // it has a session
  bool registered = false;      // the coordinator has accepted its Hello
  bool welcomed = false;        // has received Registered, and may send more than the Hello
  TaskId task;                  // the present registration
  std::vector<TaskId> earlier;  // earlier registrations in this life of the coordinator
  // The term and the number of the newest life of the coordinator that registered this task [18].
  std::uint64_t highest_term = 0, life = 0;
  Fifo<Down> in;
  Fifo<Up> out;

 protected:
  virtual void SendHello() = 0;
  // Handles the answer to the Hello. Checks I4 for the lives of the coordinator that the task has
  // seen.
  void OnRegistered(const Down& m);

  WalkContext& walk_;
};

}  // namespace evergrad::simulation
