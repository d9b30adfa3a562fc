#include "coordinator/service/registration.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::seconds kTooOftenSaidEvery{10};

}  // namespace

struct Registrar::Registration {
  Session& session;
  const MonoTime now;
  v1::Hello hello;
  TaskHello said = {};  // the Hello in the form of membership
  RegisterVerdict verdict = {};
  bool former_died = false;
  bool repeats_cordon = false;  // the task must be told its cordon, or the end of it, again
  std::optional<std::string> contest = {};  // set if two processes replace each other
  v1::CoordinatorMessage message = {};      // the message Registered
  // For each job except the first, a message with the job and a message with its map. Registered
  // contains the first job and its map.
  std::vector<v1::CoordinatorMessage> others = {};
  std::vector<Job*> jobs = {};  // one job for a worker, all jobs for a server
  v1::Registered* registered() { return message.mutable_registered(); }
};

void Registrar::Register(std::uint64_t number) {
  Session* const session = parts_.sessions->Find(number);
  if (session == nullptr || session->stage != Session::Stage::kPending) return;
  Registration one{*session, parts_.clock->Now(), std::move(session->hello)};
  session->hello.Clear();
  if (!Identify(one)) return;
  Fence(one);
  Enter(one);
  if (Reconcile(one)) Welcome(one);
}

bool Registrar::CheckCertificate(const Session& session, const v1::Hello& hello) {
  const Role role = hello.role() == v1::ROLE_WORKER ? Role::kWorker : Role::kPsServer;
  const absl::Status status = transport::CheckPeer(
      session.peer,
      absl::StrCat(RoleName(role), hello.identity().empty() ? "" : "/", hello.identity()));
  if (status.ok()) return true;
  parts_.logger->Warning(absl::StrCat("registration refused: peer=", session.peer.address,
                                      " reason=", status.message()));
  ends_->Reject(session.number, "certificate", status.message(), /*exit=*/true,
                parts_.options->membership.lease);
  return false;
}

bool Registrar::Identify(Registration& one) {
  const transport::PeerInfo& peer = one.session.peer;
  const v1::Hello& hello = one.hello;
  TaskHello& said = one.said;
  said.role = one.session.role;
  said.identity = hello.identity();
  // With TLS the certificate identifies the task. A task that names no identity gets the identity
  // of the certificate.
  const std::size_t slash = peer.certificate_task.find('/');
  if (said.identity.empty() && slash != std::string::npos)
    said.identity = peer.certificate_task.substr(slash + 1);
  if (!CheckEndpoint(
          one, absl::StrCat(RoleName(said.role), said.identity.empty() ? "" : "/", said.identity)))
    return false;
  said.process_uid = hello.process_uid();
  said.pid = hello.pid();
  said.host = client::CleanText(hello.host(), client::kHostBytesMax);
  said.lifeline = hello.lifeline();
  said.ended_process = hello.ended_process();
  // A task that is named by its certificate cannot take another name.
  said.numbered = hello.numbered() && slash == std::string::npos;
  one.verdict = parts_.membership->Register(one.now, said);
  const RegisterVerdict& verdict = one.verdict;
  if (!verdict.accepted) {
    SayRefused(said, verdict);
    ends_->Reject(one.session.number, verdict.kind, verdict.message, verdict.exit,
                  verdict.retry_after, verdict.holder);
    return false;
  }
  parts_.metrics->registered.Add();
  one.former_died = verdict.former && !verdict.former_same_process && !verdict.former_was_gone &&
                    !verdict.former_leaving && !verdict.former_numbered;
  return true;
}

// A server on another host must not tell workers to connect to a loopback address.
bool Registrar::CheckEndpoint(const Registration& one, const std::string& claimed) {
  const std::string& peer = one.session.peer.address;
  const std::string& endpoint = one.hello.endpoint().address();
  if (one.session.role != Role::kPsServer || !parts_.options->unreachable_endpoint ||
      !parts_.options->unreachable_endpoint(peer, endpoint))
    return true;
  parts_.logger->Warning(absl::StrCat(
      "registration refused: peer=", peer, " task=", claimed,
      " reason=the server is on another host and advertises a loopback address, address=",
      client::CleanText(endpoint, 128)));
  ends_->Reject(one.session.number, "endpoint",
                absl::StrCat("this server tells workers to connect to ", endpoint,
                             ", an address that works only on the server's own host, but the "
                             "coordinator is on another host: start the server with a --listen or "
                             "--advertise address that workers can reach"),
                /*exit=*/true, parts_.options->membership.lease);
  return false;
}

