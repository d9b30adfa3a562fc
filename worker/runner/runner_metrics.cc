#include "worker/runner/runner_metrics.h"

#include <iterator>

#include "common/base/mutex.h"

namespace evergrad::worker {
namespace {

Exchange::Counters ExchangeCounters(metrics::Registry* registry) {
  static constexpr const char* kAnswers[] = {"applied",     "duplicate", "stale",
                                             "superseded",  "refused",   "busy",
                                             "over_budget", "invalid",   "transport"};
  Exchange::Counters counters;
  static_assert(std::size(kAnswers) == std::extent_v<decltype(counters.answers)>);
  for (std::size_t i = 0; i < std::size(kAnswers); ++i)
    counters.answers[i] = &registry->GetCounter("evergrad_worker_push_answers_total",
                                                "Answers of servers to pushes, one per shard",
                                                {{"answer", kAnswers[i]}});
  const auto pulls = [&](const char* answer) {
    return &registry->GetCounter("evergrad_worker_pull_answers_total",
                                 "Answers of servers to pulls, one per shard",
                                 {{"answer", answer}});
  };
  counters.pulls_values = pulls("values");
  counters.pulls_unchanged = pulls("unchanged");
  counters.resends =
      &registry->GetCounter("evergrad_worker_sections_resent_total",
                            "Pushes and pulls of one shard each that were sent again "
                            "after a refusal or a failure");
  return counters;
}

// A step, push or pull of a linear model on one host takes some tenths of a millisecond, and a step
// of a large model some seconds. A push or a wait for a batch of more than a minute is a fault.
// Three bounds in a decade give a quantile within a factor of 2.5.
metrics::Histogram& SecondsOf(metrics::Registry* registry, const char* name, const char* help) {
  return registry->GetHistogram(name, help,
                                {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60});
}

}  // namespace

struct RunnerMetrics::ServedJob {
  Mutex mu;
  metrics::Labels labels ABSL_GUARDED_BY(mu);  // empty without a job
};

RunnerMetrics::RunnerMetrics(metrics::Registry* registry, std::uint64_t step_records_max,
                             std::uint64_t data_bytes_max)
    : attempts(*registry, "evergrad_worker_queued_attempts",
               "Attempts that were granted in advance and have not begun",
               static_cast<double>(AttemptBook::kQueuedMax)),
      step_records(*registry, "evergrad_worker_step_records",
                   "Step records between two heartbeats; at the limit the oldest is dropped",
                   static_cast<double>(step_records_max)),
      data(*registry, "evergrad_worker_data_bytes",
           "Bytes of the largest data source in memory; a source above the limit is refused",
           static_cast<double>(data_bytes_max)),
      steps(registry->GetCounter("evergrad_worker_steps_total", "Training steps computed")),
      examples(
          registry->GetCounter("evergrad_worker_examples_total", "Examples of training steps")),
      done(registry->GetCounter("evergrad_worker_attempts_done_total",
                                "Attempts that succeeded and were reported as Done")),
      dropped(registry->GetCounter("evergrad_worker_attempts_dropped_total",
                                   "Attempts dropped or handed back")),
      failed(registry->GetCounter("evergrad_worker_attempts_failed_total",
                                  "Attempts that failed and were reported as Failed")),
      skips(registry->GetCounter("evergrad_worker_skips_total",
                                 "Updates pushed as SKIP because a value was not finite")),
      loss(registry->GetGauge("evergrad_worker_loss", "Mean loss of the last step")),
      push_seconds(SecondsOf(registry, "evergrad_worker_push_seconds",
                             "Time from handing over the gradients of an update until every server "
                             "has settled them, including retries")),
      pull_seconds(SecondsOf(registry, "evergrad_worker_pull_seconds",
                             "Time from the request of a step's dense values until all of them "
                             "have arrived, including retries")),
      step_seconds(SecondsOf(registry, "evergrad_worker_step_seconds",
                             "Time from the beginning of a step, after its batch and its values "
                             "have arrived, until its gradients are handed over")),
      batch_wait_seconds(SecondsOf(registry, "evergrad_worker_batch_wait_seconds",
                                   "Time for which a step waited for its batch; 0 if the batch had "
                                   "been read ahead")),
      exchange(ExchangeCounters(registry)),
      served_job_(std::make_shared<ServedJob>()) {
  registry->AddCallbackGauges(
      "evergrad_worker_serves_job",
      "1 for the job that the worker serves; no value while it waits for a job",
      [served = served_job_] {
        metrics::Registry::Samples samples;
        MutexLock lock(&served->mu);
        if (!served->labels.empty()) samples.emplace_back(served->labels, 1);
        return samples;
      });
}

void RunnerMetrics::ShowServedJob(const std::string& name, JobUid uid) {
  MutexLock lock(&served_job_->mu);
  served_job_->labels.clear();
  if (!name.empty()) served_job_->labels = {{"job", name}, {"job_uid", JobUidString(uid)}};
}

}  // namespace evergrad::worker
