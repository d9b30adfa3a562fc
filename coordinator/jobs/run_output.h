// Writes the files of a run: job.yaml when the job begins, metrics.jsonl while it runs, and at its
// end result.json, report.html and the folder `model`.
//
//   lines().Add, AddEvent ─▶ MakeResult: the end line, result.json ─▶ the journal has both ─▶
//   Write: the last lines ─▶ the model ─▶ result.json, report.html ─▶ Hooks::written
//
// The files of the job's end are written only after the journal has that end, so a coordinator that
// restarts in between writes the same files again. Errors of the disk become events; no method
// fails. Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/metrics_file.h"
#include "coordinator/jobs/model_folder.h"
#include "coordinator/jobs/run_result.h"
#include "coordinator/jobs/training_rate.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class RunOutput : private JobPart {
 public:
  struct Hooks {
    std::function<RunFacts()> facts;  // Returns the present facts.
    // Called when all files are written, or an event has reported an error.
    std::function<void()> written;
  };
  RunOutput(const JobPart& part, Hooks hooks);

  MetricsFile& lines() { return lines_; }
  const MetricsFile& lines() const { return lines_; }
  const std::string& result() const { return result_; }  // "" until the job has ended.

  void WriteJobFile();
  // Adds an event to metrics.jsonl. No event follows the end line, because readers of the file stop
  // at that line.
  void AddEvent(const v1::Event& event);
  // Adds the newest sample of `rate` to metrics.jsonl, with the present numbers of steps and
  // closures.
  void AddRate(const TrainingRate& rate, const EpochAccount& epochs);

  // Called when the job ends: adds the end line and makes result.json.
  void MakeResult();
  // Writes the files of the job's end. With `model` they include the folder `model`, if the job
  // makes one.
  void Write(bool model);

  // --- the journal: the fields of MetricsFile, and the result
  void Fill(bool queued, bool ended, v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  void WriteModel(bool model);
  void WriteEnd(bool model, bool tables);

  const Hooks hooks_;
  MetricsFile lines_;
  ModelFolder model_;
  std::string result_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
