#include "coordinator/service/job_calls.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

void JobCalls::ServeEarly() {
  for (const EarlyCall& call : std::exchange(early_, {})) call.serve();
}

void JobCalls::Stop() {
  waiting_.Clear();  // A dropped call is answered by its destructor.
  for (const EarlyCall& call : std::exchange(early_, {})) call.responder->Answer(StoppingError());
}

// Fills in the status of a job, with the two parts that depend on the other jobs: the number of its
// workers, and the reason for which a queued job waits.
void JobCalls::FillStatus(const Job& job, v1::JobStatus* status, std::uint64_t events_after) const {
  job.FillStatus(status, events_after);
  status->set_workers_serving(parts_.division->workers(job.uid()));
  status->set_worker_seconds(parts_.division->worker_seconds(job.uid()));
  if (job.started()) return;
  const std::optional<std::size_t> before = parts_.jobs->PlaceInQueue(job.uid());
  if (!before) return;
  status->set_waiting_for(
      !parts_.life->serving() ? "tasks to register"
      : !parts_.store_watch->no_new_jobs().ok()
          ? std::string(parts_.store_watch->no_new_jobs().message())
          : absl::StrCat("the end of a running job: ", parts_.jobs->running(), " of ",
                         parts_.options->jobs_running_max, " jobs run (--jobs-running-max)",
                         *before == 0 ? std::string()
                                      : absl::StrCat(", ", *before, " queued before this job")));
}

}  // namespace evergrad::coordinator
