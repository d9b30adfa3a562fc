// The session of one task: Hello first, then batched messages both ways. What is malformed is
// refused by a typed Rejected and changes nothing.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/jobs/append_field.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kBatchBytesMax = 1u << 20;
constexpr std::uint64_t kTermMax = 1ull << 62;  // beyond it somebody makes numbers up
constexpr std::uint64_t kTermStepMax =
    1ull << 32;  // above what we know of: no coordinator has had so many lives meanwhile
constexpr int kShardsHeldMax = 1 << 16;
constexpr std::chrono::seconds kTooOftenSaidEvery{10};
constexpr std::size_t kTextBytesMax =
    1024;  // each text that a task says of itself; `task list` shows them

}  // namespace

ControlPlane::Session* ControlPlane::SessionOf(TaskId task) {
  const auto number = session_of_.find(task);
  if (number == session_of_.end()) return nullptr;
  const auto found = sessions_.find(number->second);
  return found == sessions_.end() ? nullptr : &found->second;
}

void ControlPlane::OpenSession(std::uint64_t number, transport::PeerInfo peer,
                               std::shared_ptr<transport::MessageStream> stream,
                               std::shared_ptr<Inbox> inbox) {
  if (stopped_) {
    stream->Close();
    open_sessions_.fetch_sub(1);
    return;
  }
  Session session;
  session.number = number;
  session.peer = std::move(peer);
  session.stream = std::move(stream);
  session.inbox = std::move(inbox);
  session.opened_at = Now();
  sessions_.emplace(number, std::move(session));
}

void ControlPlane::OnBatch(std::uint64_t number, const v1::TaskBatch* batch) {
  auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  if (batch == nullptr) {
    malformed_total_.Add();
    return Reject(number, "malformed", "not a batch of messages", false, options_.membership.lease);
  }
  if (found->second.stage == Session::Stage::kRegistered) {
    membership_.Heard(Now(), found->second.task);
    if (!std::exchange(found->second.spoke, true) && found->second.role == Role::kWorker) {
      if (Job* job = JobOf(found->second.task)) job->Speaks(found->second.task);
    }
  }
  for (const v1::TaskMessage& message : batch->messages()) {
    found = sessions_.find(number);
    if (found == sessions_.end()) return;  // ended by one of its own messages
    messages_total_.Add();
    Session& session = found->second;
    absl::Status status;
    if (session.stage == Session::Stage::kAwaitingHello) {
      if (message.has_hello() && batch->messages_size() == 1) {
        OnHello(session, message.hello());
      } else {
        status = absl::InvalidArgumentError("the first message must be one Hello and nothing else");
      }
    } else if (session.stage == Session::Stage::kPending) {
      status = absl::InvalidArgumentError("a message before Registered");
    } else {
      status = OnTaskMessage(session, message);
    }
    if (!status.ok()) {
      malformed_total_.Add();
      parts_.logger->Warning(absl::StrCat(
          "malformed message refused: peer=", session.peer.address, " task=",
          session.identity.empty() ? "?"
                                   : absl::StrCat(RoleName(session.role), "/", session.identity),
          " reason=", status.message()));
      return Reject(number, "malformed", status.message(), false, options_.membership.lease);
    }
  }
}

void ControlPlane::OnStreamEnd(std::uint64_t number) { CloseSession(number); }

absl::Status ControlPlane::CheckHello(const v1::Hello& hello) const {
  if (hello.role() != v1::ROLE_WORKER && hello.role() != v1::ROLE_PS_SERVER)
    return absl::InvalidArgumentError(
        absl::StrCat("hello of an unknown role: role=", hello.role()));
  // One task that makes a term up must not bring ours to where everybody else's hello is
  // impossible.
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
      return absl::InvalidArgumentError(
          absl::StrCat("hello with a text too long: bytes=", text->size(), " max=", kTextBytesMax));
  }
  if (hello.shards_size() > kShardsHeldMax || hello.attempts_size() > client::kHeldAttemptsMax)
    return absl::InvalidArgumentError("hello holds too much");
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
    malformed_total_.Add();
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
    pending_.push_back(number);
    return;
  }
  if (RefusesForLostJobs(session, hello)) return;
  if (const auto term = BeginAnewWith(term_, life_id_, parts_.store->term(), task))
    BeginAnew(*term, std::max(task.highest_term, task.held_term));
  if (window_open_ && session.role == Role::kWorker) {
    pending_.push_back(number);
    return;
  }
  Register(number);
}

