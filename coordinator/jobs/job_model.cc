// The folder `model` of a run that has succeeded: written when everything else of the job is
// durable, before its end is told.
#include "absl/strings/str_cat.h"
#include "common/fs/file.h"
#include "common/fs/link.h"
#include "coordinator/jobs/job.h"
#include "coordinator/runs/model_files.h"
#include "coordinator/runs/model_tables.h"

namespace evergrad::coordinator {

bool Job::HasModel() const {
  return ending_ == JobState::kSucceeded && kind_.exports_model() && plan_ &&
         !id_.spec.model.losses.empty();
}

// Behind the last lines of metrics.jsonl. The tables, where the last checkpoint has them and they
// are small; then the other files of the end.
void Job::WriteModel() {
  if (!metrics_file_.Settle([this] { WriteModel(); })) return;
  if (metrics_file_.gave_up()) SetLinesLost();
  if (!HasModel()) return WriteEnd(false);
  if (plan_message_.tables_size() == 0 || !rounds_.status().complete()) return LinkModel(false);
  StepModelTables(std::make_shared<ModelTables>(
      rounds_.status().uri(), absl::StrCat(id_.runs_folder, "/model/tables.npz")));
}

// `tables` is shared with the file thread, which alone uses it until its step has ended.
void Job::StepModelTables(std::shared_ptr<ModelTables> tables) {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, disk, tables]() -> std::function<void()> {
    const bool over = tables->Step(*disk);
    return [this, alive, tables, over] {
      if (alive.expired()) return;
      if (!over) return StepModelTables(tables);
      if (!tables->status().ok())
        Event("state",
              absl::StrCat("model/tables.npz is not written: ", tables->status().message()));
      LinkModel(tables->status().ok());
    };
  });
}

// weights.npz is there by a second name, so that the folder is whole by itself; a file system
// without such names has it in the folder above.
void Job::LinkModel(bool tables) {
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, tables, folder = id_.runs_folder]() -> std::function<void()> {
    const std::string weights = absl::StrCat(folder, "/weights.npz"),
                      model = absl::StrCat(folder, "/model");
    if (fs::Exists(weights) && fs::MakeDirectories(model).ok())
      (void)fs::LinkFile(weights, absl::StrCat(model, "/weights.npz"));
    return [this, alive, tables] {
      if (!alive.expired()) WriteEnd(tables);
    };
  });
}

void Job::AddModelFiles(bool tables, std::vector<RunFile>* files) const {
  if (!HasModel()) return;
  files->push_back(
      {"model/model.json", [text = ModelJson(id_.spec, plan_message_)] { return text; }});
  files->push_back({"model/load.py", [] { return LoadPy(); }});
  files->push_back(
      {"model/README.md",
       [text = ModelReadme(id_.spec, plan_message_.tables_size() > 0, tables)] { return text; }});
}

}  // namespace evergrad::coordinator
