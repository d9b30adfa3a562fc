// Writes the files of an export (final weights, vocabularies) into the runs folder, if this host
// sees the coordinator's own; otherwise sends them to the coordinator, a part at a time.
//
// The values are read, and the files written, on the compute executor. A coordinator out of disk
// space gets the attempt back and grants it again; every other refusal of a part is an error.
#pragma once

#include "worker/runner/attempt_run.h"
#include "worker/runner/upload.h"

namespace evergrad::worker {

// Remembers, across attempts, when a trouble was last logged as a warning, so that one that is met
// again and again is not.
class WarningInterval {
 public:
  // Whether to warn now; if so, not again for a minute. `clock` null: always.
  bool Warn(const Clock* clock);

 private:
  std::optional<MonoTime> warned_at_;
};

class ExportRun final : public AttemptRun {
 public:
  struct Options {
    std::function<bool(v1::TaskMessage)> send;  // false: there is no session
    std::string host;                           // where written files lie
    WarningInterval* disk_full = nullptr;       // outlives the run
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
    std::vector<v1::RunFileInfo> written;  // if it does
  };

  // A file that is sent advances by each MiB that is confirmed.
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
  std::optional<Upload> upload_;                          // once the files are being sent
  std::shared_ptr<const ComputeJob::Exported> exported_;  // shared with the compute executor
  const std::shared_ptr<ExportReader> reader_ =
      std::make_shared<ExportReader>();          // used on the compute executor
  std::map<std::string, v1::RunFileInfo> sent_;  // files whose last part was sent
};

}  // namespace evergrad::worker
