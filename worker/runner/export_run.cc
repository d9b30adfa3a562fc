#include "worker/runner/export_run.h"

namespace evergrad::worker {
namespace {

constexpr MonoTime kWarnEvery = std::chrono::seconds(60);

}  // namespace

bool WarningInterval::Warn(const Clock* clock) {
  if (clock == nullptr) return true;
  const MonoTime now = clock->Now();
  if (warned_at_ && now - *warned_at_ < kWarnEvery) return false;
  warned_at_ = now;
  return true;
}

void ExportRun::Start() {
  OpenExchange();
  OnExchange();
}

void ExportRun::OnExchange() {
  if (finishing() || exporting_ || !exchange_->PullsDone(1)) return;
  exporting_ = true;
  auto pulled = std::make_shared<std::vector<PulledShard>>(env_.job->cache()->Take());
  Compute(
      [compute = env_.job->compute(), layout = env_.job->layout(), pulled,
       folder = env_.job->runs_folder(), order = env_.job->export_order]() -> absl::StatusOr<Made> {
        EG_RETURN_IF_ERROR(compute->UseLayout(layout));
        compute->Absorb(std::move(*pulled));
        Made made;
        EG_ASSIGN_OR_RETURN(ComputeJob::Exported exported, compute->Export());
        made.exported = std::make_shared<const ComputeJob::Exported>(std::move(exported));
        made.sees_runs_folder = !order.upload() && SeesRunsFolder(folder, order);
        if (!made.sees_runs_folder) return made;
        EG_ASSIGN_OR_RETURN(made.written, WriteExport(folder, made.exported->files));
        return made;
      },
      [this](absl::StatusOr<Made> made) { OnMade(std::move(made)); });
}

void ExportRun::OnMade(absl::StatusOr<Made> made) {
  if (!made.ok()) return env_.owner->Fail(made.status());
  result_.set_host(options_.host);
  if (made->sees_runs_folder) {
    for (const v1::RunFileInfo& file : made->written) {
      result_.add_files(absl::StrCat(env_.job->runs_folder(), "/", file.name()));
      *result_.add_exported() = file;
    }
    return Finish();
  }
  std::vector<Upload::File> files;
  for (const ExportFile& file : made->exported->files) files.push_back({file.name, file.bytes});
  result_.set_uploaded(true);
  exported_ = std::move(made->exported);
  upload_.emplace(std::move(files), client::kRunFileChunkMax, client::kRunFileWindow);
  ReadParts();
}

// The compute executor, which owns the values, reads one part at a time.
void ExportRun::ReadParts() {
  if (upload_->done()) {
    for (const auto& [name, file] : sent_) *result_.add_exported() = file;
    return Finish();
  }
  if (reading_) return;
  const std::optional<Upload::Chunk> next = upload_->Next();
  if (!next) return;
  reading_ = true;
  // The function holds `compute`, which owns the values of the files.
  Compute(
      [compute = env_.job->compute(), exported = exported_, reader = reader_, next = *next] {
        v1::RunFileChunk part;
        reader->Read(exported->files[next.file], next.offset, next.bytes, next.last, &part);
        return part;
      },
      [this, generation = upload_->generation()](v1::RunFileChunk part) {
        reading_ = false;
        if (generation == upload_->generation()) SendPart(std::move(part));
        ReadParts();
      });
}

// Without a session the part is lost, and the file is sent again from its beginning in the next
// session (OnSession).
void ExportRun::SendPart(v1::RunFileChunk part) {
  if (!part.sha256().empty()) {
    v1::RunFileInfo& file = sent_[part.name()];
    file.set_name(part.name());
    file.set_bytes(part.bytes());
    file.set_sha256(part.sha256());
  }
  FillAttempt(work_, &part);
  v1::TaskMessage message;
  *message.mutable_run_file() = std::move(part);
  options_.send(std::move(message));
}

void ExportRun::OnFileAnswer(const v1::RunFileAnswer& answer) {
  if (!upload_ || finishing() || JobUid(answer.job_uid()) != work_.job ||
      client::FromProto<Attempt>(answer.attempt()) != work_.attempt)
    return;
  if (!answer.has_error()) {
    const absl::Status confirmed = upload_->Confirm(answer.name(), answer.written());
    return confirmed.ok() ? ReadParts() : env_.owner->Fail(confirmed);
  }
  const absl::Status error = client::FromErrorDetail(answer.error());
  const bool disk_full = absl::IsResourceExhausted(error);
  const bool warn = !disk_full || options_.disk_full->Warn(env_.clock);
  env_.logger->Write(warn ? log::Level::kWarning : log::Level::kDebug,
                     absl::StrCat("the coordinator refuses a file: name=", answer.name(),
                                  " reason=", error.message()),
                     About());
  if (!disk_full) return env_.owner->Fail(error);
  env_.owner->GiveUp({.reason = "the coordinator's disk has no space for the exported files",
                      .level = warn ? log::Level::kInfo : log::Level::kDebug});
}

void ExportRun::OnSession() {
  if (!upload_ || finishing()) return;
  upload_->Restart();
  ReadParts();
}

}  // namespace evergrad::worker
