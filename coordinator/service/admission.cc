#include "coordinator/service/admission.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/closures/term_rule.h"
#include "coordinator/service/hello_check.h"

namespace evergrad::coordinator {

void Admission::Start() {
  parts_.life->highest_reported = parts_.store->term().value();
  parts_.life->window_until = parts_.clock->Now() + parts_.options->window;
  if (parts_.options->window.count() == 0) EndWindow();
}

void Admission::Tick() {
  if (parts_.life->window_open && parts_.clock->Now() >= parts_.life->window_until) EndWindow();
}

void Admission::OnHello(Session& session, const v1::Hello& hello) {
  Life& life = *parts_.life;
  const std::uint64_t number = session.number;
  const std::chrono::milliseconds lease = parts_.options->membership.lease;
  if (hello.protocol_version() != client::kProtocolVersion) {
    return ends_->Reject(
        number, "version",
        absl::StrCat("protocol version mismatch: coordinator=", client::kProtocolVersion, " (",
                     parts_.options->build_id, ") task=", hello.protocol_version(), " (",
                     hello.build_id().substr(0, 100), ")"),
        false, lease);
  }
  if (absl::Status status =
          CheckHello(hello, std::max(life.term.value(), parts_.store->term().value()));
      !status.ok()) {
    parts_.metrics->malformed.Add();
    return ends_->RejectMalformed(number, status.message());
  }
  // The terms in a Hello change the life of the coordinator, so the certificate is checked first.
  if (!registrar_->CheckCertificate(session, hello)) return;
  session.stage = Session::Stage::kPending;
  session.role = hello.role() == v1::ROLE_WORKER ? Role::kWorker : Role::kPsServer;
  session.hello = hello;
  ReportedLife task{hello.highest_term(), hello.life_id(), 0};
  for (const v1::HeldShard& shard : hello.shards())
    task.held_term = std::max(task.held_term, shard.epoch().term());
  life.highest_reported = std::max({life.highest_reported, task.highest_term, task.held_term});
  if (life.over)
    return ends_->Reject(number, "lost_journal", "this coordinator is ending", false, lease);
  if (!life.term_known) {
    parts_.sessions->Defer(number);
    return;
  }
  if (RefusesForLostJobs(session, hello)) return;
  if (const auto term = BeginAnewWith(life.term, life.id, parts_.store->term(), task))
    BeginAnew(*term, std::max(task.highest_term, task.held_term));
  if (life.window_open && session.role == Role::kWorker) {
    parts_.sessions->Defer(number);
    return;
  }
  registrar_->Register(number);
}

void Admission::EndWindow() {
  Life& life = *parts_.life;
  if (life.over || (!life.term_known && EndsForLostJobs())) return;
  life.window_open = false;
  if (!life.term_known && !ChooseTerm()) return;
  const std::vector<std::uint64_t> pending = parts_.sessions->TakeDeferred();
  // Servers are registered first, because their shards can be adopted only while a job's window is
  // open. Workers are registered after the jobs' windows are closed. Until then, a shard that is
  // not in the map may get an owner without a new map version.
  const auto role_of = [&](std::uint64_t number) {
    const Session* session = parts_.sessions->Find(number);
    return session == nullptr ? Role::kWorker : session->role;
  };
  for (const std::uint64_t number : pending) {
    if (role_of(number) == Role::kPsServer) registrar_->Register(number);
  }
  for (const auto& [uid, job] : parts_.jobs->all()) job->CloseWindow();
  for (const std::uint64_t number : pending) {
    if (role_of(number) != Role::kPsServer) registrar_->Register(number);
  }
  on_window_closed_();
}

bool Admission::ChooseTerm() {
  Life& life = *parts_.life;
  const Term term = FirstTerm(parts_.store->term(), life.highest_reported);
  if (life.journaled && life.highest_reported > parts_.store->term().value()) {
    parts_.logger->Error(
        absl::StrCat("the tasks were registered with another journal before, or this journal has "
                     "lost its newest entries: journal_term=",
                     parts_.store->term().value(), " tasks_term=", life.highest_reported,
                     "; the tasks drop jobs that this journal does not have (psctl checkpoint list "
                     "RUNS shows the checkpoints from which they can resume)"));
  }
  if (absl::Status status = parts_.store->CommitTerm(term); !status.ok()) {
    parts_.store_watch->Fail(status);
    return false;
  }
  life.term = term;
  life.term_known = true;
  for (const auto& [uid, job] : parts_.jobs->all()) job->Resume(term);
  parts_.logger->Info(absl::StrCat("coordinating: term=", term.value(),
                                   " tasks_waiting=", parts_.sessions->deferred().size()));
  return true;
}

// A task has seen a later life of the coordinator. From here on, all numbers of this process must
// be above the numbers of that life. All tasks register again. As after a start, nothing is granted
// before that.
void Admission::BeginAnew(Term term, std::uint64_t reported) {
  Life& life = *parts_.life;
  if (absl::Status status = parts_.store->CommitTerm(term); !status.ok()) {
    parts_.store_watch->Fail(status);
    return;
  }
  parts_.logger->Warning(
      absl::StrCat("a task has seen a later term of the coordinator: term=", life.term.value(),
                   " reported=", reported, " new_term=", term.value()));
  life.term = term;
  life.window_open = true;
  life.window_until = parts_.clock->Now() + parts_.options->window;
  for (Job* job : parts_.jobs->Running()) job->BeginAnew(term);
  parts_.division->RemoveAll();
  for (const std::uint64_t number : parts_.sessions->RegisteredNumbers())
    ends_->Reject(number, "not_active", "the coordinator has begun a new term: register again",
                  false, std::chrono::milliseconds(0));
}

}  // namespace evergrad::coordinator
