// Exports the final weights and vocabularies. If this host can access the coordinator's runs
// folder, the run writes the files there; otherwise it sends them to the coordinator, one part at a
// time.
//
// The compute executor reads the values and writes the files. If the coordinator is out of disk
// space, the run hands the attempt back, and the coordinator grants it again. Every other refusal
// of a part is an error.
#pragma once

#include "worker/runner/attempt_run.h"
#include "worker/runner/upload.h"

namespace evergrad::worker {

// Limits a warning to one per minute, even if several attempts would log it.
class WarningInterval {
 public:
  // Returns whether to warn now. After a true result, the result is false for one minute. Without a
  // clock the result is always true.
  bool Warn(const Clock* clock);

 private:
  std::optional<MonoTime> warned_at_;
};

class ExportRun final : public AttemptRun {
 public:
  struct Options {
    std::function<bool(v1::TaskMessage)> send;  // returns false if there is no session
    std::string host;                      // this host, reported with the files that are written
    WarningInterval* disk_full = nullptr;  // outlives the run
  };
  ExportRun(const Environment& environment, Work work, Options options)
      : AttemptRun(environment, std::move(work)), options_(std::move(options)) {}

  void Start() override;
  void OnSession() override;
  void OnFileAnswer(const v1::RunFileAnswer& answer) override;
  void FillDone(v1::Done* done) override { *done->mutable_export_() = std::move(result_); }

 private:
  struct Made {
    std::shared_ptr<const ComputeJob::Exported> exported;
    bool sees_runs_folder = false;
    std::vector<v1::RunFileInfo> written;  // the files that this worker wrote itself
  };

  // While files are sent, the progress is the number of confirmed MiB.
  std::uint32_t Progressed() const override {
    return upload_ ? static_cast<std::uint32_t>(upload_->confirmed_bytes() >> 20) : 0;
  }
  void OnExchange() override;
  void OnMade(absl::StatusOr<Made> made);
  void ReadParts();
  void SendPart(v1::RunFileChunk part);

  const Options options_;
  bool exporting_ = false, reading_ = false;
  v1::ExportResult result_;
  std::optional<Upload> upload_;                          // set while files are sent
  std::shared_ptr<const ComputeJob::Exported> exported_;  // shared with the compute executor
  // The reader is used on the compute executor.
  const std::shared_ptr<ExportReader> reader_ = std::make_shared<ExportReader>();
  std::map<std::string, v1::RunFileInfo> sent_;  // files whose last part was sent
};

}  // namespace evergrad::worker