void ControlPlane::Register(std::uint64_t number) {
  auto found = sessions_.find(number);
  if (found == sessions_.end() || found->second.stage != Session::Stage::kPending) return;
  Session& session = found->second;
  const MonoTime now = Now();
  v1::Hello hello = std::move(session.hello);
  session.hello.Clear();
  TaskHello said;
  said.role = session.role;
  said.identity = hello.identity();
  // With TLS a task is who its certificate says; one that leaves its identity to us gets the
  // certificate's.
  if (const std::size_t slash = session.peer.certificate_task.find('/');
      said.identity.empty() && slash != std::string::npos)
    said.identity = session.peer.certificate_task.substr(slash + 1);
  const std::string claimed =
      absl::StrCat(RoleName(said.role), said.identity.empty() ? "" : "/", said.identity);
  if (absl::Status status = transport::CheckPeer(session.peer, claimed); !status.ok()) {
    parts_.logger->Warning(absl::StrCat("registration refused: peer=", session.peer.address,
                                        " reason=", status.message()));
    return Reject(number, "certificate", status.message(), /*exit=*/true,
                  options_.membership.lease);
  }
  if (session.role == Role::kPsServer && options_.unreachable_endpoint &&
      options_.unreachable_endpoint(session.peer.address, hello.endpoint().address())) {
    parts_.logger->Warning(
        absl::StrCat("registration refused: peer=", session.peer.address, " task=", claimed,
                     " reason=it is on another host and advertises a loopback address, address=",
                     client::CleanText(hello.endpoint().address(), 128)));
    return Reject(
        number, "endpoint",
        absl::StrCat("this server tells workers to connect to ", hello.endpoint().address(),
                     ", which they can do on its own host alone, and the coordinator is on another "
                     "host: give it --listen or --advertise with "
                     "an address that workers reach"),
        /*exit=*/true, options_.membership.lease);
  }
  said.process_uid = hello.process_uid();
  said.pid = hello.pid();
  said.host = client::CleanText(hello.host(), client::kHostBytesMax);
  said.lifeline = hello.lifeline();
  said.ended_process = hello.ended_process();
  // For whom a certificate names one task no other name serves.
  said.numbered = hello.numbered() && session.peer.certificate_task.find('/') == std::string::npos;
  const RegisterVerdict verdict = membership_.Register(now, said);
  if (!verdict.accepted) {
    SayRefused(said, verdict);
    return Reject(number, verdict.kind, verdict.message, verdict.exit, verdict.retry_after,
                  verdict.holder);
  }
  registrations_total_.Add();
  const bool former_died = verdict.former && !verdict.former_same_process &&
                           !verdict.former_was_gone && !verdict.former_leaving &&
                           !verdict.former_numbered;
  std::optional<std::string> contest;
  if (verdict.former) {
    if (Session* old = SessionOf(*verdict.former)) {
      const std::uint64_t old_number = old->number;
      const bool exit =
          !verdict.former_same_process && said.role == Role::kWorker && !verdict.former_numbered;
      if (exit) {
        const v1::Hello& older = facts_[*verdict.former].hello;
        contest = contest_.OnReplaced(now, absl::StrCat("worker/", verdict.identity),
                                      {client::CleanText(older.host(), 256), older.pid()},
                                      {client::CleanText(said.host, 256), said.pid});
      }
      Reject(old_number, "replaced",
             absl::StrCat("replaced by a newer registration of ", RoleName(said.role), "/",
                          verdict.identity, ": pid ", said.pid, " on ", said.host),
             exit, std::chrono::milliseconds(0));
    }
    facts_.erase(*verdict.former);
  }
  // [35] With certificates a proof serves whom the certificate is for, whoever else has got hold of
  // it.
  for (v1::HeldAttempt& held : *hello.mutable_attempts()) {
    if (!transport::CheckPeer(session.peer, absl::StrCat("worker/", held.granted_to())).ok())
      held.clear_proof();
  }
  // Reject may have changed the table, never this session.
  session.stage = Session::Stage::kRegistered;
  session.task = verdict.task;
  session.identity = verdict.identity;
  session_of_[verdict.task] = number;
  TaskFacts& facts = facts_[verdict.task];
  facts.hello = hello;
  facts.hello.clear_shards();
  facts.hello.clear_attempts();
  facts.registered_ms = facts.since_ms = WallMillis();
  if (!hello.leaving().empty()) {  // it was given notice in a former session
    facts.leaving = hello.leaving().substr(0, 200);
    facts.drains = said.role == Role::kPsServer;
    membership_.Leaving(now, verdict.task, client::CleanText(facts.leaving, 200));
  }
  const TaskEntry* entry = membership_.Find(verdict.task);

  v1::CoordinatorMessage message;
  v1::Registered* registered = message.mutable_registered();
  registered->set_term(term_.value());
  registered->set_life_id(life_id_);
  registered->set_journaled(parts_.store->persistent());
  registered->set_local_only(options_.local_only);
  registered->mutable_registration()->set_term(term_.value());
  registered->mutable_registration()->set_n(verdict.task.value());
  registered->set_identity(verdict.identity);
  registered->set_lease_ms(static_cast<std::uint32_t>(options_.membership.lease.count()));
  registered->set_heartbeat_ms(std::max<std::uint32_t>(
      1, static_cast<std::uint32_t>(options_.membership.lease.count() / 4)));
  std::vector<Job*> jobs;  // that it is of: a worker of one, a server of all
  std::vector<v1::CoordinatorMessage>
      others;  // of what Registered says of the first one, for the rest
  if (said.role == Role::kWorker) {
    Job* job = JobFor(verdict.task, hello, verdict.former);
    if (verdict.former) {
      if (Job* before = JobOf(*verdict.former); before != nullptr && before != job)
        before->ReleaseWorker(*verdict.former);
      serving_.erase(*verdict.former);
    }
    if (job != nullptr) {
      jobs.push_back(job);
      serving_.insert_or_assign(verdict.task, Serving{job->uid(), std::nullopt});
      job->AdmitWorker(verdict.task, verdict.identity, entry->backoff_until, verdict.former,
                       former_died, hello, registered);
      job->Withhold(verdict.task);
      if (contest) job->Warn(*contest);
    }
  } else {
    jobs = ActiveJobs();
    for (Job* job : jobs) {
      v1::Registered more;
      v1::Registered* const to = job == jobs.front() ? registered : &more;
      if (absl::Status status = job->AdmitServer(verdict.task, verdict.identity, verdict.former,
                                                 former_died, hello, to);
          !status.ok()) {
        return Reject(number, "malformed", status.message(), false, options_.membership.lease);
      }
      if (more.has_job()) *others.emplace_back().mutable_job() = std::move(*more.mutable_job());
      if (more.has_map()) *others.emplace_back().mutable_map() = std::move(*more.mutable_map());
    }
  }
  parts_.logger->Info(absl::StrCat(
      "registered: task=", RoleName(said.role), "/", verdict.identity, " registration=",
      term_.value(), ".", verdict.task.value(), " pid=", said.pid, " host=", said.host,
      said.role == Role::kPsServer ? absl::StrCat(" endpoint=", hello.endpoint().address(),
                                                  " shards_held=", hello.shards_size())
                                   : absl::StrCat(" attempts_held=", hello.attempts_size(),
                                                  " adopted=", registered->adopted_size()),
      " backoff_ms=",
      std::max<std::int64_t>(
          0, std::chrono::duration_cast<std::chrono::milliseconds>(entry->backoff_until - now)
                 .count())));
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>
      adopted;  // each job numbers its own
  for (const v1::HeldAttempt& a : registered->adopted())
    adopted.insert({a.job_uid(), a.attempt().term(), a.attempt().n()});
  Queue(session, message);
  for (const v1::CoordinatorMessage& other : others) Queue(session, other);

  // What it holds of a job that is not running is nobody's any more; an attempt that was not
  // adopted is superseded.
  std::set<std::uint64_t> ended;
  for (const v1::HeldShard& shard : hello.shards()) {
    if (ActiveJob(JobUid(shard.job_uid())) != nullptr) continue;
    ended.insert(shard.job_uid());
    v1::CoordinatorMessage drop;
    drop.mutable_drop()->set_job_uid(shard.job_uid());
    drop.mutable_drop()->set_shard(shard.shard());
    *drop.mutable_drop()->mutable_epoch() = shard.epoch();
    Queue(session, drop);
  }
  for (const v1::HeldAttempt& held : hello.attempts()) {
    if (ActiveJob(JobUid(held.job_uid())) == nullptr) ended.insert(held.job_uid());
    if (adopted.count({held.job_uid(), held.attempt().term(), held.attempt().n()}) != 0) continue;
    v1::CoordinatorMessage answer;
    answer.mutable_done_answer()->set_job_uid(held.job_uid());
    answer.mutable_done_answer()->set_closure(held.closure());
    *answer.mutable_done_answer()->mutable_attempt() = held.attempt();
    answer.mutable_done_answer()->set_superseded(true);
    Queue(session, answer);
  }
  for (const std::uint64_t uid : ended) {
    v1::CoordinatorMessage over;
    over.mutable_job_ended()->set_job_uid(uid);
    const auto known = jobs_.find(JobUid(uid));
    over.mutable_job_ended()->set_state(
        known == jobs_.end() ? "UNKNOWN" : std::string(JobStateName(known->second->state())));
    Queue(session, over);
  }
  if (contest) parts_.logger->Warning(*contest);
  for (Job* job : jobs) job->Ready(verdict.task);
  CheckDrained(verdict.task);
}

