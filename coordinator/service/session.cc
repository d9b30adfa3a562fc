// The session of one task: first the Hello, then batched messages in both directions. Malformed
// messages are refused by a typed Rejected and change nothing.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/service/control_plane.h"
#include "coordinator/service/task_answers.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kTermMax = 1ull << 62;  // higher terms are forged
// Largest distance above the known term; no coordinator restarts so often.
constexpr std::uint64_t kTermStepMax = 1ull << 32;
constexpr int kShardsHeldMax = 1 << 16;
// Limit of each text that a task sends about itself and `task list` shows.
constexpr std::size_t kTextBytesMax = 1024;

}  // namespace

void ControlPlane::OpenSession(std::uint64_t number, transport::PeerInfo peer,
                               std::shared_ptr<transport::MessageStream> stream) {
  if (stopped_) {
    stream->Close();
    open_sessions_.fetch_sub(1);
    return;
  }
  Session session;
  session.number = number;
  session.peer = std::move(peer);
  session.stream = std::move(stream);
  session.opened_at = Now();
  sessions_.Open(std::move(session));
}

void ControlPlane::OnBatch(std::uint64_t number, const v1::TaskBatch* batch) {
  Session* session = sessions_.Find(number);
  if (session == nullptr) return;
  if (batch == nullptr) {
    metrics_.malformed.Add();
    return Reject(number, "malformed", "not a batch of messages", false, options_.membership.lease);
  }
  if (session->registered()) {
    membership_.Heard(Now(), session->task);
    if (!std::exchange(session->spoke, true) && session->role == Role::kWorker) {
      if (Job* job = JobOf(session->task)) job->Speaks(session->task);
    }
  }
  for (const v1::TaskMessage& message : batch->messages()) {
    session = sessions_.Find(number);
    if (session == nullptr) return;  // one of its own messages has ended it
    metrics_.messages.Add();
    absl::Status status;
    if (session->stage == Session::Stage::kAwaitingHello) {
      if (message.has_hello() && batch->messages_size() == 1) {
        OnHello(*session, message.hello());
      } else {
        status = absl::InvalidArgumentError("the first message must be one Hello and nothing else");
      }
    } else if (session->stage == Session::Stage::kPending) {
      status = absl::InvalidArgumentError("the task sent a message before it was registered");
    } else {
      status = OnTaskMessage(*session, message);
    }
    if (!status.ok()) {
      metrics_.malformed.Add();
      parts_.logger->Warning(absl::StrCat(
          "malformed message refused: peer=", session->peer.address, " task=",
          session->identity.empty() ? "?" : session->Name(), " reason=", status.message()));
      return Reject(number, "malformed", status.message(), false, options_.membership.lease);
    }
  }
}

void ControlPlane::OnStreamEnd(std::uint64_t number) { CloseSession(number); }

absl::Status ControlPlane::CheckHello(const v1::Hello& hello) const {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_PS_SERVER)
    return absl::InvalidArgumentError(
        absl::StrCat("hello of an unknown role: role=", hello.role()));
  // A task with a forged term must not raise the coordinator's term so far that the Hellos of all
  // other tasks become invalid.
  const std::uint64_t known = std::max(term_.value(), parts_.store->term().value());
  const std::uint64_t term_max =
      known == 0 ? kTermMax : std::max(known, std::min(kTermMax, known + kTermStepMax));
  if (hello.highest_term() > term_max)
    return absl::InvalidArgumentError(absl::StrCat(
        "hello with an impossible term: term=", hello.highest_term(), " known=", known));
  for (const std::string* text :
       {&hello.build_id(), &hello.host(), &hello.metrics_address(), &hello.endpoint().address(),
        &hello.endpoint().unix_path(), &hello.endpoint().host_id(), &hello.compute(),
        &hello.leaving(), &hello.lifeline()}) {
    if (text->size() > kTextBytesMax)
      return absl::InvalidArgumentError(absl::StrCat(
          "a text of the hello is too long: bytes=", text->size(), " max=", kTextBytesMax));
  }
  if (hello.shards_size() > kShardsHeldMax || hello.attempts_size() > client::kHeldAttemptsMax)
    return absl::InvalidArgumentError("hello holds too many shards or attempts");
  if (hello.role() == v1::ROLE_PS_SERVER && hello.endpoint().address().empty())
    return absl::InvalidArgumentError("hello of a server without an endpoint");
  for (const v1::HeldShard& shard : hello.shards()) {
    if (auto done = client::FromProto(shard.done()); !done.ok()) return done.status();
    if (auto refused = client::FromProto(shard.refused()); !refused.ok()) return refused.status();
    if (shard.epoch().term() > term_max)
      return absl::InvalidArgumentError(
          absl::StrCat("hello holds a shard of an impossible term: term=", shard.epoch().term(),
                       " known=", known));
  }
  return absl::OkStatus();
}

