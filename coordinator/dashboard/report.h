// report.html: the history of one job as one self-contained page that needs no network and no other
// file. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace evergrad::coordinator {

struct ReportPoint {
  double x = 0, y = 0;
};
struct ReportEpoch {
  std::uint64_t epoch = 0, steps = 0;
  double train_loss = 0, eval_loss = 0;  // NaN if not measured
  // The speed is NaN if the epoch was too short to measure it.
  double seconds = 0, examples_per_second = 0;
  // Metrics of the evaluation except its loss: accuracy, auc.
  std::map<std::string, double> metrics = {};
};
struct ReportTask {
  std::string name;  // "worker/0"
  std::uint64_t steps = 0, bytes = 0;
};
struct ReportShard {
  std::uint32_t shard = 0;
  std::string variable, server;
  std::uint64_t rows = 0, bytes = 0, updates_applied = 0;
};
struct ReportEvent {
  double seconds = 0;  // since the job was submitted
  std::string kind, text;
};
struct ReportData {
  std::string name, job_uid, state, first_cause;
  std::string submitted;                  // wall time, for people
  double seconds = 0;                     // from start to end
  double examples_per_second = 0;         // NaN if the job was too short to measure it
  std::vector<std::string> metric_names;  // metrics that the job asked for, in the order of the job
  std::map<std::string, double> metrics;  // metrics of the final evaluation, its loss included
  std::uint64_t steps = 0, closures_succeeded = 0, closures_failed = 0, closures_cancelled = 0,
                attempts = 0, reruns = 0, deaths = 0, duplicates_refused = 0;
  std::vector<ReportPoint> loss_by_step;  // x: global step
  std::vector<ReportPoint> rate_by_time;  // x: seconds, y: examples/s
  std::vector<ReportEpoch> epochs;
  std::vector<ReportTask> workers, servers;
  std::vector<ReportShard> shards;
  std::vector<ReportEvent> events;
  std::string model_summary, yaml;
};

// Returns the page. All texts are escaped, and the page refers to nothing outside of itself.
std::string RenderReport(const ReportData& data);

}  // namespace evergrad::coordinator
