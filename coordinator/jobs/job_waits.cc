#include "coordinator/jobs/job_waits.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace evergrad::coordinator {

std::string JobWaits::Text() const {
  const JobPhases& phases = *parts_.phases;
  if (!phases.active()) return "";
  if (std::string store = host_->WaitingForStore(); !store.empty()) return store;
  if (phases.closing()) return WhileClosing();
  if (phases.window_open()) return "tasks to register again";
  std::string workers = ForWorkers();
  const std::string servers = phases.In(JobPhase::kDescribing) ? "" : parts_.placer->WaitingFor();
  if (!workers.empty() && !servers.empty()) return absl::StrCat(workers, "; ", servers);
  if (!workers.empty()) return workers;
  return servers.empty() ? ForProgress() : servers;
}

std::string JobWaits::WhileClosing() const {
  if (parts_.phases->In(JobPhase::kSealing)) return parts_.seal->WaitingFor();
  if (parts_.phases->In(JobPhase::kSealedSaving)) return parts_.rounds->WaitingFor();
  if (parts_.phases->In(JobPhase::kSealedExporting))
    return "a worker to write the weights of the failed job";
  return "";
}

std::string JobWaits::ForWorkers() const {
  const bool training = parts_.phases->In(JobPhase::kTraining);
  if (!training && parts_.phases->ReadingKind() == v1::WORK_KIND_UNSPECIFIED) return "";
  const ClosureSource& source = **parts_.source;
  if (training && !(book_ && book_->RepairsPending())) {
    if (const std::optional<std::string> idle = source.IdleText()) return *idle;
  }
  const std::string workers = parts_.roster->WaitingFor();
  return workers.empty() && training
             ? source.WaitingForWorker(parts_.roster->workers(), host_->Now())
             : workers;
}

std::string JobWaits::ForProgress() const {
  if (parts_.phases->In(JobPhase::kSaving)) return parts_.rounds->WaitingFor();
  if (parts_.phases->In(JobPhase::kReporting)) return parts_.report->WaitingFor();
  if (parts_.phases->In(JobPhase::kExporting)) {
    if (std::string space = parts_.exports->WaitingFor(); !space.empty()) return space;
  }
  for (const std::string& what : {parts_.reach->WaitingFor(), parts_.roster->WaitingForPauses(),
                                  parts_.reach->WaitingForAnswers()}) {
    if (!what.empty()) return what;
  }
  return "";
}

bool JobWaits::TrainingPaused() const {
  return parts_.phases->In(JobPhase::kTraining) && book_ &&
         (book_->RepairsPending() || !Text().empty());
}

}  // namespace evergrad::coordinator