void ControlPlane::SayRefused(const TaskHello& said, const RegisterVerdict& verdict) {
  if (!verdict.too_often) {
    if (verdict.kind == "limit") tasks_limit_.refused.Add();
    parts_.logger->Info(absl::StrCat("registration refused: role=", RoleName(said.role),
                                     " identity=", said.identity, " pid=", said.pid,
                                     " kind=", verdict.kind, " reason=", verdict.message));
    return;
  }
  // Whoever asks too often must not fill the log, either.
  registrations_limit_.refused.Add();
  ++too_often_;
  const MonoTime now = Now();
  if (too_often_said_ && now - *too_often_said_ < kTooOftenSaidEvery) return;
  too_often_said_ = now;
  parts_.logger->Warning(absl::StrCat(
      "registrations are refused for a while: refused_since_last_said=",
      std::exchange(too_often_, 0), " newest=", RoleName(said.role), "/", said.identity,
      " pid=", said.pid, " host=", client::CleanText(said.host, 256), " reason=", verdict.message));
}

absl::Status ControlPlane::OnTaskMessage(Session& session, const v1::TaskMessage& message) {
  const TaskId task = session.task;
  std::optional<std::uint64_t> named;  // the job that the message is of
  switch (message.message_case()) {
    case v1::TaskMessage::kHello:
      return absl::InvalidArgumentError("a second Hello in one session");
    case v1::TaskMessage::kHeartbeat: {
      if (const auto facts = facts_.find(task); facts != facts_.end()) {
        if (message.heartbeat().has_worker()) {
          facts->second.worker = message.heartbeat().worker();
          facts->second.worker.clear_steps_log();
          facts->second.worker.clear_device();  // the job has it
          facts->second.worker.set_state(
              client::CleanText(message.heartbeat().worker().state(), 64));
          facts->second.worker.set_waiting_for(
              client::CleanText(message.heartbeat().worker().waiting_for(), kTextBytesMax));
        }
        if (message.heartbeat().has_server()) facts->second.server = message.heartbeat().server();
      }
      break;
    }
    case v1::TaskMessage::kLeaving: {
      const v1::Leaving& leaving = message.leaving();
      membership_.Leaving(Now(), task, client::CleanText(leaving.reason(), 200));
      TaskFacts& facts = facts_[task];
      facts.leaving = leaving.reason().substr(0, 200);
      facts.drains |= leaving.drains() && session.role == Role::kPsServer;
      if (session.role == Role::kWorker) {
        if (Job* job = JobOf(task)) job->OnLeaving(task, facts.leaving, false);
      } else {
        const std::vector<Job*> jobs = ActiveJobs();
        for (Job* job : jobs) job->OnLeaving(task, facts.leaving, facts.drains);
        CheckDrained(task);
      }
      return absl::OkStatus();
    }
    case v1::TaskMessage::kLogLines: OnLogLines(task, message.log_lines()); return absl::OkStatus();
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
        return absl::InvalidArgumentError("a file of an export from a task that is no worker");
      named = message.run_file().job_uid();
      break;
    case v1::TaskMessage::kShardReport: break;
    case v1::TaskMessage::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("an empty or unknown message");
  }
  // What names no job is of all that the task is of. A worker has nothing to say of a job that it
  // does not serve.
  absl::InlinedVector<Job*, 8> to;
  if (session.role == Role::kPsServer && !named) {
    for (Job* job : ActiveJobs()) to.push_back(job);
  } else if (Job* job = session.role == Role::kWorker ? JobOf(task) : ActiveJob(JobUid(*named));
             job != nullptr && job->uid().value() == named.value_or(job->uid().value())) {
    to.push_back(job);
  }
  for (Job* job : to) {
    const absl::Status status = job->OnMessage(task, message);
    // At the end of the queue: batches that have come by then are of the same turn.
    if (job->turn_open() && !std::exchange(turn_posted_, true))
      parts_.control->Post([this] { EndTurn(); });
    if (!status.ok()) return status;
  }
  if (!to.empty() || !named) return absl::OkStatus();
  if (message.has_done()) {
    v1::CoordinatorMessage answer;
    answer.mutable_done_answer()->set_job_uid(*named);
    answer.mutable_done_answer()->set_closure(message.done().closure());
    *answer.mutable_done_answer()->mutable_attempt() = message.done().attempt();
    answer.mutable_done_answer()->set_superseded(true);
    Queue(session, answer);
  } else if (message.has_assigned() && message.assigned().ok()) {
    v1::CoordinatorMessage drop;
    drop.mutable_drop()->set_job_uid(*named);
    drop.mutable_drop()->set_shard(message.assigned().shard());
    *drop.mutable_drop()->mutable_epoch() = message.assigned().epoch();
    Queue(session, drop);
  }
  return absl::OkStatus();
}

