#include "coordinator/jobs/checkpoint_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kRetryTextMax = 500;
// Time limit of a round. When the time is over, a manifest is written. It names older files of the
// shards that have not answered.
constexpr std::chrono::seconds kRoundMax{60};
constexpr std::chrono::seconds kTroubleSaidEvery{
    60};  // shortest time between two events about the same trouble
constexpr std::chrono::milliseconds kHurriedApart{100};
// Limit for the files of a shard, in addition to `keep`. Files are not deleted while manifests
// cannot be written.
constexpr std::size_t kSnapshotsMax = 64;

// Returns whether the newest file of each shard holds all succeeded closures except those that are
// reported as lost at the shard.
bool EverythingIsSaved(const ClosureBook& book) {
  const DurableState& state = book.durable();
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    const Snapshot* newest = book.NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->epoch != state.map[p].epoch ||
        !newest->done.ContainsAll(state.succeeded.Minus(state.lost[p])))
      return false;
  }
  return true;
}

absl::StatusOr<Snapshot> SnapshotOf(const v1::ShardDurable& durable, std::uint64_t closures) {
  const ShardId shard(durable.shard());
  const auto epoch = client::FromProto<ShardEpoch>(durable.epoch());
  const v1::ShardFile& file = durable.file();
  const auto name = snapshot::ParseShardFileName(file.file());
  auto done = client::FromProto(file.done()), refused = client::FromProto(file.refused());
  if (!done.ok()) return done.status();
  if (!refused.ok()) return refused.status();
  if (done->FirstAtLeast(closures) || refused->FirstAtLeast(closures))
    return absl::InvalidArgumentError(
        absl::StrCat("a snapshot file has closures beyond the plan: shard=", shard.value(),
                     " closures=", closures));
  if (!name || name->shard != shard || name->epoch != epoch || name->lsn != file.lsn() ||
      file.sha256().size() != 32 || file.shard() != shard.value() ||
      client::FromProto<ShardEpoch>(file.epoch()) != epoch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of a snapshot file does not match the server's report: shard=", shard.value(),
        " file=", client::CleanText(file.file(), 200)));
  }
  Snapshot snapshot;
  snapshot.file = file.file();
  snapshot.bytes = file.bytes();
  snapshot.sha256 = file.sha256();
  snapshot.epoch = epoch;
  snapshot.start = client::FromProto<MapVersion>(file.start());
  snapshot.lsn = file.lsn();
  snapshot.vlsn = file.vlsn();
  snapshot.done = *std::move(done);
  snapshot.refused = *std::move(refused);
  return snapshot;
}

}  // namespace

CheckpointRounds::CheckpointRounds(const JobPart& part, const EpochAccount* epochs, Hooks hooks)
    : JobPart(part), hooks_(std::move(hooks)), cuts_(part), writer_(part, epochs) {}

void CheckpointRounds::SetStage(Stage stage) {
  if (stage_ == stage) return;
  stage_ = stage;
  ++stages_;
  if (stage == Stage::kLast || stage == Stage::kSealing)
    open_ = false;  // The round in progress is given up. In kLast, answers that still arrive count
                    // for the last round.
  if (stage == Stage::kLast) next_ = host_->Now();
  if (stage == Stage::kSealing) cuts_.Clear();
  if (stage == Stage::kOver) writer_.Stop();
  sealed_by_ = host_->Now() + options_.seal_timeout;
}

std::string CheckpointRounds::WaitingFor() const {
  std::string what = cuts_.awaited().empty()
                         ? ""
                         : absl::StrCat("shards to be saved: ", cuts_.awaited().size(), " left");
  if (stage_ == Stage::kSealed) return what;
  if (!status_.trouble().empty()) what = status_.trouble();
  if (what.empty() && writer_.busy())
    what =
        writer_.files_left() > 0
            ? absl::StrCat("the coordinator reads its files back: ", writer_.files_left(), " left")
            : "its manifest is being written";
  return what.empty() ? "" : absl::StrCat("the last checkpoint: ", what);
}

// ---------------------------------------------------------------- rounds

