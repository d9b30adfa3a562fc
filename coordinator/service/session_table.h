// The open sessions, the task of each session, and the messages on their way to the tasks.
//
// Messages are batched. The messages of one turn of the control executor are sent as one batch, in
// order, once the changes that caused them are durable (DurabilityGate).
//
// Not thread-safe: the control executor owns it. No function except Remove removes a session: a
// session that must end is passed to on_failed by a posted call. Therefore a reference to a Session
// is valid until the owner of the table calls Remove.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/log/log.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "common/transport/transport.h"
#include "coordinator/membership/membership.h"
#include "coordinator/service/durability_gate.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

struct Session {
  std::uint64_t number = 0;
  // The transport shares the stream. The callbacks of the transport end when the stream is closed.
  std::shared_ptr<transport::MessageStream> stream;
  transport::PeerInfo peer;
  MonoTime opened_at{0};
  enum class Stage { kAwaitingHello, kPending, kRegistered } stage = Stage::kAwaitingHello;
  v1::Hello hello;  // kept until the task is registered
  TaskId task;
  Role role = Role::kWorker;
  std::string identity;
  bool spoke = false;  // true if the task has sent a message since its Hello
  std::string out;     // the encoded messages of the next CoordinatorBatch
  bool flush_posted = false;

  bool registered() const { return stage == Stage::kRegistered; }
  // Returns "worker/0", or the peer's address if the task has no identity yet.
  std::string Name() const;
};

class SessionTable {
 public:
  struct Parts {  // all outlive the table
    runtime::Executor* control = nullptr;
    log::Logger* logger = nullptr;
    DurabilityGate* gate = nullptr;
    // Called when messages to the session were lost. The session must end, and the task's next
    // session is reconciled.
    std::function<void(std::uint64_t number)> on_failed;
    // Called when the gate refuses a batch because of its limit. The session ends.
    std::function<void()> on_gate_full;
  };
  explicit SessionTable(Parts parts) : parts_(std::move(parts)) {}

  void Open(Session session);
  Session* Find(std::uint64_t number);  // null if it has ended
  Session* Of(TaskId task);             // null if the task has no session
  // Makes the session the session of `task`.
  void Register(Session& session, TaskId task, const std::string& identity);
  // Ends the session and returns it; nullopt if it had already ended.
  std::optional<Session> Remove(std::uint64_t number);
  void RemoveAll();
  // Returns the registered tasks with the numbers of their sessions.
  const std::map<TaskId, std::uint64_t>& tasks() const { return of_task_; }
  std::vector<std::uint64_t> Numbers() const;
  std::vector<std::uint64_t> RegisteredNumbers() const;
  // Returns the sessions that were opened before `then` and have sent no Hello.
  std::vector<std::uint64_t> WithoutHelloSince(MonoTime then) const;
  std::size_t size() const { return sessions_.size(); }

  // These functions keep the sessions whose Hello waits for the end of the start-up window, in the
  // order of arrival.
  void Defer(std::uint64_t number) { deferred_.push_back(number); }
  const std::vector<std::uint64_t>& deferred() const { return deferred_; }
  std::vector<std::uint64_t> TakeDeferred() { return std::exchange(deferred_, {}); }

  // --- messages to the task
  void Queue(Session& session, const v1::CoordinatorMessage& message);
  // Sends queued messages now, unless they must wait for the store.
  void Flush(std::uint64_t number);
  // Sends the last message of a session, which depends on no change. The message follows the queued
  // messages if the gate is open. If the gate is closed, it is sent without the queued messages.
  void SendLast(Session& session, const v1::CoordinatorMessage& message);
  // Sends at once, without waiting for queued messages or for the store.
  void SendBytes(std::uint64_t number, std::string bytes);

 private:
  const Parts parts_;
  std::map<std::uint64_t, Session> sessions_;
  std::map<TaskId, std::uint64_t> of_task_;
  std::vector<std::uint64_t> deferred_;
};

}  // namespace evergrad::coordinator
