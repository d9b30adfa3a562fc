#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {

// Lists the coordinator first, then servers, then workers. Tasks that are gone stay in the list
// until newer tasks displace them.
void TaskCalls::Serve(const v1::ListTasksRequest&, const Responder& responder) {
  v1::ListTasksResponse response;
  FillOwnRow(response.add_tasks());
  for (const TaskEntry* entry : parts_.membership->List()) {
    v1::TaskRow* row = response.add_tasks();
    row->set_role(client::ToProto(entry->role));
    row->set_identity(entry->identity);
    row->mutable_registration()->set_term(parts_.life->term.value());
    row->mutable_registration()->set_n(entry->id.value());
    row->set_state(std::string(TaskStateName(entry->state)));
    row->set_reason(entry->reason);
    row->set_pid(entry->pid);
    row->set_host(entry->host);
    row->set_registrations(entry->registrations);
    row->set_process_uid(entry->process_uid);
    const TaskReport* report = parts_.reports->Find(entry->id);
    if (report == nullptr) continue;
    row->set_since_ms(report->since_ms);
    row->set_address(report->hello.endpoint().address());
    row->set_metrics_address(report->hello.metrics_address());
    row->set_insecure_listen(report->hello.insecure_listen());
    row->set_build_id(report->hello.build_id());
    row->set_started_ms(report->hello.started_ms());
    row->set_recommendation(report->recommendation);
    row->set_cordoned(report->hello.cordoned());
    if (entry->state == TaskState::kGone) {
      // The last report of the task is outdated.
      row->set_activity("gone");
    } else if (entry->role == Role::kWorker) {
      FillWorkerRow(*entry, report->worker, row);
    } else {
      FillServerRow(*entry, report->server, row);
    }
  }
  AnswerWith(*responder, response);
}

void TaskCalls::FillOwnRow(v1::TaskRow* row) const {
  row->set_role(v1::ROLE_COORDINATOR);
  row->set_identity("0");
  row->mutable_registration()->set_term(parts_.life->term.value());
  row->set_state("alive");
  row->set_since_ms(parts_.life->started_ms);
  row->set_pid(parts_.options->pid);
  row->set_host(parts_.options->host);
  row->set_address(parts_.life->address);
  row->set_metrics_address(parts_.life->metrics_address);
  row->set_registrations(1);
  row->set_insecure_listen(parts_.options->insecure_listen);
  row->set_build_id(parts_.options->build_id);
  row->set_started_ms(parts_.life->started_ms);
  row->set_process_uid(parts_.life->id);
  if (parts_.options->recommendation) row->set_recommendation(parts_.options->recommendation());
  std::string running;
  for (const Job* job : parts_.jobs->Running())
    absl::StrAppend(&running, running.empty() ? "" : ", ", job->name());
  row->set_activity(!parts_.life->term_known ? "collects registrations"
                    : running.empty()        ? "idle"
                                             : absl::StrCat("runs job ", running));
}

void TaskCalls::FillWorkerRow(const TaskEntry& entry, const v1::WorkerProgress& worker,
                              v1::TaskRow* row) const {
  const MonoTime now = parts_.clock->Now();
  row->set_steps(worker.steps());
  row->set_bytes(worker.bytes_sent() + worker.bytes_received());
  std::string activity = worker.state().empty() ? "idle" : worker.state();
  if (!worker.waiting_for().empty())
    absl::StrAppend(&activity, ", waits for ", worker.waiting_for());
  if (entry.backoff_until > now) {
    activity = absl::StrCat(
        "backs off for ",
        std::chrono::duration_cast<std::chrono::milliseconds>(entry.backoff_until - now).count(),
        " ms, because each of its last ", entry.flaps, " registrations ended soon");
  }
  if (const Job* job = parts_.JobOf(entry.id)) {
    if (const auto left = job->BacksOffFor(entry.id);
        now + left > entry.backoff_until && left.count() > 0)
      activity = absl::StrCat("backs off for ", left.count(),
                              " ms, because it died repeatedly while it held work of this job");
    row->add_jobs()->set_name(job->name());
    row->mutable_jobs(0)->set_job_uid(job->uid().value());
  }
  row->set_activity(activity);
}

void TaskCalls::FillServerRow(const TaskEntry& entry, const v1::ServerProgress& server,
                              v1::TaskRow* row) const {
  row->set_steps(server.updates_applied());
  row->set_shards(server.shards());
  row->set_bytes(server.bytes());
  for (const v1::JobUsage& use : server.jobs()) {
    if (use.shards() == 0) continue;
    const Job* const job = parts_.jobs->Get(JobUid(use.job_uid()));
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