void ControlPlane::OnHello(Session& session, const v1::Hello& hello) {
  const std::uint64_t number = session.number;
  if (hello.protocol_version() != client::kProtocolVersion) {
    return Reject(number, "version",
                  absl::StrCat("protocol version mismatch: coordinator=", client::kProtocolVersion,
                               " (", options_.build_id, ") task=", hello.protocol_version(), " (",
                               hello.build_id().substr(0, 100), ")"),
                  false, options_.membership.lease);
  }
  if (absl::Status status = CheckHello(hello); !status.ok()) {
    metrics_.malformed.Add();
    return Reject(number, "malformed", status.message(), false, options_.membership.lease);
  }
  session.stage = Session::Stage::kPending;
  session.role = hello.role() == v1::ROLE_WORKER ? Role::kWorker : Role::kPsServer;
  session.hello = hello;
  ReportedLife task{hello.highest_term(), hello.life_id(), 0};
  for (const v1::HeldShard& shard : hello.shards())
    task.held_term = std::max(task.held_term, shard.epoch().term());
  highest_reported_ = std::max({highest_reported_, task.highest_term, task.held_term});
  if (life_over_)
    return Reject(number, "lost_journal", "this coordinator is ending", false,
                  options_.membership.lease);
  if (!term_known_) {
    sessions_.Defer(number);
    return;
  }
  if (RefusesForLostJobs(session, hello)) return;
  if (const auto term = BeginAnewWith(term_, life_id_, parts_.store->term(), task))
    BeginAnew(*term, std::max(task.highest_term, task.held_term));
  if (window_open_ && session.role == Role::kWorker) {
    sessions_.Defer(number);
    return;
  }
  Register(number);
}

// Handles the parts that concern the task itself. The jobs handle the rest.
absl::Status ControlPlane::OnTaskMessage(Session& session, const v1::TaskMessage& message) {
  std::optional<std::uint64_t> named;  // the job that the message is about
  switch (message.message_case()) {
    case v1::TaskMessage::kHello:
      return absl::InvalidArgumentError("a second Hello in one session");
    case v1::TaskMessage::kHeartbeat: OnHeartbeat(session, message.heartbeat()); break;
    case v1::TaskMessage::kLeaving: OnLeaving(session, message.leaving()); return absl::OkStatus();
    case v1::TaskMessage::kLogLines:
      log_reads_.OnLines(session.task, message.log_lines());
      return absl::OkStatus();
    case v1::TaskMessage::kDone: named = message.done().job_uid(); break;
    case v1::TaskMessage::kFailed: named = message.failed().job_uid(); break;
    case v1::TaskMessage::kDropped: named = message.dropped().job_uid(); break;
    case v1::TaskMessage::kAssigned: named = message.assigned().job_uid(); break;
    case v1::TaskMessage::kClosed: named = message.closed().job_uid(); break;
    case v1::TaskMessage::kSealed: named = message.sealed().job_uid(); break;
    case v1::TaskMessage::kShardDurable: named = message.shard_durable().job_uid(); break;
    case v1::TaskMessage::kStopped: named = message.stopped().job_uid(); break;
    case v1::TaskMessage::kReceived: named = message.received().job_uid(); break;
    case v1::TaskMessage::kRunFile:
      if (session.role != Role::kWorker)
        return absl::InvalidArgumentError("only a worker may send a file of an export");
      named = message.run_file().job_uid();
      break;
    case v1::TaskMessage::kShardReport: break;
    case v1::TaskMessage::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("an empty or unknown message");
  }
  return RouteToJobs(session, message, named);
}