void Registrar::Fence(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  const TaskHello& said = one.said;
  if (verdict.former) {
    // The message with the cordon, or with its end, may not have arrived. The task then reports
    // another state than the user has been told.
    if (const TaskReport* report = parts_.reports->Find(*verdict.former);
        verdict.former_same_process && report != nullptr &&
        report->hello.cordoned() != one.hello.cordoned()) {
      one.hello.set_cordoned(report->hello.cordoned());
      one.repeats_cordon = true;
    }
    if (const Session* old = parts_.sessions->Of(*verdict.former)) {
      const std::uint64_t old_number = old->number;
      const bool exit =
          !verdict.former_same_process && said.role == Role::kWorker && !verdict.former_numbered;
      if (exit) {
        const TaskReport* report = parts_.reports->Find(*verdict.former);
        const v1::Hello& older = report == nullptr ? v1::Hello::default_instance() : report->hello;
        one.contest = contest_.OnReplaced(one.now, absl::StrCat("worker/", verdict.identity),
                                          {client::CleanText(older.host(), 256), older.pid()},
                                          {client::CleanText(said.host, 256), said.pid});
      }
      // Reject may change the table of sessions, but not the session that registers.
      ends_->Reject(old_number, "replaced",
                    absl::StrCat("replaced by a newer registration of ", RoleName(said.role), "/",
                                 verdict.identity, ": pid ", said.pid, " on ", said.host),
                    exit, std::chrono::milliseconds(0));
    }
    parts_.reports->Remove(*verdict.former);
  }
  // LEDGER line 35: with certificates a proof is valid only for the task that the certificate
  // names.
  for (v1::HeldAttempt& held : *one.hello.mutable_attempts()) {
    if (!transport::CheckPeer(one.session.peer, absl::StrCat("worker/", held.granted_to())).ok())
      held.clear_proof();
  }
}

void Registrar::Enter(Registration& one) {
  const TaskId task = one.verdict.task;
  parts_.sessions->Register(one.session, task, one.verdict.identity);
  parts_.reports->Enter(task, one.hello, parts_.clock->WallMillis());
  if (one.hello.leaving().empty()) return;
  // The task announced in a former session that it leaves.
  const std::string reason = one.hello.leaving().substr(0, 200);
  parts_.reports->SetLeaving(task, reason);
  if (one.said.role == Role::kPsServer) parts_.drains->Begin(task);
  parts_.membership->Leaving(one.now, task, client::CleanText(reason, 200));
}

bool Registrar::Reconcile(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  v1::Registered* const registered = one.registered();
  registered->set_term(parts_.life->term.value());
  registered->set_life_id(parts_.life->id);
  registered->set_journaled(parts_.life->journaled);
  registered->set_local_only(parts_.options->local_only);
  registered->mutable_registration()->set_term(parts_.life->term.value());
  registered->mutable_registration()->set_n(verdict.task.value());
  registered->set_identity(verdict.identity);
  registered->set_lease_ms(static_cast<std::uint32_t>(parts_.options->membership.lease.count()));
  registered->set_heartbeat_ms(std::max<std::uint32_t>(
      1, static_cast<std::uint32_t>(parts_.options->membership.lease.count() / 4)));
  if (one.said.role == Role::kWorker) {
    AdmitWorker(one);
    return true;
  }
  one.jobs = parts_.jobs->Running();
  for (Job* job : one.jobs) {
    v1::Registered more;
    v1::Registered* const to = job == one.jobs.front() ? registered : &more;
    if (absl::Status status = job->AdmitServer(verdict.task, verdict.identity, verdict.former,
                                               one.former_died, one.hello, to);
        !status.ok()) {
      ends_->RejectMalformed(one.session.number, status.message());
      return false;
    }
    for (v1::CoordinatorMessage& other : JobAndMap(std::move(more)))
      one.others.push_back(std::move(other));
  }
  return true;
}

void Registrar::AdmitWorker(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  Job* const job = JobFor(one);
  if (verdict.former) {
    if (Job* before = parts_.JobOf(*verdict.former); before != nullptr && before != job)
      before->ReleaseWorker(*verdict.former);
    parts_.division->Remove(*verdict.former);
  }
  if (job == nullptr) return;
  one.jobs.push_back(job);
  parts_.division->Assign(verdict.task, job->uid());
  job->AdmitWorker(verdict.task, verdict.identity,
                   parts_.membership->Find(verdict.task)->backoff_until, verdict.former,
                   one.former_died, one.hello, one.registered());
  job->Withhold(verdict.task);
  if (one.contest) job->Warn(*one.contest);
}

