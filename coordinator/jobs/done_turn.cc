#include "coordinator/jobs/done_turn.h"

#include "common/client/protocol.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {

void DoneTurn::Add(TaskId task, ClosureId closure, Attempt attempt, bool superseded) {
  open_ = true;
  answers_.push_back({task, closure, attempt, superseded});
}

bool DoneTurn::Commit() { return !open_ || job_.Persist(Record()); }

bool DoneTurn::End() {
  if (!open_) return false;
  const bool committed = Commit();
  open_ = false;
  const std::vector<Answer> answers = std::exchange(answers_, {});
  if (!committed) return false;
  for (const Answer& answer : answers) Send(answer);
  return true;
}

void DoneTurn::Send(const Answer& answer) {
  const fault::Hit hit = host_->failpoints().At("coordinator.before_done_answer");
  FillDoneAnswer(id_.uid.value(), answer.closure.value(), client::ToProto(answer.attempt),
                 answer.superseded, message_.mutable_done_answer());
  if (hit.action == fault::Action::kDelay) {
    delayed_.emplace(host_->Now() + std::chrono::milliseconds(hit.delay_ms),
                     std::make_pair(answer.task, message_));
  } else if (!hit) {
    // Without this answer the worker repeats its Done in its next session.
    host_->Send(answer.task, message_);
  }
}

void DoneTurn::SendDelayed(MonoTime now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    const auto node = delayed_.extract(delayed_.begin());
    host_->Send(node.mapped().first, node.mapped().second);
  }
}

}  // namespace evergrad::coordinator
