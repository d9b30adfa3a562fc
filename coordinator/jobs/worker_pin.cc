#include "coordinator/jobs/worker_pin.h"

#include "absl/strings/str_cat.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

JobWorker* WorkerPin::Choose(JobWorkers& workers, const UnfitWorkers& unfit,
                             const std::function<bool(const JobWorker&)>& usable,
                             const EventSink& event) {
  JobWorker *holder = nullptr, *equal = nullptr;
  for (auto& [task, worker] : workers) {
    const bool same = identity_.empty() || worker.compute == compute_;
    if (worker.identity == identity_ && same) holder = &worker;
    if (equal == nullptr && same && usable(worker)) equal = &worker;
  }
  waits_ = false;
  if (holder != nullptr && (usable(*holder) || !holder->held.empty())) return holder;
  if (equal != nullptr) {
    if (identity_.empty()) {
      compute_ = equal->compute;
    } else if (equal->identity != identity_) {
      event("state",
            absl::StrCat("deterministic: worker/", equal->identity, " takes over from worker/",
                         identity_,
                         ", which cannot work now; their build and settings are the same"));
    }
    identity_ = equal->identity;
    return equal;
  }
  if (identity_.empty()) return nullptr;
  if (!wait_told_) {
    event("warning", absl::StrCat("deterministic: worker/", identity_, " cannot work now (",
                                  WhyNot(holder, unfit),
                                  "), and no other worker has the same build and settings: the job "
                                  "waits for such a worker: ",
                                  compute_));
  }
  waits_ = wait_told_ = true;
  return nullptr;
}

std::string WorkerPin::WhyNot(const JobWorker* holder, const UnfitWorkers& unfit) const {
  if (holder == nullptr) return "it has disconnected, or came back with other settings";
  if (holder->leaving) return "it is leaving";
  if (holder->stuck) return "it makes no progress";
  if (unfit.Of(holder->process) != nullptr) return "it cannot take part in the job";
  return holder->ready ? "it is set aside or backs off for a while" : "it is disconnected";
}

void WorkerPin::Release(const std::string& identity) {
  if (identity_ == identity) identity_.clear();
}

void WorkerPin::Fill(v1::JobSnapshot* snapshot) const {
  snapshot->set_pinned(identity_);
  snapshot->set_pinned_compute(compute_);
}

void WorkerPin::Read(const v1::JobSnapshot& snapshot) {
  identity_ = snapshot.pinned();
  compute_ = snapshot.pinned_compute();
}

}  // namespace evergrad::coordinator
