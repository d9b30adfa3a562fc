// Writes the folder `model` of a run that has succeeded (coordinator/runs/model_files.h). The
// folder is written when all other state of the job is durable, before the end of the job is
// announced.
//
// Not thread-safe: only the control executor calls it. All I/O goes through the host; large files
// are written on the file thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "coordinator/jobs/job_host.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class ModelTables;

class ModelFolder : private JobPart {
 public:
  explicit ModelFolder(const JobPart& part) : JobPart(part) {}

  // Returns whether the job gets the folder if it succeeds.
  bool IsMade() const;
  // Writes the tables of the job's last checkpoint if they are small, and links weights.npz. Then
  // calls `done` with true if the tables were written; if they were not, an event has the reason.
  void Write(const v1::CheckpointStatus& checkpoint, std::function<void(bool tables)> done);
  // Appends the small files, which describe the model.
  void AppendFiles(bool tables, std::vector<RunFile>* files) const;

 private:
  void StepTables(const std::shared_ptr<ModelTables>& tables);
  void LinkWeights(bool tables);

  std::function<void(bool)> done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
