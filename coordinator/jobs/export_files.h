// The files of a job's export. The worker that runs the export closure writes the files to the runs
// folder if it can see that folder, else it sends them to the coordinator. In both cases the
// coordinator reads the files back before the job reports that they are present.
//
//   FillOrder ─▶ OnChunk for each part that is sent ─▶ OnExported ─▶ the files are read back
//                                                      ─▶ Hooks::done, or Hooks::again, or Fail
//
// Files are received and read on the file thread. When a stage ends, the results of file work that
// is still in flight are ignored. Not thread-safe: only the control executor calls it. Clock and
// I/O come from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/reading_round.h"

namespace evergrad::coordinator {

class RunFileCheck;

class ExportFiles : private JobPart {
 public:
  enum class Stage {
    kNone,
    // The export of a job that has trained. The export is repeated until its files are present.
    kSucceeding,
    kFailed  // The export of a failed job. The job ends even if the export fails.
  };
  struct Hooks {
    std::function<void(MonoTime not_before)> again;  // The export closure must run again.
    std::function<void()> done;  // The files are present, or no file was exported.
    std::function<void(absl::string_view why)> gave_up;  // Called in kFailed only.
  };
  // `reading` and `rounds` outlive this object.
  ExportFiles(const JobPart& part, ReadingRound* reading, const CheckpointRounds* rounds,
              Hooks hooks)
      : JobPart(part), reading_(*reading), rounds_(*rounds), hooks_(std::move(hooks)) {}

  void SetStage(Stage stage) { stage_ = stage; }
  void FillOrder(v1::ExportOrder* order) const;
  // Takes a part of a file. Returns InvalidArgument and changes nothing if the message is
  // malformed, or if more than two windows (client::kRunFileWindow) of the worker's bytes wait to
  // be written.
  absl::Status OnChunk(TaskId task, const v1::RunFileChunk& chunk);
  // Takes the result with which the export closure has ended.
  void OnExported(const v1::ExportResult& reported, const std::string& worker);
  // Called when a disk is full: lets the closure run again later. The number of attempts has no
  // limit, because only disk space for the weights is missing.
  void OnNoSpace(ReadingRound::Closure* closure, absl::string_view why);
  // Closes and removes the file that is being received, if any.
  void DropReceiver();

  bool weights_exported() const { return weights_exported_; }
  // The files that were read back.
  const std::vector<v1::RunFileInfo>& files() const { return files_; }
  std::string WaitingFor() const;  // "" if the export does not wait for disk space.

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void Read(const v1::JobSnapshot& snapshot);

 private:
  struct Receiving;
  std::uint64_t BytesMax(absl::string_view name) const;
  void Take(TaskId task, const v1::RunFileChunk& chunk, std::uint64_t bytes);
  void OnTaken(const std::shared_ptr<Receiving>& receiving, TaskId from, std::uint64_t closure,
               const std::string& name, std::uint64_t bytes,
               const absl::StatusOr<std::uint64_t>& taken);
  void StepCheck(const std::shared_ptr<RunFileCheck>& check, std::uint64_t round,
                 const v1::ExportResult& result, const std::string& worker);
  void OnUnreadable(const absl::Status& status, const v1::ExportResult& result,
                    const std::string& worker);
  void OnReadBack(const v1::ExportResult& result, const std::string& worker);

  ReadingRound& reading_;
  const CheckpointRounds& rounds_;
  const Hooks hooks_;
  Stage stage_ = Stage::kNone;
  // Shared with work for the file thread; null if no file is being received.
  std::shared_ptr<Receiving> receiving_;
  // True if the coordinator cannot read the files that a worker wrote to the runs folder.
  bool upload_ = false;
  std::uint64_t round_ = 0;  // Number of the present round of reading files back.
  std::uint32_t waits_ = 0;  // How often the export has waited for disk space.
  // Number of failures in a row to read back files that a worker has sent.
  std::uint32_t failures_ = 0;
  std::string trouble_;  // The error that reported the full disk, or "".
  std::optional<MonoTime> trouble_said_at_;
  std::vector<v1::RunFileInfo> files_;
  bool weights_exported_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