void ControlPlane::OnHeartbeat(const Session& session, const v1::Heartbeat& heartbeat) {
  const auto found = facts_.find(session.task);
  if (found == facts_.end()) return;
  TaskFacts& facts = found->second;
  if (heartbeat.has_worker()) {
    facts.worker = heartbeat.worker();
    facts.worker.clear_steps_log();
    facts.worker.clear_device();  // the job keeps this part
    facts.worker.set_state(client::CleanText(heartbeat.worker().state(), 64));
    facts.worker.set_waiting_for(
        client::CleanText(heartbeat.worker().waiting_for(), kTextBytesMax));
  }
  if (heartbeat.has_server()) facts.server = heartbeat.server();
}

void ControlPlane::OnLeaving(const Session& session, const v1::Leaving& leaving) {
  const TaskId task = session.task;
  membership_.Leaving(Now(), task, client::CleanText(leaving.reason(), 200));
  TaskFacts& facts = facts_[task];
  facts.leaving = leaving.reason().substr(0, 200);
  facts.drains |= leaving.drains() && session.role == Role::kPsServer;
  if (session.role == Role::kWorker) {
    if (Job* job = JobOf(task)) job->OnLeaving(task, facts.leaving, false);
    return;
  }
  const std::vector<Job*> jobs = jobs_.Running();
  for (Job* job : jobs) job->OnLeaving(task, facts.leaving, facts.drains);
  CheckDrained(task);
}

// Passes a message that names no job to every job to which the task belongs. A message of a worker
// goes only to the job that the worker serves.
absl::Status ControlPlane::RouteToJobs(Session& session, const v1::TaskMessage& message,
                                       std::optional<std::uint64_t> named) {
  const TaskId task = session.task;
  absl::InlinedVector<Job*, 8> to;
  if (session.role == Role::kPsServer && !named) {
    for (Job* job : jobs_.Running()) to.push_back(job);
  } else if (Job* job = session.role == Role::kWorker ? JobOf(task) : jobs_.Running(JobUid(*named));
             job != nullptr && job->uid().value() == named.value_or(job->uid().value())) {
    to.push_back(job);
  }
  for (Job* job : to) {
    const absl::Status status = job->OnMessage(task, message);
    // The call is posted behind the batches that have already arrived, which therefore belong to
    // the same turn.
    if (job->turn_open() && !std::exchange(turn_posted_, true))
      parts_.control->Post([this] { EndTurn(); });
    if (!status.ok()) return status;
  }
  if (to.empty() && named) AnswerForNoJob(session, message, *named);
  return absl::OkStatus();
}

void ControlPlane::AnswerForNoJob(Session& session, const v1::TaskMessage& message,
                                  std::uint64_t job) {
  if (message.has_done()) {
    sessions_.Queue(session, Superseded(job, message.done().closure(), message.done().attempt()));
  } else if (message.has_assigned() && message.assigned().ok()) {
    sessions_.Queue(session, Drop(job, message.assigned().shard(), message.assigned().epoch()));
  }
}

void ControlPlane::EndTurn() {
  turn_posted_ = false;
  if (stopped_) return;
  for (const auto& [uid, job] : jobs_.all()) job->EndTurn();
}

// ---------------------------------------------------------------- messages to the task

void ControlPlane::Reject(std::uint64_t number, absl::string_view kind, absl::string_view message,
                          bool exit, std::chrono::milliseconds retry_after,
                          const std::optional<RegisterVerdict::Holder>& holder) {
  Session* const session = sessions_.Find(number);
  if (session == nullptr) return;
  v1::CoordinatorMessage rejection;
  v1::Rejected* rejected = rejection.mutable_rejected();
  rejected->set_kind(std::string(kind));
  rejected->set_message(client::CleanText(message, 1024));
  rejected->set_exit(exit);
  rejected->set_retry_after_ms(static_cast<std::uint32_t>(retry_after.count()));
  if (holder) {
    rejected->set_holder_process(holder->process_uid);
    rejected->set_holder_lifeline(holder->lifeline);
    rejected->set_holder_host(holder->host);
    rejected->set_holder_lives(holder->lives);
    rejected->set_free_identity(holder->free_identity);
  }
  sessions_.SendLast(*session, rejection);
  CloseSession(number);
}

void ControlPlane::CloseSession(std::uint64_t number) {
  const std::optional<Session> session = sessions_.Remove(number);
  if (!session) return;
  open_sessions_.fetch_sub(1);
  if (!session->registered()) return;
  log_reads_.OnSessionClosed(session->task);
  if (!stopped_) Apply(membership_.StreamClosed(Now(), session->task));
}

}  // namespace evergrad::coordinator
