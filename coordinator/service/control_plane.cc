#include "coordinator/service/control_plane.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/random/philox.h"
#include "coordinator/service/division_host.h"
#include "coordinator/service/job_host.h"

namespace evergrad::coordinator {
namespace {

ControlOptions WithDerived(ControlOptions options) {
  options.jobs.server_lost_after = options.membership.server_lost_after;
  return options;
}

}  // namespace

// The classes refer to one another, so some get the address of a member that is constructed later.
// The constructors of these classes only store the address; only later calls use the member.
ControlPlane::ControlPlane(ControlOptions options, const Parts& parts)
    : options_(WithDerived(std::move(options))),
      life_{.id = random::EntropyFromOs() | 1, .journaled = parts.store->persistent()},
      store_watch_(parts.store, parts.control, parts.logger),
      gate_(parts.store, options_.gate_bytes_max, [this] { return messages_.CommitTurns(); }),
      files_({parts.control, parts.files, parts.clock, parts.logger, parts.registry},
             options_.file_bytes_max),
      membership_(options_.membership),
      reports_(&membership_),
      metrics_{*parts.registry, options_, membership_.registrations().options().all_burst},
      sessions_({parts.control, parts.logger, &gate_,
                 [this](std::uint64_t number) { ends_.Close(number); },
                 [this] { metrics_.gate.refused.Add(); }}),
      log_reads_({&sessions_, &membership_, parts.logger},
                 {options_.log_lines_max, options_.query_timeout}),
      audit_(std::make_shared<AuditLog>(parts.logger, parts.clock)),
      parts_{parts.control, parts.clock, parts.logger, parts.store,  &options_, &life_,
             &store_watch_, &gate_,      &files_,      &membership_, &reports_, &sessions_,
             &jobs_,        &division_,  &drains_,     &log_reads_,  &metrics_, audit_.get()},
      job_host_(MakeJobHost(parts_, parts.checkpoints == nullptr ? parts.files : parts.checkpoints,
                            parts.failpoints, parts.file_system, &supervisor_)),
      jobs_(options_.jobs_running_max),
      drains_(&jobs_, &sessions_),
      division_host_(MakeDivisionHost(parts_, &supervisor_)),
      division_(division_host_.get(), options_.share_turn),
      supervisor_(parts_,
                  [this] {
                    job_calls_.Check();
                    closure_calls_.Check();
                  }),
      ends_(parts_, [this] { intake_.SessionsClosed(1); }),
      messages_(parts_),
      registrar_(parts_, &ends_),
      admission_(
          parts_, &registrar_, &ends_,
          [this] {
            UpdateReadiness();
            job_calls_.ServeEarly();
            supervisor_.StartNext();
          },
          parts.on_end),
      job_calls_(parts_, job_host_.get(), &supervisor_),
      closure_calls_(parts_),
      task_calls_(parts_),
      run_file_calls_(parts_),
      run_copies_(parts_,
                  {parts.copies == nullptr ? "" : options_.runs_copy, options_.runs_copy_every},
                  parts.copies, parts.copy_files, parts.registry),
      job_gauges_(*parts.registry),
      intake_(parts_, MakeReceiver()) {
  store_watch_.Listen([this] { CheckStore(); });
  if (parts.readiness != nullptr) {
    journal_open_ = parts.readiness->Add("journal", "the jobs of the journal are not read yet");
    window_over_ = parts.readiness->Add("window", "this coordinator does not register tasks yet");
  }
}

TransportIntake::Receiver ControlPlane::MakeReceiver() {
  return {
      .on_session =
          [this](std::uint64_t number, transport::PeerInfo peer,
                 std::shared_ptr<transport::MessageStream> stream) {
            OpenSession(number, std::move(peer), std::move(stream));
          },
      .on_batch = [this](std::uint64_t number,
                         const v1::TaskBatch* batch) { OnBatch(number, batch); },
      .on_overflow =
          [this](std::uint64_t number) {
            ends_.Reject(number, "limit", "too many messages of the task wait to be handled", false,
                         options_.membership.lease);
          },
      .on_end = [this](std::uint64_t number) { ends_.Close(number); },
      .on_call = [this](const ControlCall& call, const Caller& caller, const std::string& request,
                        const Responder& responder) { OnCall(call, caller, request, responder); }};
}

absl::Status ControlPlane::Recover() { return supervisor_.Recover(job_host_.get(), options_.jobs); }

void ControlPlane::Start(std::string advertised_address, std::string metrics_address) {
  life_.address = std::move(advertised_address);
  life_.metrics_address = std::move(metrics_address);
  life_.started_ms = parts_.clock->WallMillis();
  admission_.Start();
  Tick();
}

void ControlPlane::Stop() {
  life_.stopped = true;
  v1::CoordinatorBatch batch;
  batch.add_messages()->mutable_stopping();
  for (const std::uint64_t number : sessions_.Numbers()) {
    sessions_.Flush(number);
    // A draining server must learn that it need not wait for this coordinator.
    if (const Session* session = sessions_.Find(number);
        session->registered() && session->role == Role::kPsServer)
      sessions_.SendBytes(number, batch.SerializeAsString());
  }
  intake_.SessionsClosed(sessions_.size());
  sessions_.RemoveAll();
  job_calls_.Stop();
  log_reads_.Stop();
  closure_calls_.Stop();
}

void ControlPlane::Tick() {
  CheckStore();
  admission_.Tick();
  const MonoTime now = parts_.clock->Now();
  ends_.Apply(membership_.Tick(now));
  for (const std::uint64_t number : sessions_.WithoutHelloSince(now - options_.hello_within))
    ends_.RejectMalformed(number, "the task sent no Hello in time");
  reports_.Tick(parts_.clock->WallMillis());
  for (Job* job : jobs_.Running()) job->Tick();
  division_.Tick(parts_.clock->Now(), !life_.window_open);
  job_calls_.Check();
  closure_calls_.Check();
  log_reads_.Check(parts_.clock->Now());
  run_copies_.Tick();
  audit_->Tick();
  UpdateMetrics();
  UpdateReadiness();
  parts_.control->PostAfter(options_.tick, [this] {
    if (!life_.stopped) Tick();
  });
}

void ControlPlane::UpdateMetrics() {
  metrics_.tasks.current.Set(membership_.living());
  metrics_.registrations.current.Set(membership_.registrations().recent(parts_.clock->Now()));
  metrics_.sessions.current.Set(static_cast<double>(sessions_.size()));
  metrics_.jobs_queued.current.Set(static_cast<double>(jobs_.queued()));
  metrics_.calls.current.Set(intake_.calls());
  files_.UpdateMetrics();
  metrics_.gate.current.Set(static_cast<double>(gate_.bytes()));
  // The limits apply to one job, so the metrics show the highest numbers of all jobs.
  std::uint64_t open = 0, behind = 0;
  for (Job* job : jobs_.Running()) {
    open = std::max(open, job->open_closures());
    behind = std::max(behind, job->closures_behind());
    metrics_.closures_behind.refused.Add(job->TakeWindowRefusals());
  }
  metrics_.closures_open.current.Set(static_cast<double>(open));
  metrics_.closures_behind.current.Set(static_cast<double>(behind));
  std::vector<JobGauges::One> numbers;
  std::uint64_t workers_wanted = 0;
  for (const Job* job : jobs_.Running()) {
    const JobUid uid = job->uid();
    workers_wanted += job->wanted_workers();
    JobGauges::One& of = numbers.emplace_back();
    of.labels = {{"job", job->name()}, {"job_uid", JobUidString(uid)}};
    of.values = {job->share(),
                 static_cast<double>(division_.workers(uid)),
                 division_.worker_seconds(uid),
                 static_cast<double>(job->steps_done()),
                 static_cast<double>(job->open_closures()),
                 job->checkpoint_age_seconds().value_or(std::numeric_limits<double>::quiet_NaN())};
  }
  job_gauges_.Set(std::move(numbers));
  if (jobs_.queued() > 0) workers_wanted = std::max<std::uint64_t>(workers_wanted, 1);
  metrics_.workers_wanted.Set(static_cast<double>(workers_wanted));
  metrics_.jobs_running.current.Set(static_cast<double>(jobs_.running()));
  metrics_.workers_alive.Set(membership_.Count(Role::kWorker, TaskState::kAlive));
  metrics_.servers_alive.Set(membership_.Count(Role::kPsServer, TaskState::kAlive));
  metrics_.term.Set(static_cast<double>(life_.term.value()));
}

void ControlPlane::UpdateReadiness() {
  if (const absl::Status& journal = store_watch_.no_new_jobs(); journal.ok())
    journal_open_.Meet();
  else
    journal_open_.Fail(journal.message());
  if (life_.term_known && !life_.window_open)
    window_over_.Meet();
  else
    window_over_.Fail(absl::StrCat("the tasks of the cluster are registering: window_ms=",
                                   options_.window.count()));
}

void ControlPlane::CheckStore() {
  if (life_.stopped) return;
  supervisor_.CheckStorePlace();
  gate_.Release();
  if (!store_watch_.CheckHealth()) return;
  for (Job* job : jobs_.Running()) job->Tick();
}

void ControlPlane::OpenSession(std::uint64_t number, transport::PeerInfo peer,
                               std::shared_ptr<transport::MessageStream> stream) {
  if (life_.stopped) {
    stream->Close();
    return intake_.SessionsClosed(1);
  }
  Session session;
  session.number = number;
  session.peer = std::move(peer);
  session.stream = std::move(stream);
  session.opened_at = parts_.clock->Now();
  sessions_.Open(std::move(session));
}

void ControlPlane::OnBatch(std::uint64_t number, const v1::TaskBatch* batch) {
  Session* session = sessions_.Find(number);
  if (session == nullptr) return;
  if (batch == nullptr) {
    metrics_.malformed.Add();
    return ends_.RejectMalformed(number, "the bytes of the task are not a batch of messages");
  }
  if (session->registered()) messages_.Heard(*session);
  for (const v1::TaskMessage& message : batch->messages()) {
    session = sessions_.Find(number);
    if (session == nullptr) return;  // one of its messages has ended the session
    metrics_.messages.Add();
    if (absl::Status status = OnMessage(*session, *batch, message); !status.ok()) {
      metrics_.malformed.Add();
      parts_.logger->Warning(absl::StrCat(
          "malformed message refused: peer=", session->peer.address, " task=",
          session->identity.empty() ? "?" : session->Name(), " reason=", status.message()));
      return ends_.RejectMalformed(number, status.message());
    }
  }
}

absl::Status ControlPlane::OnMessage(Session& session, const v1::TaskBatch& batch,
                                     const v1::TaskMessage& message) {
  switch (session.stage) {
    case Session::Stage::kAwaitingHello:
      if (!message.has_hello() || batch.messages_size() != 1)
        return absl::InvalidArgumentError("the first message must be one Hello and nothing else");
      admission_.OnHello(session, message.hello());
      return absl::OkStatus();
    case Session::Stage::kPending:
      return absl::InvalidArgumentError("the task sent a message before it was registered");
    case Session::Stage::kRegistered: break;
  }
  return messages_.OnMessage(session, message);
}

void ControlPlane::OnCall(const ControlCall& call, const Caller& caller, const std::string& request,
                          const Responder& responder) {
  if (life_.stopped) return responder->Answer(StoppingError());
  const std::unique_ptr<ParsedCall> parsed = call.parse(request);
  if (parsed == nullptr) {
    metrics_.malformed.Add();
    return responder->Answer(absl::InvalidArgumentError(
        absl::StrCat("malformed request: method=", call.method, " bytes=", request.size())));
  }
  AuditLog::Entry entry{std::string(call.name()), caller, parsed->NamedTask(), parsed->Detail()};
  absl::Status allowed;
  if (const std::string name = parsed->NamedJob(); !name.empty()) {
    const Job* const job = call.owner_only ? jobs_.Find(name) : nullptr;
    entry.object = job == nullptr ? name : JobText(*job);
    if (job != nullptr) allowed = CheckOwner(caller, *job);
  }
  const Responder audited = Audited(audit_, call, std::move(entry), responder);
  if (!allowed.ok()) return audited->Answer(std::move(allowed));
  const CallHandlers handlers{&job_calls_, &closure_calls_, &task_calls_, &run_file_calls_};
  parsed->Serve(handlers, caller, audited);
}

}  // namespace evergrad::coordinator
