// A Hello becomes a registered task, or is refused, in these steps:
//
//   identify    membership accepts or refuses the task that the certificate and the Hello name
//   fence       the former session of its identity ends
//   enter       the session and the task enter the tables
//   reconcile   the task's shards or attempts are compared with those of the jobs
//   welcome     Registered is sent, then the end of obsolete shards and attempts; then jobs may use
//   it
#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/task_identity.h"
#include "coordinator/service/control_plane.h"
#include "coordinator/service/task_answers.h"

namespace evergrad::coordinator {
namespace {

constexpr std::chrono::seconds kTooOftenSaidEvery{10};

}  // namespace

struct ControlPlane::Registration {
  Session& session;
  const MonoTime now;
  v1::Hello hello;
  TaskHello said = {};  // the Hello in the form of membership
  RegisterVerdict verdict = {};
  bool former_died = false;
  std::optional<std::string> contest = {};  // set if two processes replace each other
  v1::CoordinatorMessage message = {};      // Registered
  // Messages with the job and the map of each job after the first one, which Registered carries.
  std::vector<v1::CoordinatorMessage> others = {};
  std::vector<Job*> jobs = {};  // one job for a worker, all jobs for a server
  v1::Registered* registered() { return message.mutable_registered(); }
};

void ControlPlane::Register(std::uint64_t number) {
  Session* const session = sessions_.Find(number);
  if (session == nullptr || session->stage != Session::Stage::kPending) return;
  Registration one{*session, Now(), std::move(session->hello)};
  session->hello.Clear();
  if (!Identify(one)) return;
  Fence(one);
  Enter(one);
  if (Reconcile(one)) Welcome(one);
}

bool ControlPlane::Identify(Registration& one) {
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
  const std::string claimed =
      absl::StrCat(RoleName(said.role), said.identity.empty() ? "" : "/", said.identity);
  if (absl::Status status = transport::CheckPeer(peer, claimed); !status.ok()) {
    parts_.logger->Warning(
        absl::StrCat("registration refused: peer=", peer.address, " reason=", status.message()));
    Reject(one.session.number, "certificate", status.message(), /*exit=*/true,
           options_.membership.lease);
    return false;
  }
  if (!CheckEndpoint(one, claimed)) return false;
  said.process_uid = hello.process_uid();
  said.pid = hello.pid();
  said.host = client::CleanText(hello.host(), client::kHostBytesMax);
  said.lifeline = hello.lifeline();
  said.ended_process = hello.ended_process();
  // A task that is named by its certificate cannot take another name.
  said.numbered = hello.numbered() && slash == std::string::npos;
  one.verdict = membership_.Register(one.now, said);
  const RegisterVerdict& verdict = one.verdict;
  if (!verdict.accepted) {
    SayRefused(said, verdict);
    Reject(one.session.number, verdict.kind, verdict.message, verdict.exit, verdict.retry_after,
           verdict.holder);
    return false;
  }
  metrics_.registered.Add();
  one.former_died = verdict.former && !verdict.former_same_process && !verdict.former_was_gone &&
                    !verdict.former_leaving && !verdict.former_numbered;
  return true;
}

// A server on another host must not tell workers to connect to a loopback address.
bool ControlPlane::CheckEndpoint(const Registration& one, const std::string& claimed) {
  const std::string& peer = one.session.peer.address;
  const std::string& endpoint = one.hello.endpoint().address();
  if (one.session.role != Role::kPsServer || !options_.unreachable_endpoint ||
      !options_.unreachable_endpoint(peer, endpoint))
    return true;
  parts_.logger->Warning(absl::StrCat(
      "registration refused: peer=", peer, " task=", claimed,
      " reason=the server is on another host and advertises a loopback address, address=",
      client::CleanText(endpoint, 128)));
  Reject(one.session.number, "endpoint",
         absl::StrCat("this server tells workers to connect to ", endpoint,
                      ", which works only on its own host, and the coordinator is on another host: "
                      "give it --listen or --advertise with an address that workers can reach"),
         /*exit=*/true, options_.membership.lease);
  return false;
}

void ControlPlane::Fence(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  const TaskHello& said = one.said;
  if (verdict.former) {
    if (const Session* old = sessions_.Of(*verdict.former)) {
      const std::uint64_t old_number = old->number;
      const bool exit =
          !verdict.former_same_process && said.role == Role::kWorker && !verdict.former_numbered;
      if (exit) {
        const v1::Hello& older = facts_[*verdict.former].hello;
        one.contest = contest_.OnReplaced(one.now, absl::StrCat("worker/", verdict.identity),
                                          {client::CleanText(older.host(), 256), older.pid()},
                                          {client::CleanText(said.host, 256), said.pid});
      }
      // This call may change the table of sessions, but never the session that registers.
      Reject(old_number, "replaced",
             absl::StrCat("replaced by a newer registration of ", RoleName(said.role), "/",
                          verdict.identity, ": pid ", said.pid, " on ", said.host),
             exit, std::chrono::milliseconds(0));
    }
    facts_.erase(*verdict.former);
  }
  // [35] With certificates a proof serves only the task that the certificate names.
  for (v1::HeldAttempt& held : *one.hello.mutable_attempts()) {
    if (!transport::CheckPeer(one.session.peer, absl::StrCat("worker/", held.granted_to())).ok())
      held.clear_proof();
  }
}

void ControlPlane::Enter(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  sessions_.Register(one.session, verdict.task, verdict.identity);
  TaskFacts& facts = facts_[verdict.task];
  facts.hello = one.hello;
  facts.hello.clear_shards();
  facts.hello.clear_attempts();
  facts.registered_ms = facts.since_ms = WallMillis();
  if (one.hello.leaving().empty()) return;
  // The task had given notice in a former session.
  facts.leaving = one.hello.leaving().substr(0, 200);
  facts.drains = one.said.role == Role::kPsServer;
  membership_.Leaving(one.now, verdict.task, client::CleanText(facts.leaving, 200));
}

bool ControlPlane::Reconcile(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  v1::Registered* const registered = one.registered();
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
  if (one.said.role == Role::kWorker) {
    AdmitWorker(one);
    return true;
  }
  one.jobs = jobs_.Running();
  for (Job* job : one.jobs) {
    v1::Registered more;
    v1::Registered* const to = job == one.jobs.front() ? registered : &more;
    if (absl::Status status = job->AdmitServer(verdict.task, verdict.identity, verdict.former,
                                               one.former_died, one.hello, to);
        !status.ok()) {
      Reject(one.session.number, "malformed", status.message(), false, options_.membership.lease);
      return false;
    }
    if (more.has_job()) *one.others.emplace_back().mutable_job() = std::move(*more.mutable_job());
    if (more.has_map()) *one.others.emplace_back().mutable_map() = std::move(*more.mutable_map());
  }
  return true;
}

void ControlPlane::AdmitWorker(Registration& one) {
  const RegisterVerdict& verdict = one.verdict;
  Job* const job = JobFor(verdict.task, one.hello, verdict.former);
  if (verdict.former) {
    if (Job* before = JobOf(*verdict.former); before != nullptr && before != job)
      before->ReleaseWorker(*verdict.former);
    division_.Remove(*verdict.former);
  }
  if (job == nullptr) return;
  one.jobs.push_back(job);
  division_.Assign(verdict.task, job->uid());
  job->AdmitWorker(verdict.task, verdict.identity, membership_.Find(verdict.task)->backoff_until,
                   verdict.former, one.former_died, one.hello, one.registered());
  job->Withhold(verdict.task);
  if (one.contest) job->Warn(*one.contest);
}

void ControlPlane::Welcome(Registration& one) {
  const TaskHello& said = one.said;
  const RegisterVerdict& verdict = one.verdict;
  const auto backoff = membership_.Find(verdict.task)->backoff_until - one.now;
  parts_.logger->Info(absl::StrCat(
      "registered: task=", RoleName(said.role), "/", verdict.identity, " registration=",
      term_.value(), ".", verdict.task.value(), " pid=", said.pid, " host=", said.host,
      said.role == Role::kPsServer ? absl::StrCat(" endpoint=", one.hello.endpoint().address(),
                                                  " shards_held=", one.hello.shards_size())
                                   : absl::StrCat(" attempts_held=", one.hello.attempts_size(),
                                                  " adopted=", one.registered()->adopted_size()),
      " backoff_ms=",
      std::max<std::int64_t>(
          0, std::chrono::duration_cast<std::chrono::milliseconds>(backoff).count())));
  sessions_.Queue(one.session, one.message);
  for (const v1::CoordinatorMessage& other : one.others) sessions_.Queue(one.session, other);
  EndHeld(one);
  if (one.contest) parts_.logger->Warning(*one.contest);
  for (Job* job : one.jobs) job->Ready(verdict.task);
  CheckDrained(verdict.task);
}

// Shards of jobs that do not run are dropped, and attempts that were not adopted are superseded.
void ControlPlane::EndHeld(Registration& one) {
  // Includes the job, because each job numbers its own attempts.
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> adopted;
  for (const v1::HeldAttempt& a : one.registered()->adopted())
    adopted.insert({a.job_uid(), a.attempt().term(), a.attempt().n()});
  std::set<std::uint64_t> ended;
  for (const v1::HeldShard& shard : one.hello.shards()) {
    if (jobs_.Running(JobUid(shard.job_uid())) != nullptr) continue;
    ended.insert(shard.job_uid());
    sessions_.Queue(one.session, Drop(shard.job_uid(), shard.shard(), shard.epoch()));
  }
  for (const v1::HeldAttempt& held : one.hello.attempts()) {
    if (jobs_.Running(JobUid(held.job_uid())) == nullptr) ended.insert(held.job_uid());
    if (adopted.contains({held.job_uid(), held.attempt().term(), held.attempt().n()})) continue;
    sessions_.Queue(one.session, Superseded(held.job_uid(), held.closure(), held.attempt()));
  }
  for (const std::uint64_t uid : ended) {
    v1::CoordinatorMessage over;
    over.mutable_job_ended()->set_job_uid(uid);
    const Job* const known = jobs_.Get(JobUid(uid));
    over.mutable_job_ended()->set_state(
        known == nullptr ? "UNKNOWN" : std::string(JobStateName(known->state())));
    sessions_.Queue(one.session, over);
  }
}

void ControlPlane::SayRefused(const TaskHello& said, const RegisterVerdict& verdict) {
  if (!verdict.too_often) {
    if (verdict.kind == "limit") metrics_.tasks.refused.Add();
    parts_.logger->Info(absl::StrCat("registration refused: role=", RoleName(said.role),
                                     " identity=", said.identity, " pid=", said.pid,
                                     " kind=", verdict.kind, " reason=", verdict.message));
    return;
  }
  // A task that registers too often must not fill the log.
  metrics_.registrations.refused.Add();
  ++too_often_;
  const MonoTime now = Now();
  if (too_often_said_ && now - *too_often_said_ < kTooOftenSaidEvery) return;
  too_often_said_ = now;
  parts_.logger->Warning(absl::StrCat(
      "registrations are refused for a while: refused_since_last_said=",
      std::exchange(too_often_, 0), " newest=", RoleName(said.role), "/", said.identity,
      " pid=", said.pid, " host=", client::CleanText(said.host, 256), " reason=", verdict.message));
}

}  // namespace evergrad::coordinator