void CheckpointRounds::Tick(MonoTime now, bool hurry) {
  if (!on() || !book_ || !shards_.placed()) return;
  CheckRound(now);
  if (hurry && !open_ && !writer_.busy() && next_ > now && now >= hurried_next_) {
    if (!book_->ClosesSettled()) return job_.SendCloses();
    next_ = now;
    hurried_next_ = now + kHurriedApart;
  }
  // While the journal accepts no records, no files are written, because no record could name them.
  if (open_ || writer_.busy() || now < next_ || !host_->StoreTrouble().empty()) return;
  if (stage_ == Stage::kWorking) return BeginRound();
  if (stage_ != Stage::kLast) return;
  // The last round waits until every owner has acknowledged the Close messages for all ended
  // closures. All ledgers are then equal, so the manifest is complete.
  if (!book_->ClosesSettled() || !shards_.AllHeld()) return job_.SendCloses();
  BeginRound();
}

void CheckpointRounds::BeginRound() {
  open_ = true;
  short_ = false;
  began_ = host_->Now();
  next_ = began_ + id_.spec.checkpoint.every;
  retry_.clear();
  std::size_t held_up = 0;
  cuts_.Order(folder(), [&](ShardId p) {
    // While no manifest can be written, neither files nor their entries in the journal are freed. A
    // shard that already has the largest number of files is therefore left out.
    const bool skips = IsFull(p) && stage_ != Stage::kLast && stage_ != Stage::kSealed;
    held_up += skips;
    return skips;
  });
  if (held_up > 0 && status_.trouble().empty())
    OnTrouble(absl::ResourceExhaustedError(absl::StrCat(
        "snapshots of some shards cannot be deleted (see the log): shards=", held_up)));
  CheckRound(began_);
}

bool CheckpointRounds::IsFull(ShardId shard) const {
  return book_->durable().snapshots[shard.value()].size() >=
         id_.spec.checkpoint.keep + kSnapshotsMax;
}

void CheckpointRounds::CheckRound(MonoTime now) {
  if (!open_) return;
  cuts_.DropLost();
  const auto& awaited = cuts_.awaited();
  const bool slow =
      !awaited.empty() && now - began_ > std::max<MonoTime>(kRoundMax, id_.spec.checkpoint.every);
  if (slow) {
    // The round continues, because the server retries by itself, for example until its disk has
    // space.
    const ShardId first = awaited.begin()->first;
    OnTrouble(absl::DeadlineExceededError(
        absl::StrCat("some shards are not saved after ",
                     std::chrono::duration_cast<std::chrono::seconds>(now - began_).count(),
                     " s: shards=", awaited.size(), " first=", first.value(), " at ps_server/",
                     book_->durable().map[first.value()].server,
                     retry_.empty() ? "" : "; last cause: ", retry_)));
  }
  const bool late = stage_ == Stage::kSealed ? now >= sealed_by_ : slow && stage_ != Stage::kLast;
  if (late && stage_ == Stage::kSealed) {
    for (const auto& [shard, cut] : awaited) unsaved_.insert(shard);
  }
  short_ |= late;
  if (awaited.empty() || late) EndRound();
}

absl::Status CheckpointRounds::OnDurable(TaskId task, const v1::ShardDurable& durable) {
  if (!book_ || durable.shard() >= shards_.size()) return absl::OkStatus();
  const ShardId shard(durable.shard());
  const auto epoch = client::FromProto<ShardEpoch>(durable.epoch());
  const ShardOwner& owner = book_->durable().map[shard.value()];
  const JobServer* const server = shards_.Find(task);
  if (server == nullptr || server->identity != owner.server) {
    if (owner.epoch <= epoch)  // If the owner has a newer epoch, the shard was moved.
      host_->ForeignMessage(task, "ShardDurable for a shard of another server");
    return absl::OkStatus();
  }
  if (owner.epoch != epoch)
    return absl::OkStatus();  // a file of an earlier epoch; it is deleted with other old files
  const bool ordered = cuts_.Awaits(shard, epoch);
  if (durable.has_error()) {
    OnSaveFailed(shard, ordered, durable);
    return absl::OkStatus();
  }
  absl::StatusOr<Snapshot> snapshot = SnapshotOf(durable, plan_->closures());
  if (!snapshot.ok()) return snapshot.status();
  if (!ordered && IsFull(shard)) return absl::OkStatus();  // no round has asked for this file
  snapshot->folder = folder();
  snapshot->job = id_.uid;
  snapshot->plan_fingerprint = plan_message_.fingerprint();
  snapshot->host = server->host;
  if (ordered) {
    cuts_.Answered(shard);
    // The deadline is extended to give a slow disk the time that it needs.
    sealed_by_ = host_->Now() + options_.seal_timeout;
  }
  if (!job_.Persist(book_->AddSnapshot(shard, *std::move(snapshot)))) return absl::OkStatus();
  if (open_ && cuts_.awaited().empty()) EndRound();
  return absl::OkStatus();
}