void ControlPlane::EndTurn() {
  turn_posted_ = false;
  if (stopped_) return;
  for (const auto& [uid, job] : jobs_) job->EndTurn();
}

// ---------------------------------------------------------------- the way down

void ControlPlane::Queue(Session& session, const v1::CoordinatorMessage& message) {
  if (session.out.size() + message.ByteSizeLong() + 16 > kBatchBytesMax) Flush(session.number);
  AppendField(v1::CoordinatorBatch::kMessagesFieldNumber, message, &session.out);
  if (session.flush_posted) return;
  session.flush_posted = true;
  parts_.control->Post([this, number = session.number] { Flush(number); });
}

void ControlPlane::Flush(std::uint64_t number) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  session.flush_posted = false;
  if (session.out.empty()) return;
  std::string bytes = std::exchange(session.out, std::string());
  const std::uint64_t size = bytes.size();
  const bool admitted = gate_.Admit(size, [this, number, bytes = std::move(bytes)]() mutable {
    SendBytes(number, std::move(bytes));
  });
  if (admitted) return;
  gate_limit_.refused.Add();
  parts_.control->Post([this, number] { CloseSession(number); });
}

void ControlPlane::SendBytes(std::uint64_t number, std::string bytes) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  const Session& session = found->second;
  const std::size_t size = bytes.size();
  const absl::Status status = session.stream->Send(std::move(bytes));
  if (status.ok()) return;
  parts_.logger->Warning(absl::StrCat(
      "a session ends, what it was to be told could not be sent: task=",
      session.identity.empty() ? session.peer.address
                               : absl::StrCat(RoleName(session.role), "/", session.identity),
      " bytes=", size, " reason=", status.message()));
  // A task that does not read, or whose stream has just ended: what was not sent is reconciled when
  // it registers again. Not at once: the caller is in the middle of using the session.
  parts_.control->Post([this, number] { CloseSession(number); });
}

void ControlPlane::Reject(std::uint64_t number, absl::string_view kind, absl::string_view message,
                          bool exit, std::chrono::milliseconds retry_after,
                          const std::optional<RegisterVerdict::Holder>& holder) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
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
  if (gate_.IsOpen()) {
    Queue(found->second, rejection);
    Flush(number);
  } else {
    // What waits for the store is reconciled in its next session; the refusal itself depends on
    // nothing.
    v1::CoordinatorBatch batch;
    *batch.add_messages() = std::move(rejection);
    SendBytes(number, batch.SerializeAsString());
  }
  CloseSession(number);
}

void ControlPlane::CloseSession(std::uint64_t number) {
  auto node = sessions_.extract(number);
  if (node.empty()) return;
  Session& session = node.mapped();
  open_sessions_.fetch_sub(1);
  session.stream->Close();
  std::erase(pending_, number);
  if (session.stage != Session::Stage::kRegistered) return;
  session_of_.erase(session.task);
  for (auto& [request, read] : log_reads_) read.waiting.erase(session.task);
  if (!stopped_) Apply(membership_.StreamClosed(Now(), session.task));
}

}  // namespace evergrad::coordinator
