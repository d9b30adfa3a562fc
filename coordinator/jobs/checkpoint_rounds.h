// The checkpoints of a job (LEDGER lines 20a and 27): rounds of cuts, and the manifests that name
// them.
//
//   Tick ─▶ CutShards to each server ─▶ OnDurable: one record for each file ─▶ every shard has
//   answered, or a minute is over ─▶ manifest ─▶ files that it does not need are forgotten, then
//   deleted
//
// A manifest names the newest durable file of each shard. These files are cut at different moments.
// After a rollback to such a file, the closures that the file lacks are run again for its shard. A
// round therefore need not wait for the end of a repair. Not thread-safe: only the control executor
// calls it. Clock and I/O come from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "coordinator/jobs/checkpoint_cuts.h"
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
  // The stages of a job, each with its own rule for rounds.
  enum class Stage {
    kNone,     // No shard is placed yet.
    kWorking,  // One round follows another.
    kLast,     // The last checkpoint of a job that succeeds. Its round begins once all ledgers are
               // equal.
    kSealing,  // No round begins; a manifest may still be written.
    kSealed,   // The shards of a sealed job are saved once more.
    kOver
  };
  struct Hooks {
    std::function<void()> round_ended;  // Called before the round's manifest is made.
    std::function<void(const v1::Manifest&)> saved;
    std::function<void()> over;  // Called when kLast or kSealed has nothing more to save.
  };
  CheckpointRounds(const JobPart& part, const EpochAccount* epochs, Hooks hooks);

  bool on() const { return id_.spec.checkpoint.on && !off_; }
  const std::string& folder() const { return writer_.folder(); }
  const v1::CheckpointStatus& status() const { return status_; }
  void SetResumedFrom(const std::string& uri) { status_.set_resumed_from(uri); }
  // Returns a text that says what the job waits for in kLast or kSealed, or "" if it waits for
  // nothing.
  std::string WaitingFor() const;

  void SetStage(Stage stage);
  // Ends or begins a round when it is due. `hurry` is true while a client waits for a checkpoint: a
  // round then begins as soon as every ledger holds the ended closures.
  void Tick(MonoTime now, bool hurry);
  void BeginRound();
  bool round_open() const { return open_; }
  // Returns InvalidArgument and changes nothing if the message is malformed.
  absl::Status OnDurable(TaskId task, const v1::ShardDurable& durable);

  // --- the journal
  void Fill(v1::JobSnapshot* snapshot) const;
  void FillCounters(v1::JobCounters* counters) const;
  void Read(const v1::JobSnapshot& snapshot);
  void ReadNote(const v1::JobNote& note);
  void ReadCounters(const v1::JobCounters& counters);

 private:
  bool IsFull(ShardId shard) const;
  void CheckRound(MonoTime now);
  void EndRound();
  void OnSaveFailed(ShardId shard, bool ordered, const v1::ShardDurable& durable);
  void WriteManifest();
  // `last` is true if the manifest is the last manifest of its stage.
  void OnSaved(const v1::Manifest& manifest, const Saved& saved, bool whole, bool last);
  void OnUnsaved(const absl::Status& why, bool last, bool unread);
  void NoteStatus();
  void GiveUpLast(const absl::Status& why);
  void FailAsUsers(const absl::Status& status);
  void OnTrouble(const absl::Status& status, bool users = false);
  void SayUnsaved();
  void EndStage();  // Called when kLast or kSealed has nothing more to save.

  const Hooks hooks_;
  CheckpointCuts cuts_;
  ManifestWriter writer_;
  Stage stage_ = Stage::kNone;
  std::uint64_t stages_ = 0;  // Number of changes of stage_.
  bool off_ = false;
  bool open_ = false;   // A round is in progress.
  bool short_ = false;  // The newest round has not got a file of every shard.
  // The newest error because of which a server retries one of the round's orders.
  std::string retry_;
  MonoTime began_{0}, next_{0}, hurried_next_{0}, sealed_by_{0};
  std::optional<MonoTime> trouble_said_at_;
  // An event has reported that checkpoints fail, and no event has reported their success since.
  bool trouble_said_ = false;
  // A round ended while a manifest was being written, so another manifest must follow.
  bool again_ = false;
  std::uint32_t failures_ = 0;  // Number of failures in a row to write a manifest.
  std::set<ShardId> unsaved_;   // Shards of a sealed job without a file of their final state.
  v1::CheckpointStatus status_;
};

}  // namespace evergrad::coordinator
