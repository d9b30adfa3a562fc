#include "coordinator/service/session_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/append_field.h"

namespace evergrad::coordinator {

std::string Session::Name() const {
  return identity.empty() ? peer.address : TaskName(role, identity);
}

void SessionTable::Open(Session session) {
  const std::uint64_t number = session.number;
  sessions_.emplace(number, std::move(session));
}

Session* SessionTable::Find(std::uint64_t number) {
  const auto found = sessions_.find(number);
  return found == sessions_.end() ? nullptr : &found->second;
}

Session* SessionTable::Of(TaskId task) {
  const auto number = of_task_.find(task);
  return number == of_task_.end() ? nullptr : Find(number->second);
}

void SessionTable::Register(Session& session, TaskId task, const std::string& identity) {
  session.stage = Session::Stage::kRegistered;
  session.task = task;
  session.identity = identity;
  of_task_[task] = session.number;
}

std::optional<Session> SessionTable::Remove(std::uint64_t number) {
  auto node = sessions_.extract(number);
  if (node.empty()) return std::nullopt;
  Session& session = node.mapped();
  session.stream->Close();
  std::erase(deferred_, number);
  if (session.registered()) of_task_.erase(session.task);
  return std::move(session);
}

void SessionTable::RemoveAll() {
  for (auto& [number, session] : sessions_) session.stream->Close();
  sessions_.clear();
  of_task_.clear();
}

std::vector<std::uint64_t> SessionTable::Numbers() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, session] : sessions_) numbers.push_back(number);
  return numbers;
}

std::vector<std::uint64_t> SessionTable::RegisteredNumbers() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, session] : sessions_) {
    if (session.registered()) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::uint64_t> SessionTable::WithoutHelloSince(MonoTime then) const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, session] : sessions_) {
    if (session.stage == Session::Stage::kAwaitingHello && session.opened_at < then)
      numbers.push_back(number);
  }
  return numbers;
}

void SessionTable::Queue(Session& session, const v1::CoordinatorMessage& message) {
  if (session.out.size() + message.ByteSizeLong() + 16 > client::kSessionBatchBytesMax)
    Flush(session.number);
  AppendField(v1::CoordinatorBatch::kMessagesFieldNumber, message, &session.out);
  if (session.flush_posted) return;
  session.flush_posted = true;
  parts_.control->Post([this, number = session.number] { Flush(number); });
}

void SessionTable::Flush(std::uint64_t number) {
  Session* const session = Find(number);
  if (session == nullptr) return;
  session->flush_posted = false;
  if (session->out.empty()) return;
  std::string bytes = std::exchange(session->out, std::string());
  const std::uint64_t size = bytes.size();
  const bool admitted = parts_.gate->Admit(
      size,
      [this, number, bytes = std::move(bytes)]() mutable { SendBytes(number, std::move(bytes)); });
  if (admitted) return;
  parts_.on_gate_full();
  parts_.control->Post([this, number] { parts_.on_failed(number); });
}

void SessionTable::SendLast(Session& session, const v1::CoordinatorMessage& message) {
  if (parts_.gate->IsOpen()) {
    Queue(session, message);
    Flush(session.number);
    return;
  }
  // The queued messages are not sent. The task is reconciled in its next session instead.
  v1::CoordinatorBatch batch;
  *batch.add_messages() = message;
  SendBytes(session.number, batch.SerializeAsString());
}

void SessionTable::SendBytes(std::uint64_t number, std::string bytes) {
  const Session* const session = Find(number);
  if (session == nullptr) return;
  const std::size_t size = bytes.size();
  const absl::Status status = session->stream->Send(std::move(bytes));
  if (status.ok()) return;
  parts_.logger->Warning(
      absl::StrCat("ending a session because messages could not be sent: task=", session->Name(),
                   " bytes=", size, " reason=", status.message()));
  // The task does not read, or its stream has just ended. The task is reconciled when it registers
  // again. The session ends by a posted call, because the caller still uses the session.
  parts_.control->Post([this, number] { parts_.on_failed(number); });
}

}  // namespace evergrad::coordinator