void CheckpointRounds::OnSaveFailed(ShardId shard, bool ordered, const v1::ShardDurable& durable) {
  const std::string server =
      absl::StrCat("ps_server/", book_->durable().map[shard.value()].server, ": ");
  if (durable.tried_again()) {
    if (!ordered) return;
    retry_ = absl::StrCat(server, client::CleanText(durable.error().message(), kRetryTextMax));
    return OnTrouble(absl::UnavailableError(retry_));
  }
  if (ordered) cuts_.Answered(shard);
  short_ |= ordered;
  if (ordered && stage_ == Stage::kSealed) unsaved_.insert(shard);
  v1::ErrorDetail cause = durable.error();
  CleanCause(&cause);
  const auto code = static_cast<absl::StatusCode>(cause.code());
  // These three codes mean that the shard was dropped, assigned again or ordered again in the
  // meantime. They are no trouble, because the next round asks for the shard again.
  if (code != absl::StatusCode::kCancelled && code != absl::StatusCode::kAborted &&
      code != absl::StatusCode::kNotFound)
    OnTrouble(absl::Status(code, absl::StrCat(server, cause.message())), cause.kind() == "user");
  // The tick finds disconnected servers. A search in this method would run once per shard.
  if (open_ && cuts_.awaited().empty()) EndRound();
}

void CheckpointRounds::EndRound() {
  open_ = false;
  cuts_.Clear();
  hooks_.round_ended();
  WriteManifest();
}

// ---------------------------------------------------------------- manifests

void CheckpointRounds::WriteManifest() {
  if (!on() || stage_ == Stage::kOver) return;
  again_ |= writer_.busy();
  if (writer_.busy()) return;
  std::optional<v1::Manifest> manifest = writer_.Make();
  if (stage_ == Stage::kLast && (!manifest || !EverythingIsSaved(*book_))) {
    // A server has disconnected. The next round follows once every shard is held again.
    next_ = host_->Now() + options_.RetryDelay(++failures_);
    return;
  }
  const bool last = stage_ == Stage::kLast || stage_ == Stage::kSealed;
  if (!manifest || (!last && writer_.IsNewest(*manifest))) {
    if (stage_ == Stage::kSealed) EndStage();
    return;
  }
  writer_.Write(*std::move(manifest), last,
                [this, last, of = stages_](const v1::Manifest& written,
                                           const absl::StatusOr<Saved>& saved, bool unread) {
                  if (!book_) return;
                  // A rollback or the end of the job may have ended the stage before this point.
                  const bool last_now = last && of == stages_;
                  if (saved.ok())
                    OnSaved(written, *saved, last, last_now);
                  else
                    OnUnsaved(saved.status(), last_now, unread);
                });
}

void CheckpointRounds::OnUnsaved(const absl::Status& why, bool last, bool unread) {
  const MonoTime again = host_->Now() + options_.RetryDelay(++failures_);
  next_ = stage_ == Stage::kLast ? again : std::max(next_, again);
  OnTrouble(why);
  if (last && stage_ == Stage::kSealed) return EndStage();
  if (last && unread && stage_ == Stage::kLast && failures_ > options_.retries_max)
    return GiveUpLast(why);
  if (std::exchange(again_, false)) WriteManifest();
}

void CheckpointRounds::OnSaved(const v1::Manifest& manifest, const Saved& saved, bool whole,
                               bool last) {
  failures_ = 0;
  status_.set_number(saved.number);
  status_.set_uri(saved.uri);
  status_.set_written_ms(manifest.written_ms());
  status_.set_complete(manifest.complete() && whole);  // false if parts of files were not read back
  status_.set_manifests(status_.manifests() + 1);
  status_.clear_trouble();
  NoteStatus();
  host_->Log(log::Level::kInfo,
             absl::StrCat("checkpoint ", saved.number, status_.complete() ? " (complete)" : "",
                          ": shards=", manifest.shards_size(), " path=", saved.uri),
             id_.spec.name);
  for (const absl::Status& warning : saved.warnings)
    host_->Log(log::Level::kWarning, absl::StrCat("checkpoint: ", warning.message()),
               id_.spec.name);
  // The trouble lasts as long as the manifest has an older file for some shard.
  if (trouble_said_ && !short_) {
    trouble_said_ = false;
    job_.Event("state", absl::StrCat("checkpoints are written again: checkpoint ", saved.number));
  }
  writer_.ForgetOlder(saved.named);
  hooks_.saved(manifest);
  job_.Touch();
  if (last) return EndStage();
  if (std::exchange(again_, false)) WriteManifest();
}

