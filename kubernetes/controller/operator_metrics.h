// The metrics of the operator, evergrad_operator_*. The threads of the operator write them.
#pragma once

#include "common/metrics/metrics.h"

namespace evergrad::kubernetes {

struct OperatorMetrics {
  metrics::Registry& registry;  // outlives this object

  metrics::Gauge& objects =
      registry.GetGauge("evergrad_operator_objects", "TrainingJobs in the namespace");
  metrics::Gauge& objects_open = registry.GetGauge(
      "evergrad_operator_objects_open", "TrainingJobs whose job has not ended, or is not made yet");
  metrics::Gauge& objects_invalid =
      registry.GetGauge("evergrad_operator_objects_invalid", "TrainingJobs whose spec was refused");
  metrics::Gauge& objects_failing = registry.GetGauge(
      "evergrad_operator_objects_failing",
      "TrainingJobs whose last change the API server has refused or not answered");
  metrics::Gauge& objects_ignored = registry.GetGauge(
      "evergrad_operator_objects_ignored", "TrainingJobs above the limit of the operator");
  metrics::Gauge& coordinator_reachable =
      registry.GetGauge("evergrad_operator_coordinator_reachable",
                        "1 if the coordinator has answered the newest list of jobs, else 0");
  metrics::Gauge& api_reachable =
      registry.GetGauge("evergrad_operator_api_reachable",
                        "1 if the newest list or watch of the API server has succeeded, else 0");
  metrics::Counter& submissions =
      registry.GetCounter("evergrad_operator_submissions_total", "jobs that were accepted");
  metrics::Counter& refusals = registry.GetCounter(
      "evergrad_operator_refusals_total", "specs that the operator or the coordinator has refused");
  metrics::Counter& cancellations = registry.GetCounter(
      "evergrad_operator_cancellations_total", "jobs cancelled because their object was deleted");
  metrics::Counter& status_writes =
      registry.GetCounter("evergrad_operator_status_writes_total", "changes of a status");
  metrics::Counter& conflicts = registry.GetCounter(
      "evergrad_operator_conflicts_total",
      "changes that the API server refused because the object had changed meanwhile");
  metrics::Counter& api_errors = registry.GetCounter("evergrad_operator_api_errors_total",
                                                     "requests to the API server that failed");
  metrics::Counter& coordinator_errors = registry.GetCounter(
      "evergrad_operator_coordinator_errors_total", "calls to the coordinator that failed");
  metrics::Counter& events =
      registry.GetCounter("evergrad_operator_events_total", "Events created");
  metrics::Counter& lists =
      registry.GetCounter("evergrad_operator_lists_total", "complete lists of the objects");
  metrics::Counter& watches =
      registry.GetCounter("evergrad_operator_watches_total", "watches begun");
  metrics::Counter& unreadable = registry.GetCounter("evergrad_operator_unreadable_total",
                                                     "objects and events that could not be read");
};

}  // namespace evergrad::kubernetes
