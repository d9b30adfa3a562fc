// The checkpoints of a job (LEDGER lines 20a and 27): rounds of cuts, and the manifests that name
// them.
//
//   Tick ─▶ CutShards to each server ─▶ OnDurable: one record for each file ─▶ every shard has
//   answered, or a minute is over ─▶ manifest ─▶ files that it does not need are forgotten, then
//   deleted
//
// A manifest names the newest durable file of each shard, whatever its moment: the closures
// that ledgers lack are run again. So rounds go on while a shard is under repair. Not thread-safe:
// the control executor's. No clock and no I/O but through the host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/manifest_writer.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::v1 {
class JobCounters;
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

class CheckpointRounds : private JobPart {
 public:
  // The state of the job, as far as it decides about rounds.
  enum class Stage {
    kNone,     // Nothing is placed yet.
    kWorking,  // A round follows another.
    kLast,     // The checkpoint of a job that succeeds: every ledger must be equal.
    kSealing,  // No round; a manifest may still be written.
    kSealed,   // The shards of a sealed job are saved once more.
    kOver
  };
  struct Hooks {
    std::function<void()> round_ended;  // Before its manifest is made.
    std::function<void(const v1::Manifest&)> saved;
    std::function<void()> over;  // Nothing more is saved in kLast, kSealed.
  };
  CheckpointRounds(const JobPart& part, const EpochAccount* epochs, Hooks hooks);

  bool on() const { return id_.spec.checkpoint.on && !off_; }
  const std::string& folder() const { return writer_.folder(); }
  const v1::CheckpointStatus& status() const { return status_; }
  void SetResumedFrom(const std::string& uri) { status_.set_resumed_from(uri); }
  std::string WaitingFor() const;  // In kLast and kSealed; "": nothing.

  void SetStage(Stage stage);
  // Ends the round that is due to end, begins the one that is due. `hurry`: somebody waits for a
  // checkpoint, which is made as soon as every ledger holds what has ended.
  void Tick(MonoTime now, bool hurry);
  void BeginRound();
  bool round_open() const { return open_; }
  // InvalidArgument: the message is malformed, and nothing has changed.
  absl::Status OnDurable(TaskId task, const v1::ShardDurable& durable);

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);

 private:
  struct Ordered {
    ShardEpoch epoch;
    TaskId task;  // In whose session; it is not answered in a later one.
  };
  bool IsFull(ShardId shard) const;
  void CheckRound(MonoTime now);
  void EndRound();
  void OnSaveFailed(ShardId shard, bool ordered, const v1::ShardDurable& durable);
  void WriteManifest();
  // `last`: of its stage.
  void OnSaved(const v1::Manifest& manifest, const Saved& saved, bool whole, bool last);
  void OnUnsaved(const absl::Status& why, bool last, bool unread);
  void NoteStatus();
  void GiveUpLast(const absl::Status& why);
  void FailAsUsers(const absl::Status& status);
  void OnTrouble(const absl::Status& status, bool users = false);
  void SayUnsaved();
  void EndStage();  // Nothing more is saved in kLast or kSealed.

  const Hooks hooks_;
  ManifestWriter writer_;
  Stage stage_ = Stage::kNone;
  std::uint64_t stages_ = 0;  // Changes of stage_: a manifest is the last one of its own only.
  bool off_ = false;
  bool open_ = false;                   // A round is under way.
  bool short_ = false;                  // It ended without a file of some shard.
  std::map<ShardId, Ordered> waiting_;  // Not answered yet.
  std::string retry_;                   // Why a server tries again to save one of them.
  MonoTime began_{0}, next_{0}, hurried_next_{0}, sealed_by_{0}, trouble_said_at_{0};
  bool trouble_said_ = false;   // And not yet that it is over.
  bool again_ = false;          // A round ended while a manifest was being written.
  std::uint32_t failures_ = 0;  // Manifests, in a row.
  std::set<ShardId> unsaved_;   // Shards of a sealed job without a file of its end.
  v1::CheckpointStatus status_;
};

}  // namespace evergrad::coordinator
