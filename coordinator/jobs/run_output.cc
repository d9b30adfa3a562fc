#include "coordinator/jobs/run_output.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "coordinator/jobs/json_lines.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {

RunOutput::RunOutput(const JobPart& part, Hooks hooks)
    : JobPart(part),
      hooks_(std::move(hooks)),
      lines_(host_, id_.runs_folder,
             [this](absl::string_view kind, const std::string& text) { job_.Event(kind, text); }),
      model_(part) {}

void RunOutput::WriteJobFile() {
  std::vector<RunFile> files;
  files.push_back({client::kRunMarkFile, [text = client::RunMark(id_.uid)] { return text; }});
  files.push_back({"job.yaml", [text = id_.yaml] { return text; }});
  std::weak_ptr<bool> alive = alive_;
  host_->WriteFiles(id_.runs_folder, std::move(files), [this, alive](const absl::Status& status) {
    if (!alive.expired() && !status.ok())
      job_.Event("warning", absl::StrCat("cannot write to the runs folder: ", status.message()));
  });
}

void RunOutput::AddEvent(const v1::Event& event) {
  if (!result_.empty()) return;
  lines_.Add(Dump(Json{{"kind", "event"},
                       {"wall_ms", event.wall_ms()},
                       {"event", event.kind()},
                       {"text", event.text()}}),
             false);
}

void RunOutput::AddRate(const TrainingRate& rate, const EpochAccount& epochs) {
  lines_.Add(Dump(Json{{"kind", "rate"},
                       {"seconds", rate.at_seconds()},
                       {"examples_per_second", Real(rate.rate())},
                       {"steps_done", epochs.steps_done()},
                       {"closures_done", epochs.succeeded()}}),
             true);
}

void RunOutput::MakeResult() {
  const RunFacts facts = hooks_.facts();
  lines_.Add(EndLine(facts, lines_.lost()), false);
  result_ = ResultJson(facts, lines_.lost());
}

void RunOutput::Write(bool model) {
  std::weak_ptr<bool> alive = alive_;
  host_->WhenDurable([this, alive, model] {
    if (!alive.expired()) WriteModel(model);
  });
}

void RunOutput::WriteModel(bool model) {
  if (!lines_.Settle([this, model] { WriteModel(model); })) return;
  // The result was made before the last lines were given up, so its count of lost lines is too low.
  if (lines_.gave_up()) result_ = WithLinesLost(result_, lines_.lost());
  if (!model || !model_.IsMade()) return WriteEnd(false, false);
  model_.Write(hooks_.facts().checkpoint, [this](bool tables) { WriteEnd(true, tables); });
}

void RunOutput::WriteEnd(bool model, bool tables) {
  std::vector<RunFile> files;
  if (model) model_.AppendFiles(tables, &files);
  files.push_back({"result.json", [text = result_] { return text; }});
  files.push_back(
      {"report.html", [data = MakeReport(hooks_.facts())] { return RenderReport(data); }});
  std::weak_ptr<bool> alive = alive_;
  host_->WriteFiles(id_.runs_folder, std::move(files), [this, alive](const absl::Status& status) {
    if (alive.expired()) return;
    if (!status.ok())
      job_.Event("warning",
                 absl::StrCat("files of the job could not be written: ", status.message()));
    hooks_.written();
  });
}

void RunOutput::Fill(bool queued, bool ended, v1::JobSnapshot* snapshot) const {
  lines_.Fill(queued, ended, snapshot);
  snapshot->set_result_json(result_);
}

void RunOutput::Read(const v1::JobSnapshot& snapshot) {
  lines_.Read(snapshot);
  result_ = snapshot.result_json();
}

}  // namespace evergrad::coordinator
