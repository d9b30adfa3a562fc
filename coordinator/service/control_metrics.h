// The metrics of the control plane, evergrad_coordinator_*: limits with their fill level and
// refusals, counters, gauges, and the gauges of each running job.
//
// The control executor writes them; scrapes read them on another thread.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "coordinator/service/control_options.h"
#include "coordinator/service/work_times.h"

namespace evergrad::coordinator {

struct ControlMetrics {
  metrics::Registry& registry;    // outlives this object
  const ControlOptions& options;  // outlives this object
  double registrations_max;       // limit of the rate of registrations (RegistrationLimit)

  // --- limits
  metrics::Limit tasks{registry, "evergrad_coordinator_tasks", "living tasks (--tasks-max)",
                       static_cast<double>(options.membership.tasks_max)};
  metrics::Limit registrations{
      registry, "evergrad_coordinator_registrations_recent",
      "recently accepted registrations (a session that ended without a message counts several "
      "times); refused: registrations beyond the rate limit",
      registrations_max};
  metrics::Limit sessions{registry, "evergrad_coordinator_sessions",
                          "open sessions, registered or not", options.membership.tasks_max + 64.0};
  metrics::Limit jobs_queued{registry, "evergrad_coordinator_jobs_queued",
                             "queued jobs (--jobs-queued-max)",
                             static_cast<double>(options.jobs_queued_max)};
  metrics::Limit calls{registry, "evergrad_coordinator_calls", "control calls in progress",
                       static_cast<double>(options.calls_max)};
  metrics::Limit closures_open{registry, "evergrad_coordinator_closures_open",
                               "granted closures that have not ended (--closures-open-max)",
                               static_cast<double>(options.jobs.closures_open_max)};
  metrics::Limit closures_behind{
      registry, "evergrad_coordinator_closures_behind",
      "ended closures with a higher number than the oldest open closure (--closures-behind-max); "
      "refused: times that this limit delayed grants",
      static_cast<double>(options.jobs.closures_behind_max)};
  metrics::Limit gate{registry, "evergrad_coordinator_gate_bytes",
                      "bytes of messages to tasks that wait until the journal is durable",
                      static_cast<double>(options.gate_bytes_max)};
  metrics::Limit jobs_running{registry, "evergrad_coordinator_jobs_running",
                              "running jobs (--jobs-running-max); refused: jobs that had to wait "
                              "for the end of another job",
                              static_cast<double>(options.jobs_running_max)};

  // --- counters
  metrics::Counter& registered =
      registry.GetCounter("evergrad_coordinator_registrations_total", "registrations accepted");
  metrics::Counter& workers_gone =
      registry.GetCounter("evergrad_coordinator_workers_gone_total", "workers declared gone");
  metrics::Counter& servers_lost =
      registry.GetCounter("evergrad_coordinator_servers_lost_total", "servers declared lost");
  metrics::Counter& messages =
      registry.GetCounter("evergrad_coordinator_messages_total", "handled messages of tasks");
  metrics::Counter& malformed = registry.GetCounter("evergrad_coordinator_malformed_total",
                                                    "messages and calls refused as malformed");
  metrics::Counter& foreign = registry.GetCounter(
      "evergrad_coordinator_foreign_messages_total",
      "ignored messages about an attempt or a shard that their sender does not hold");
  metrics::Counter& submitted =
      registry.GetCounter("evergrad_coordinator_jobs_submitted_total", "jobs accepted");
  metrics::Counter& ended =
      registry.GetCounter("evergrad_coordinator_jobs_ended_total", "jobs that ended in any state");

  // --- gauges
  metrics::Gauge& workers_alive =
      registry.GetGauge("evergrad_coordinator_workers_alive", "workers alive");
  metrics::Gauge& workers_wanted = registry.GetGauge(
      "evergrad_coordinator_workers_wanted",
      "number of workers that the running jobs could use: for each job, the number of closures "
      "that "
      "can run at the same time, but no more than the job has left; at least 1 while a job is "
      "queued, 0 without a job");
  metrics::Gauge& servers_alive =
      registry.GetGauge("evergrad_coordinator_servers_alive", "parameter servers alive");
  metrics::Gauge& term = registry.GetGauge("evergrad_coordinator_term_number",
                                           "term: the number of this life of the coordinator");

  // --- histograms
  WorkTimes work_times{registry};
};

// The gauges of each running job. Scrapes may outlive this object.
class JobGauges {
 public:
  struct One {
    metrics::Labels labels;
    // The values in the order of the metrics in control_metrics.cc. NaN means that the job has no
    // such value.
    std::array<double, 6> values{};
  };
  explicit JobGauges(metrics::Registry& registry);
  void Set(std::vector<One> jobs);

 private:
  struct Shared {
    Mutex mu;
    std::vector<One> jobs ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();  // shared with the registry
};

}  // namespace evergrad::coordinator