// ---------------------------------------------------------------- errors, the last checkpoint

void CheckpointRounds::FailAsUsers(const absl::Status& status) {
  job_.Fail(MakeError(UserError(status), "user", "coordinator"), true);
}

// Reports an error of the checkpoints. `users` is true if a setting or a file of the user is the
// cause.
void CheckpointRounds::OnTrouble(const absl::Status& status, bool users) {
  status_.set_trouble(client::CleanText(status.message(), 1024));
  job_.Touch();
  if (!on() || stage_ == Stage::kOver) return;
  // After the first manifest an error comes from a machine and may disappear, so the job retries.
  if ((!users && !SaveErrorIsFinal(status)) || status_.manifests() != 0) {
    const MonoTime now = host_->Now();
    if (trouble_said_at_ && now - *trouble_said_at_ < kTroubleSaidEvery) return;
    trouble_said_at_ = now;
    trouble_said_ = true;
    job_.Event("warning", absl::StrCat("cannot write a checkpoint, retrying: ", status_.trouble()));
    return;
  }
  // A job whose user asked for checkpoints must not run without them; any other job continues.
  if (id_.spec.checkpoint.given && !job_.grants_stopped())
    return FailAsUsers(
        absl::Status(status.code(), absl::StrCat("checkpoint: ", status_.trouble())));
  off_ = true;
  open_ = false;
  cuts_.Clear();
  job_.Event("warning", absl::StrCat("the job continues without checkpoints: ", status_.trouble()));
  if (job_.PersistWhole() && (stage_ == Stage::kLast || stage_ == Stage::kSealed)) EndStage();
}

// Gives up the last checkpoint of a job that has succeeded, because its files stay unreadable. The
// job must not wait forever, and must not end as if it were saved.
void CheckpointRounds::GiveUpLast(const absl::Status& why) {
  if (id_.spec.checkpoint.given)
    return FailAsUsers(
        absl::Status(why.code(), absl::StrCat("the last checkpoint: ", why.message())));
  status_.set_complete(false);
  status_.set_trouble(
      absl::StrCat("the final state of the job has no checkpoint: ", status_.trouble()));
  job_.Event("warning", status_.trouble());
  NoteStatus();
  EndStage();
}

void CheckpointRounds::EndStage() {
  if (stage_ == Stage::kSealed) SayUnsaved();
  hooks_.over();
}

// Adds an event if some shards of a sealed job were not saved in their final state. The checkpoint
// has older files of these shards, if any.
void CheckpointRounds::SayUnsaved() {
  if (!on()) return;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->resumed || newest->epoch != book_->durable().map[p].epoch)
      unsaved_.insert(ShardId(p));
  }
  if (unsaved_.empty()) return;
  const std::string& server = book_->durable().map[unsaved_.begin()->value()].server;
  const std::string text = absl::StrCat(
      "the final state of the job is only partly saved: ", unsaved_.size(), " of ", shards_.size(),
      " shards were not saved in this state, first=", unsaved_.begin()->value(),
      server.empty() ? std::string(" at no server") : absl::StrCat(" at ps_server/", server), "; ",
      status_.number() == 0
          ? std::string("there is no checkpoint to resume from")
          : absl::StrCat(
                "checkpoint ", status_.number(),
                " is older: a job that resumes from it repeats the work that was done after it"));
  job_.Event("warning", text);
  status_.set_trouble(text);
  NoteStatus();
}

// ---------------------------------------------------------------- the journal

void CheckpointRounds::NoteStatus() {
  if (v1::JobNote* note = job_.NoteIfJournaled()) *note->mutable_checkpoint() = status_;
}

void CheckpointRounds::Fill(v1::JobSnapshot* snapshot) const {
  *snapshot->mutable_checkpoint() = status_;
  snapshot->set_checkpoints_off(off_);
}

void CheckpointRounds::FillCounters(v1::JobCounters* counters) const {
  counters->set_checkpoint_trouble_said(trouble_said_);
}

void CheckpointRounds::Read(const v1::JobSnapshot& snapshot) {
  status_ = snapshot.checkpoint();
  off_ = snapshot.checkpoints_off();
}

void CheckpointRounds::ReadNote(const v1::JobNote& note) {
  if (note.has_checkpoint()) status_ = note.checkpoint();
}

void CheckpointRounds::ReadCounters(const v1::JobCounters& counters) {
  trouble_said_ = counters.checkpoint_trouble_said();
}

}  // namespace evergrad::coordinator
