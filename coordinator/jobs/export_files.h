// The files of a job's export. The worker that runs the export closure writes them to the runs
// folder where it sees that folder, and sends them to the coordinator where it does not. In both
// cases the files are read back before the job calls them present.
//
//   FillOrder ─▶ OnChunk for each part that is sent ─▶ OnExported ─▶ the files are read back
//                                                      ─▶ Hooks::done, or Hooks::again, or Fail
//
// Files are received and read on the file thread. A stage that ends voids what is in flight. Not
// thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
    kSucceeding,  // The export of a job that has trained: it is repeated until its files are there.
    kFailed       // The export of a failed job: it may fail, and the job still ends.
  };
  struct Hooks {
    std::function<void(MonoTime not_before)> again;  // The closure must run again.
    std::function<void()> done;                      // The files are there, or none was exported.
    std::function<void(absl::string_view why)> gave_up;  // In kFailed only.
  };
  // What `reading` and `rounds` point to outlives this object.
  ExportFiles(const JobPart& part, ReadingRound* reading, const CheckpointRounds* rounds,
              Hooks hooks)
      : JobPart(part), reading_(*reading), rounds_(*rounds), hooks_(std::move(hooks)) {}

  void SetStage(Stage stage) { stage_ = stage; }
  void FillOrder(v1::ExportOrder* order) const;
  // InvalidArgument: the message is malformed or exceeds the window, and nothing has changed.
  absl::Status OnChunk(TaskId task, const v1::RunFileChunk& chunk);
  // The export closure has ended with this result.
  void OnExported(const v1::ExportResult& reported, const std::string& worker);
  // A disk is full. The closure runs again later, however often: the job has its weights, only no
  // space for them yet.
  void OnNoSpace(ReadingRound::Closure* closure, absl::string_view why);
  // Closes and removes a file that is not complete.
  void DropReceiver();

  bool weights_exported() const { return weights_exported_; }
  const std::vector<v1::RunFileInfo>& files() const { return files_; }  // Those read back.
  std::string WaitingFor() const;                                       // "": not for disk space.

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
  void StepCheck(std::shared_ptr<RunFileCheck> check, std::uint64_t round,
                 const v1::ExportResult& result, const std::string& worker);
  void OnUnreadable(const absl::Status& status, const v1::ExportResult& result,
                    const std::string& worker);
  void OnReadBack(const v1::ExportResult& result, const std::string& worker);

  ReadingRound& reading_;
  const CheckpointRounds& rounds_;
  const Hooks hooks_;
  Stage stage_ = Stage::kNone;
  std::shared_ptr<Receiving> receiving_;  // Shared with work for the file thread; null: none.
  bool upload_ = false;         // Files that a worker wrote to its runs folder cannot be read here.
  std::uint64_t round_ = 0;     // Of reading files back.
  std::uint32_t waits_ = 0;     // For disk space.
  std::uint32_t failures_ = 0;  // To read back what was sent, in a row.
  std::string trouble_;         // Why there is no disk space; "": there is.
  MonoTime trouble_said_at_{0};
  std::vector<v1::RunFileInfo> files_;
  bool weights_exported_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