// A worker that holds attempts continues with the job of these attempts, and a worker that
// registers again continues with its former job. Any other worker serves the job that lacks the
// most workers.
Job* Registrar::JobFor(const Registration& one) const {
  for (const v1::HeldAttempt& held : one.hello.attempts()) {
    if (Job* job = parts_.jobs->Running(JobUid(held.job_uid()))) return job;
  }
  if (one.verdict.former) {
    if (Job* job = parts_.JobOf(*one.verdict.former)) return job;
  }
  return parts_.jobs->Running(parts_.division->JobFor(one.verdict.task));
}

void Registrar::Welcome(Registration& one) {
  const TaskHello& said = one.said;
  const RegisterVerdict& verdict = one.verdict;
  const auto backoff = parts_.membership->Find(verdict.task)->backoff_until - one.now;
  parts_.logger->Info(absl::StrCat(
      "registered: task=", RoleName(said.role), "/", verdict.identity, " registration=",
      parts_.life->term.value(), ".", verdict.task.value(), " pid=", said.pid, " host=", said.host,
      said.role == Role::kPsServer ? absl::StrCat(" endpoint=", one.hello.endpoint().address(),
                                                  " shards_held=", one.hello.shards_size())
                                   : absl::StrCat(" attempts_held=", one.hello.attempts_size(),
                                                  " adopted=", one.registered()->adopted_size()),
      " backoff_ms=",
      std::max<std::int64_t>(
          0, std::chrono::duration_cast<std::chrono::milliseconds>(backoff).count())));
  parts_.sessions->Queue(one.session, one.message);
  for (const v1::CoordinatorMessage& other : one.others) parts_.sessions->Queue(one.session, other);
  if (one.repeats_cordon) {
    v1::CoordinatorMessage message;
    message.mutable_cordon()->set_on(one.hello.cordoned());
    parts_.sessions->Queue(one.session, message);
  }
  EndHeld(one);
  if (one.contest) parts_.logger->Warning(*one.contest);
  for (Job* job : one.jobs) job->Ready(verdict.task);
  parts_.drains->Check(verdict.task);
}

// Tells the task to drop the shards of jobs that do not run, and supersedes attempts that were not
// adopted.
void Registrar::EndHeld(Registration& one) {
  // The pairs of job and attempt, because each job numbers its own attempts.
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> adopted;
  for (const v1::HeldAttempt& a : one.registered()->adopted())
    adopted.insert({a.job_uid(), a.attempt().term(), a.attempt().n()});
  std::set<std::uint64_t> ended;
  for (const v1::HeldShard& shard : one.hello.shards()) {
    if (parts_.jobs->Running(JobUid(shard.job_uid())) != nullptr) continue;
    ended.insert(shard.job_uid());
    parts_.sessions->Queue(one.session, Drop(shard.job_uid(), shard.shard(), shard.epoch()));
  }
  for (const v1::HeldAttempt& held : one.hello.attempts()) {
    if (parts_.jobs->Running(JobUid(held.job_uid())) == nullptr) ended.insert(held.job_uid());
    if (adopted.contains({held.job_uid(), held.attempt().term(), held.attempt().n()})) continue;
    parts_.sessions->Queue(one.session, Superseded(held.job_uid(), held.closure(), held.attempt()));
  }
  for (const std::uint64_t uid : ended) {
    v1::CoordinatorMessage over;
    over.mutable_job_ended()->set_job_uid(uid);
    const Job* const known = parts_.jobs->Get(JobUid(uid));
    over.mutable_job_ended()->set_state(
        known == nullptr ? "UNKNOWN" : std::string(JobStateName(known->state())));
    parts_.sessions->Queue(one.session, over);
  }
}

void Registrar::SayRefused(const TaskHello& said, const RegisterVerdict& verdict) {
  if (!verdict.too_often) {
    if (verdict.kind == "limit") parts_.metrics->tasks.refused.Add();
    parts_.logger->Info(absl::StrCat("registration refused: role=", RoleName(said.role),
                                     " identity=", said.identity, " pid=", said.pid,
                                     " kind=", verdict.kind, " reason=", verdict.message));
    return;
  }
  // The number of log lines about refusals is limited, so a task that registers too often does not
  // fill the log.
  parts_.metrics->registrations.refused.Add();
  ++too_often_;
  const MonoTime now = parts_.clock->Now();
  if (too_often_said_ && now - *too_often_said_ < kTooOftenSaidEvery) return;
  too_often_said_ = now;
  parts_.logger->Warning(absl::StrCat(
      "registrations are refused because of their rate: refused_since_last_line=",
      std::exchange(too_often_, 0), " newest=", RoleName(said.role), "/", said.identity,
      " pid=", said.pid, " host=", client::CleanText(said.host, 256), " reason=", verdict.message));
}

}  // namespace evergrad::coordinator
