// Makes the results of an ended job from its facts: result.json, the end line of metrics.jsonl and
// the data of report.html. Pure. The order of the fields of result.json is a part of the file's
// format (README, "The files of a run").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/dashboard/report.h"
#include "coordinator/jobs/closure_totals.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/event_log.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/json_lines.h"
#include "coordinator/jobs/run_times.h"
#include "coordinator/jobs/shard_queries.h"
#include "coordinator/jobs/task_totals.h"
#include "coordinator/jobs/training_rate.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

// The facts of a job. The references are valid only during a call.
struct RunFacts {
  const JobIdentity& id;
  const RunTimes& times;
  bool started = false;          // False if it was cancelled while it was queued.
  std::string state;             // "SUCCEEDED", …
  const v1::ErrorDetail* cause;  // Cause of a failure, or null.
  const EpochAccount& epochs;
  const TrainingRate& rate;
  ClosureCounts closures;
  const TaskTotals& tasks;
  const EventLog& events;
  const v1::Plan* plan;  // Null if the job was never planned.
  const std::string& model_summary;
  const ShardQueries::Answer& shards;
  std::uint64_t shards_rolled_back = 0;
  bool updates_exact = false;
  const v1::CheckpointStatus& checkpoint;
  const std::vector<v1::RunFileInfo>& files;  // The files that were exported and read back.
  Json source = Json::object();               // Sections that the source of the closures adds.
};

// Returns result.json. `lines_lost` is the number of lines that metrics.jsonl lacks because there
// was no space for them.
std::string ResultJson(const RunFacts& facts, std::uint64_t lines_lost);
// Returns `result`, which is the text of result.json, with its number of lost lines replaced. A
// text that is not a result is returned unchanged.
std::string WithLinesLost(const std::string& result, std::uint64_t lines_lost);
std::string EndLine(const RunFacts& facts, std::uint64_t lines_lost);
ReportData MakeReport(const RunFacts& facts);

}  // namespace evergrad::coordinator
