#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

// Lists the coordinator first, then servers, then workers. Gone tasks stay in the list until newer
// ones displace them.
template <>
void ControlPlane::Serve(const v1::ListTasksRequest&, Responder responder) {
  v1::ListTasksResponse response;
  FillOwnRow(response.add_tasks());
  for (const TaskEntry* entry : membership_.List()) {
    v1::TaskRow* row = response.add_tasks();
    row->set_role(client::ToProto(entry->role));
    row->set_identity(entry->identity);
    row->mutable_registration()->set_term(term_.value());
    row->mutable_registration()->set_n(entry->id.value());
    row->set_state(std::string(TaskStateName(entry->state)));
    row->set_reason(entry->reason);
    row->set_pid(entry->pid);
    row->set_host(entry->host);
    row->set_registrations(entry->registrations);
    row->set_process_uid(entry->process_uid);
    const auto found = facts_.find(entry->id);
    if (found == facts_.end()) continue;
    const TaskFacts& facts = found->second;
    row->set_since_ms(facts.since_ms);
    row->set_address(facts.hello.endpoint().address());
    row->set_metrics_address(facts.hello.metrics_address());
    row->set_insecure_listen(facts.hello.insecure_listen());
    row->set_build_id(facts.hello.build_id());
    row->set_started_ms(facts.hello.started_ms());
    if (entry->state == TaskState::kGone) {
      // The last report of the task is outdated.
      row->set_activity("gone");
    } else if (entry->role == Role::kWorker) {
      FillWorkerRow(*entry, facts.worker, row);
    } else {
      FillServerRow(*entry, facts.server, row);
    }
  }
  AnswerWith(*responder, response);
}

void ControlPlane::FillOwnRow(v1::TaskRow* row) const {
  row->set_role(v1::ROLE_COORDINATOR);
  row->set_identity("0");
  row->mutable_registration()->set_term(term_.value());
  row->set_state("alive");
  row->set_since_ms(started_ms_);
  row->set_pid(options_.pid);
  row->set_host(options_.host);
  row->set_address(address_);
  row->set_metrics_address(metrics_address_);
  row->set_registrations(1);
  row->set_insecure_listen(options_.insecure_listen);
  row->set_build_id(options_.build_id);
  row->set_started_ms(started_ms_);
  row->set_process_uid(life_id_);
  std::string running;
  for (const Job* job : jobs_.Running())
    absl::StrAppend(&running, running.empty() ? "" : ", ", job->name());
  row->set_activity(!term_known_      ? "collects registrations"
                    : running.empty() ? "idle"
                                      : absl::StrCat("runs job ", running));
}

void ControlPlane::FillWorkerRow(const TaskEntry& entry, const v1::WorkerProgress& worker,
                                 v1::TaskRow* row) const {
  const MonoTime now = Now();
  row->set_steps(worker.steps());
  row->set_bytes(worker.bytes_sent() + worker.bytes_received());
  std::string activity = worker.state().empty() ? "idle" : worker.state();
  if (!worker.waiting_for().empty())
    absl::StrAppend(&activity, ", waits for ", worker.waiting_for());
  if (entry.backoff_until > now) {
    activity = absl::StrCat(
        "backs off for ",
        std::chrono::duration_cast<std::chrono::milliseconds>(entry.backoff_until - now).count(),
        " ms after ", entry.flaps, " short lives");
  }
  if (const Job* job = JobOf(entry.id)) {
    if (const auto left = job->BacksOffFor(entry.id);
        now + left > entry.backoff_until && left.count() > 0)
      activity = absl::StrCat("backs off for ", left.count(),
                              " ms: it died repeatedly while it held work of this job");
    row->add_jobs()->set_name(job->name());
    row->mutable_jobs(0)->set_job_uid(job->uid().value());
  }
  row->set_activity(activity);
}

void ControlPlane::FillServerRow(const TaskEntry& entry, const v1::ServerProgress& server,
                                 v1::TaskRow* row) const {
  row->set_steps(server.updates_applied());
  row->set_shards(server.shards());
  row->set_bytes(server.bytes());
  for (const v1::JobUsage& use : server.jobs()) {
    if (use.shards() == 0) continue;
    const Job* const job = jobs_.Get(JobUid(use.job_uid()));
    v1::TaskJob* of = row->add_jobs();
    of->set_name(job == nullptr ? JobUidString(JobUid(use.job_uid())) : job->name());
    of->set_job_uid(use.job_uid());
    of->set_shards(use.shards());
    of->set_bytes(use.bytes());
  }
  row->set_activity(!entry.session_open   ? "disconnected, may reconnect"
                    : server.shards() > 0 ? "serves"
                                          : "idle");
}

}  // namespace evergrad::coordinator
