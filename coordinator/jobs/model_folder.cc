#include "coordinator/jobs/model_folder.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fs/file.h"
#include "common/fs/link.h"
#include "coordinator/jobs/job_kind.h"
#include "coordinator/runs/model_files.h"
#include "coordinator/runs/model_tables.h"

namespace evergrad::coordinator {

bool ModelFolder::IsMade() const {
  return JobKind::Of(id_.spec).exports_model() && plan_ && !id_.spec.model.losses.empty();
}

void ModelFolder::Write(const v1::CheckpointStatus& checkpoint,
                        std::function<void(bool tables)> done) {
  done_ = std::move(done);
  if (plan_message_.tables_size() == 0 || !checkpoint.complete()) return LinkWeights(false);
  StepTables(std::make_shared<ModelTables>(checkpoint.uri(),
                                           absl::StrCat(id_.runs_folder, "/model/tables.npz")));
}

// `tables` is shared with the checkpoint thread, which alone uses it until its step has ended.
void ModelFolder::StepTables(const std::shared_ptr<ModelTables>& tables) {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnCheckpointThread([this, alive, disk, tables]() -> std::function<void()> {
    const bool over = tables->Step(*disk);
    return [this, alive, tables, over] {
      if (alive.expired()) return;
      if (!over) return StepTables(tables);
      if (!tables->status().ok())
        job_.Event("state",
                   absl::StrCat("model/tables.npz is not written: ", tables->status().message()));
      LinkWeights(tables->status().ok());
    };
  });
}

// Links weights.npz into the folder `model`, which is then complete. On a file system without
// links, weights.npz is only in the parent folder.
void ModelFolder::LinkWeights(bool tables) {
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, tables, folder = id_.runs_folder]() -> std::function<void()> {
    const std::string weights = absl::StrCat(folder, "/weights.npz"),
                      model = absl::StrCat(folder, "/model");
    if (fs::Exists(weights) && fs::MakeDirectories(model).ok())
      (void)fs::LinkFile(weights, absl::StrCat(model, "/weights.npz"));
    return [this, alive, tables] {
      if (!alive.expired()) done_(tables);
    };
  });
}

void ModelFolder::AppendFiles(bool tables, std::vector<RunFile>* files) const {
  files->push_back(
      {"model/model.json", [text = ModelJson(id_.spec, plan_message_)] { return text; }});
  files->push_back({"model/load.py", [] { return LoadPy(); }});
  files->push_back(
      {"model/README.md",
       [text = ModelReadme(id_.spec, plan_message_.tables_size() > 0, tables)] { return text; }});
}

}  // namespace evergrad::coordinator
