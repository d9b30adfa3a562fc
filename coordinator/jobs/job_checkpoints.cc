// Checkpoints of a job (LEDGER lines 20a, 27, 28): rounds of cuts, the manifests that name them,
// and how a job begins from one.
//
// A round orders a cut of every shard that is there; each becomes durable by itself and is
// journaled then. A manifest names the newest durable file of each shard, whatever moment it is of:
// what the ledgers lack is run again. So rounds go on while a shard is under repair.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/shard_file.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kLostTextMax = 200, kRetryTextMax = 500;
constexpr std::chrono::seconds kRoundMax{
    60};  // a manifest goes out without the shards that have not answered
constexpr std::chrono::seconds kTroubleSaidEvery{60};  // of what goes on failing
constexpr std::size_t kShardsPerOrder = 4096;  // a message stays far below the transport's limit
constexpr std::size_t kSnapshotsMax =
    64;  // of a shard, beyond `keep`: manifests that cannot be written free none of them

// The file of an Assign cannot be used, whoever reads it.
bool IsUnusable(absl::StatusCode code) {
  return code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kPermissionDenied;
}

// Which states a manifest names: a file written anew under its name has another hash.
std::vector<std::string> FilesOf(const v1::Manifest& manifest) {
  std::vector<std::string> files;
  for (const v1::ShardFile& entry : manifest.shards())
    files.push_back(entry.file() + entry.sha256());
  return files;
}

}  // namespace

std::string Job::CheckpointFolder() const {
  return coordinator::CheckpointFolder(id_.spec.checkpoint, id_.runs_folder, id_.spec.name,
                                       id_.uid);
}

// ---------------------------------------------------------------- rounds

void Job::TickCheckpoints(MonoTime now) {
  if (!checkpoints() || window_open_ || !book_ || !shards_.placed()) return;
  if (round_) CheckRound(now);
  WantRound(now);
  // What the journal cannot take now is not made: a file that it does not know helps nobody.
  if (round_ || manifest_writing_ || ended() || now < next_round_ || !host_->StoreTrouble().empty())
    return;
  switch (phase_) {
    case Phase::kTraining:
    case Phase::kEvaluating:
    case Phase::kExporting:
    case Phase::kReporting: return BeginRound();
    case Phase::kSaving:
      // What was closed last belongs into every ledger first: then all of them are equal, and the
      // manifest is complete.
      if (book_->ClosesSettled() && shards_.AllHeld()) return BeginRound();
      SendCloses();
      return;
    default: return;
  }
}

void Job::BeginRound() {
  round_ = true;
  round_short_ = false;
  round_began_ = host_->Now();
  next_round_ = round_began_ + id_.spec.checkpoint.every;
  round_waiting_.clear();
  round_retry_.clear();
  std::size_t held_up = 0;
  const std::string folder = CheckpointFolder();
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.ready) continue;
    v1::CoordinatorMessage message;
    v1::CutShards* cut = message.mutable_cut();
    const auto send = [&, to = task] {
      if (cut->shards_size() == 0) return;
      cut->set_job_uid(id_.uid.value());
      cut->set_folder(folder);
      cut->set_plan_fingerprint(plan_message_.fingerprint());
      host_->Send(to, message);
      message.Clear();
      cut = message.mutable_cut();
    };
    for (const ShardId p : book_->ShardsOf(server.identity)) {
      if (!shards_[p].held || shards_.unplaced().count(p) != 0) continue;
      // While no manifest can be written nothing is freed, neither files nor what is known of them.
      if (SnapshotsAreFull(p) && phase_ != Phase::kSaving && phase_ != Phase::kSealedSaving) {
        ++held_up;
        continue;
      }
      const ShardEpoch epoch = book_->durable().map[p.value()].epoch;
      v1::CutShard* one = cut->add_shards();
      one->set_shard(p.value());
      *one->mutable_epoch() = client::ToProto(epoch);
      round_waiting_[p] = {epoch, task};
      if (cut->shards_size() == static_cast<int>(kShardsPerOrder)) send();
    }
    send();
  }
  if (held_up > 0 && checkpoint_.trouble().empty())
    CheckpointTrouble(absl::ResourceExhaustedError(
        absl::StrCat("no older snapshot can be deleted (see the log): shards=", held_up)));
  CheckRound(round_began_);
}

bool Job::SnapshotsAreFull(ShardId shard) const {
  return book_->durable().snapshots[shard.value()].size() >=
         id_.spec.checkpoint.keep + kSnapshotsMax;
}

void Job::CheckRound(MonoTime now) {
  if (!round_) return;
  // Who is gone, or holds another state by now, does not answer for this round.
  std::erase_if(round_waiting_, [&](const auto& entry) {
    const ShardOwner& owner = book_->durable().map[entry.first.value()];
    const JobServer* server = shards_.Find(entry.second.task);
    return owner.epoch != entry.second.epoch || server == nullptr || !server->ready ||
           server->identity != owner.server;
  });
  const bool slow = !round_waiting_.empty() &&
                    now - round_began_ > std::max<MonoTime>(kRoundMax, id_.spec.checkpoint.every);
  if (slow) {
    // Its server tries again by itself, for want of room say.
    const auto& [shard, ordered] = *round_waiting_.begin();
    CheckpointTrouble(absl::DeadlineExceededError(
        absl::StrCat("not saved after ",
                     std::chrono::duration_cast<std::chrono::seconds>(now - round_began_).count(),
                     " s: shards=", round_waiting_.size(), " first=", shard.value(),
                     " at ps_server/", book_->durable().map[shard.value()].server,
                     round_retry_.empty() ? "" : "; last cause: ", round_retry_)));
  }
  const bool late =
      phase_ == Phase::kSealedSaving ? now >= seal_deadline_ : slow && phase_ != Phase::kSaving;
  if (late && phase_ == Phase::kSealedSaving) {
    for (const auto& [shard, ordered] : round_waiting_) unsaved_.insert(shard);
  }
  round_short_ |= late;
  if (round_waiting_.empty() || late) EndRound();
}

absl::Status Job::OnShardDurable(TaskId task, const v1::ShardDurable& durable) {
  if (!book_ || durable.shard() >= shards_.size() || !active()) return absl::OkStatus();
  const ShardId shard(durable.shard());
  const auto epoch = client::FromProto<ShardEpoch>(durable.epoch());
  const ShardOwner& owner = book_->durable().map[shard.value()];
  const JobServer* const server = shards_.Find(task);
  if (server == nullptr || server->identity != owner.server) {
    if (owner.epoch <= epoch)
      host_->ForeignMessage(task,
                            "ShardDurable of another's shard");  // else it was moved away meanwhile
    return absl::OkStatus();
  }
  if (owner.epoch != epoch)
    return absl::OkStatus();  // of a former state: its file is freed with the others
  const auto waiting = round_waiting_.find(shard);
  const bool ordered = waiting != round_waiting_.end() && waiting->second.epoch == epoch;
  if (durable.has_error() && durable.tried_again()) {
    if (ordered) {
      round_retry_ = absl::StrCat("ps_server/", owner.server, ": ",
                                  client::CleanText(durable.error().message(), kRetryTextMax));
      CheckpointTrouble(absl::UnavailableError(round_retry_));
    }
    return absl::OkStatus();
  }
  if (durable.has_error()) {
    if (ordered) round_waiting_.erase(waiting);
    round_short_ |= ordered;
    if (ordered && phase_ == Phase::kSealedSaving) unsaved_.insert(shard);
    v1::ErrorDetail cause = durable.error();
    CleanCause(&cause);
    const auto code = static_cast<absl::StatusCode>(cause.code());
    // Dropped, assigned anew or ordered again meanwhile: the next round asks again.
    if (code != absl::StatusCode::kCancelled && code != absl::StatusCode::kAborted &&
        code != absl::StatusCode::kNotFound) {
      CheckpointTrouble(
          absl::Status(code, absl::StrCat("ps_server/", owner.server, ": ", cause.message())),
          cause.kind() == "user");
    }
    if (round_ && round_waiting_.empty())
      EndRound();  // who is gone is looked for by the tick: not once for each of many shards
    return absl::OkStatus();
  }
  const v1::ShardFile& file = durable.file();
  const auto name = snapshot::ParseShardFileName(file.file());
  auto done = client::FromProto(file.done()), refused = client::FromProto(file.refused());
  if (!done.ok()) return done.status();
  if (!refused.ok()) return refused.status();
  if (done->FirstAtLeast(plan_->closures()) || refused->FirstAtLeast(plan_->closures()))
    return absl::InvalidArgumentError(
        absl::StrCat("a durable file with closures beyond the plan: shard=", shard.value(),
                     " closures=", plan_->closures()));
  if (!name || name->shard != shard || name->epoch != epoch || name->lsn != file.lsn() ||
      file.sha256().size() != 32 || file.shard() != shard.value() ||
      client::FromProto<ShardEpoch>(file.epoch()) != epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("a durable file that does not fit together: shard=", shard.value(),
                     " file=", client::CleanText(file.file(), 200)));
  }
  if (!ordered && SnapshotsAreFull(shard)) return absl::OkStatus();  // nobody asked for it
  Snapshot snapshot;
  snapshot.folder = CheckpointFolder();
  snapshot.file = file.file();
  snapshot.bytes = file.bytes();
  snapshot.sha256 = file.sha256();
  snapshot.job = id_.uid;
  snapshot.plan_fingerprint = plan_message_.fingerprint();
  snapshot.epoch = epoch;
  snapshot.start = client::FromProto<MapVersion>(file.start());
  snapshot.lsn = file.lsn();
  snapshot.vlsn = file.vlsn();
  snapshot.host = server->host;
  snapshot.done = *std::move(done);
  snapshot.refused = *std::move(refused);
  if (ordered) {
    round_waiting_.erase(waiting);
    // A disk that is slow but works is waited for.
    if (phase_ == Phase::kSealedSaving) seal_deadline_ = host_->Now() + options_.seal_timeout;
  }
  if (!Persist(book_->AddSnapshot(shard, std::move(snapshot)))) return absl::OkStatus();
  if (round_ && round_waiting_.empty()) EndRound();
  return absl::OkStatus();
}

void Job::EndRound() {
  round_ = false;
  round_waiting_.clear();
  TrimArguments();
  WriteManifest();
}

// ---------------------------------------------------------------- manifests

std::optional<v1::Manifest> Job::MakeManifest() const {
  v1::Manifest manifest;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    v1::ShardFile* entry = manifest.add_shards();
    entry->set_shard(p);
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    // Nothing can go on from a manifest with a gap, and it would hide an older one that is whole. A
    // file lies beside its manifest: that of another job fills none.
    if (newest == nullptr || newest->resumed) return std::nullopt;
    entry->set_file(newest->file);
    entry->set_bytes(newest->bytes);
    entry->set_sha256(newest->sha256);
    *entry->mutable_epoch() = client::ToProto(newest->epoch);
    *entry->mutable_start() = client::ToProto(newest->start);
    entry->set_lsn(newest->lsn);
    entry->set_vlsn(newest->vlsn);
    entry->set_host(newest->host);
    *entry->mutable_done() = client::ToProto(newest->done);
    *entry->mutable_refused() = client::ToProto(newest->refused);
  }
  manifest.set_job_uid(id_.uid.value());
  manifest.set_job_name(id_.spec.name);
  manifest.set_yaml(id_.yaml);
  manifest.set_seed(id_.spec.training.seed);
  *manifest.mutable_plan() = plan_message_;
  *manifest.mutable_version() = client::ToProto(book_->durable().version);
  manifest.set_complete(snapshot::DoneSetsAreEqual(manifest));
  manifest.set_written_ms(host_->WallMillis());
  epochs_.FillManifest(plan_message_.eval_examples(), &manifest);
  return manifest;
}

void Job::WriteManifest() {
  if (!checkpoints() || phase_ >= Phase::kWriting) return;
  if (manifest_writing_) {
    manifest_again_ = true;
    return;
  }
  std::optional<v1::Manifest> manifest = MakeManifest();
  const bool last = phase_ == Phase::kSaving || phase_ == Phase::kSealedSaving;
  if (phase_ == Phase::kSaving && (!manifest || !EverythingIsSaved())) {
    // A server went away in the middle: the next round follows once every shard is there again.
    next_round_ = host_->Now() + RetryDelay(++manifest_failures_);
    return;
  }
  if (!manifest || (FilesOf(*manifest) == manifest_files_ && !last)) {
    if (phase_ == Phase::kSealedSaving) FinishJob();
    return;
  }
  ReadBackAndSave(*std::move(manifest), last ? std::optional(report_generation_) : std::nullopt);
}

// `last_of`: the reports that it is the last manifest of, unless a rollback made them void
// meanwhile. `unread`: the files that it would have named could not be read back.
void Job::OnManifest(const v1::Manifest& manifest, const absl::StatusOr<Saved>& saved,
                     std::optional<std::uint64_t> last_of, bool unread) {
  manifest_writing_ = false;
  if (ended() || !book_ || phase_ >= Phase::kWriting) return;
  const bool last =
      last_of == report_generation_ && (phase_ == Phase::kSaving || phase_ == Phase::kSealedSaving);
  if (!saved.ok()) {
    const MonoTime again = host_->Now() + RetryDelay(++manifest_failures_);
    next_round_ = phase_ == Phase::kSaving ? again : std::max(next_round_, again);
    CheckpointTrouble(saved.status());
    if (last && phase_ == Phase::kSealedSaving) return FinishJob();
    if (last && unread && phase_ == Phase::kSaving && manifest_failures_ > options_.retries_max)
      return GiveUpLastManifest(saved.status());
    if (std::exchange(manifest_again_, false)) WriteManifest();
    return;
  }
  manifest_failures_ = 0;
  manifest_files_ = FilesOf(manifest);
  checkpoint_.set_number(saved->number);
  checkpoint_.set_uri(saved->uri);
  checkpoint_.set_written_ms(manifest.written_ms());
  const bool complete =
      manifest.complete() && last_of.has_value();  // of the others only the ends were read back
  checkpoint_.set_complete(complete);
  checkpoint_.set_manifests(checkpoint_.manifests() + 1);
  checkpoint_.clear_trouble();
  if (journals()) *Note().mutable_checkpoint() = checkpoint_;
  host_->Log(log::Level::kInfo,
             absl::StrCat("checkpoint ", saved->number, complete ? " (complete)" : "",
                          ": shards=", manifest.shards_size(), " path=", saved->uri),
             id_.spec.name);
  for (const absl::Status& warning : saved->warnings)
    host_->Log(log::Level::kWarning, absl::StrCat("checkpoint: ", warning.message()),
               id_.spec.name);
  // Not while some shard is named by an older file because its newest could not be saved.
  if (checkpoint_trouble_said_ && !round_short_) {
    checkpoint_trouble_said_ = false;
    Event("state", absl::StrCat("checkpoints are written again: checkpoint ", saved->number));
  }
  GiveUpSnapshots(saved->named);
  if (functions_) {
    saved_done_.assign(shards_.size(), IntervalSet());
    for (const v1::ShardFile& entry : manifest.shards()) {
      if (auto done = client::FromProto(entry.done());
          done.ok() && entry.shard() < saved_done_.size())
        saved_done_[entry.shard()] = *std::move(done);
    }
    TrimArguments();
    host_->JobChanged(id_.uid);
  }
  Touch();
  if (last && (phase_ == Phase::kSaving || phase_ == Phase::kSealedSaving)) return FinishJob();
  if (std::exchange(manifest_again_, false)) WriteManifest();
}

// The newest file of each shard holds whatever has succeeded, but for what is reported as lost
// there.
bool Job::EverythingIsSaved() const {
  const DurableState& state = book_->durable();
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->epoch != state.map[p].epoch ||
        !newest->done.ContainsAll(state.succeeded.Minus(state.lost[p])))
      return false;
  }
  return true;
}

// What no kept manifest names, and is not the newest of its shard, is forgotten; then, durably so,
// its file is deleted.
void Job::GiveUpSnapshots(const std::set<std::string>& named) {
  const std::string folder = CheckpointFolder();
  SweepRequest sweep;
  sweep.folder = folder;
  sweep.needed = named;
  Record all;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->resumed) continue;
    std::set<std::string> free;
    for (const Snapshot& known : book_->durable().snapshots[p]) {
      const bool is_named = known.folder == folder && named.contains(known.file);
      // Another job's file serves until one of our own is in a manifest; of another plan's job for
      // good: the seed takes its place under the same plan only.
      const bool is_free =
          known.resumed ? named.contains(newest->file) && !known.replace_ledger : !is_named;
      if (&known != newest && is_free) free.insert(known.Uri());
    }
    sweep.newest[ShardId(p)] = {newest->epoch, newest->lsn};
    if (!free.empty()) AppendRecord(book_->RemoveSnapshots(ShardId(p), free), &all);
    for (const Snapshot& known : book_->durable().snapshots[p]) sweep.needed.insert(known.file);
  }
  if (!Persist(all)) return;
  std::weak_ptr<bool> alive = alive_;
  host_->WhenDurable([this, alive, sweep = std::move(sweep)]() mutable {
    if (alive.expired()) return;
    fs::FileSystem* const disk = &host_->file_system();
    host_->OnFileThread([this, alive, disk, sweep = std::move(sweep)] {
      const auto swept = SweepFolder(*disk, sweep);
      return [this, alive, status = swept.status()] {
        if (!alive.expired() && !status.ok())
          host_->Log(log::Level::kWarning,
                     absl::StrCat("cannot delete old checkpoint files: ", status.message()),
                     id_.spec.name);
      };
    });
  });
}

std::optional<double> Job::checkpoint_age_seconds() const {
  if (!checkpoints() || !active()) return std::nullopt;
  const std::int64_t since_ms = checkpoint_.number() == 0 ? started_ms_ : checkpoint_.written_ms();
  return static_cast<double>(std::max<std::int64_t>(0, host_->WallMillis() - since_ms)) /
         1000;  // the wall clock may have been set back
}

void Job::CheckpointTrouble(const absl::Status& status, bool users) {
  checkpoint_.set_trouble(client::CleanText(status.message(), 1024));
  Touch();
  if (!checkpoints() || phase_ >= Phase::kWriting) return;
  // Once it has worked it is a trouble of the machines: they are given time.
  if ((!users && !SaveErrorIsFinal(status)) || checkpoint_.manifests() != 0) {
    const MonoTime now = host_->Now();
    if (trouble_said_at_ != MonoTime{0} && now - trouble_said_at_ < kTroubleSaidEvery) return;
    trouble_said_at_ = now;
    checkpoint_trouble_said_ = true;
    Event("warning", absl::StrCat("cannot write a checkpoint, retrying: ", checkpoint_.trouble()));
    return;
  }
  // One that was asked for is not left out silently; the one that everybody gets must not stop who
  // did not ask.
  if (id_.spec.checkpoint.given && !grants_stopped()) {
    Fail(MakeError(UserError(absl::Status(status.code(),
                                          absl::StrCat("checkpoint: ", checkpoint_.trouble()))),
                   "user", "coordinator"),
         true);
    return;
  }
  checkpoints_off_ = true;
  round_ = false;
  round_waiting_.clear();
  Event("warning", absl::StrCat("the job continues without checkpoints: ", checkpoint_.trouble()));
  if (!PersistWhole()) return;
  if (phase_ == Phase::kSaving || phase_ == Phase::kSealedSaving) FinishJob();
}

// ---------------------------------------------------------------- the last one

void Job::BeginSaving() {
  ending_ = JobState::kSucceeded;
  if (!checkpoints()) return FinishJob();
  SetPhase(Phase::kSaving);
  round_ = false;  // an answer to it is as good as one to the next
  next_round_ = host_->Now();
  if (!manifest_writing_) TickCheckpoints(next_round_);
}

void Job::BeginSealedSaving() {
  if (!checkpoints() || !book_ || !shards_.placed()) return FinishJob();
  SetPhase(Phase::kSealedSaving);
  seal_deadline_ = host_->Now() + options_.seal_timeout;
  unsaved_.clear();
  BeginRound();
}

// What the end of a job that was sealed had in shards that were not saved then is not in its
// checkpoint: older files of theirs are, if there are any.
void Job::SayUnsaved() {
  if (!checkpoints() || !book_ || !shards_.placed()) return;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->resumed || newest->epoch != book_->durable().map[p].epoch)
      unsaved_.insert(ShardId(p));
  }
  if (unsaved_.empty()) return;
  const std::string& server = book_->durable().map[unsaved_.begin()->value()].server;
  const std::string text = absl::StrCat(
      "the final state of the job is only partly saved: ", unsaved_.size(), " of ", shards_.size(),
      " shards have no file of it, first=", unsaved_.begin()->value(),
      server.empty() ? std::string(" at no server") : absl::StrCat(" at ps_server/", server), "; ",
      checkpoint_.number() == 0
          ? std::string("there is no checkpoint to resume from")
          : absl::StrCat("checkpoint ", checkpoint_.number(),
                         " can be resumed from, which repeats the work done after it"));
  Event("warning", text);
  checkpoint_.set_trouble(text);
  if (journals()) *Note().mutable_checkpoint() = checkpoint_;
}

// ---------------------------------------------------------------- line 21

bool Job::SnapshotRefused(ShardId shard, const v1::ErrorDetail& cause) {
  if (grants_stopped()) return false;
  const std::string uri = shards_[shard].snapshot;
  if (uri.empty() || !IsUnusable(static_cast<absl::StatusCode>(cause.code()))) return false;
  const std::vector<Snapshot>& known = book_->durable().snapshots[shard.value()];
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Snapshot& s) { return s.Uri() == uri; });
  if (found == known.end()) return false;
  if (found->resumed && known.size() == 1) {
    // The seed is not where a resumed job begins: under another plan it never was, and without its
    // file the checkpoint is not whole.
    Fail(MakeError(UserError(absl::FailedPreconditionError(absl::StrCat(
                       "the checkpoint to resume from cannot be used: ", cause.message()))),
                   "user", cause.origin_text()),
         true);
    return true;
  }
  const std::string server = book_->durable().map[shard.value()].server;
  ClosureBook::MapChange change;
  AppendRecord(book_->RemoveSnapshots(shard, {uri}), &change.record);
  ClosureBook::MapChange rolled = book_->Rollback(shard, server);
  AppendRecord(rolled.record, &change.record);
  change.assigns = std::move(rolled.assigns);
  change.map_changed = true;
  const std::optional<Snapshot>& next = change.assigns.front().snapshot;
  Event("rollback", absl::StrCat("shard ", shard.value(),
                                 " cannot be restored from its snapshot: ", cause.message(), "; ",
                                 next ? absl::StrCat("the previous snapshot is used: ", next->file)
                                      : "the shard starts from its seed"));
  if (!Persist(change.record)) return true;
  ApplyChange(change);
  AfterRollback("a shard was restored from an older snapshot");
  return true;
}

void Job::SayRollback(const std::string& why, const ClosureBook::MapChange& change) {
  if (change.assigns.empty()) return;
  std::size_t restored = 0;
  IntervalSet reruns;  // what is open now may have to be run again, too
  for (const ClosureBook::AssignOrder& order : change.assigns) {
    restored += order.snapshot.has_value();
    reruns.UnionWith(book_->durable().todo[order.shard.value()]);
  }
  const std::size_t seeds = change.assigns.size() - restored;
  std::string where;
  if (restored > 0)
    where = absl::StrCat(restored, restored == 1 ? " shard goes" : " shards go",
                         " back to the newest snapshot");
  if (seeds > 0)
    absl::StrAppend(&where, where.empty() ? "" : ", ", seeds,
                    seeds == 1 ? " shard goes" : " shards go", " back to the seed");
  const std::string again = reruns.empty()
                                ? "no closure that had ended is"
                                : absl::StrCat("up to ", reruns.size(),
                                               reruns.size() == 1 ? " closure that had ended is"
                                                                  : " closures that had ended are");
  Event("rollback", absl::StrCat(why, ": ", where, "; ", again, " run again there"));
}

// ---------------------------------------------------------------- line 28

// The plan is known: is there a checkpoint of an earlier job of this name to go on from?
void Job::LookForResume() {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, disk, spec = id_.spec.checkpoint, runs = id_.runs_folder,
                       name = id_.spec.name, uid = id_.uid] {
    absl::StatusOr<ResumePoint> point = FindResumePoint(*disk, spec, runs, name, uid);
    return [this, alive, point = std::move(point)] {
      if (alive.expired() || phase_ != Phase::kDescribing || book_ != nullptr || ended()) return;
      if (absl::IsNotFound(point.status())) {
        Event("state", absl::StrCat("nothing to resume from, the job begins at its first step: ",
                                    point.status().message()));
        return BeginPlan();
      }
      if (!point.ok()) {
        // Another setting or other files help, or it is a disk that cannot be read now.
        const bool user =
            BlameOf(point.status()) == Blame::kUser || SaveErrorIsFinal(point.status());
        const absl::Status cause(point.status().code(),
                                 absl::StrCat("checkpoint.resume: ", point.status().message()));
        Fail(MakeError(user ? UserError(cause) : cause, user ? "user" : "internal", "coordinator"),
             user);
        return;
      }
      absl::StatusOr<Resumption> resumption = PlanResumption(*point, plan_message_, id_.uid);
      if (!resumption.ok()) {
        Fail(MakeError(UserError(resumption.status()), "user", "coordinator"), true);
        return;
      }
      for (const absl::Status& passed : point->passed_over)
        Event("warning", absl::StrCat("a newer checkpoint is skipped: ", passed.message()));
      resume_point_ = *point;
      resumption_ = *std::move(resumption);
      BeginPlan();
    };
  });
}

// What a former job has done counts as done; its losses of whole epochs are in the manifest, those
// of a part of one are not known.
void Job::ResumeFrom(const ResumePoint& point, const Resumption& resumption) {
  TakeOverUpdates(point, resumption.same_plan);
  if (const IntervalSet& dead = book_->durable().dead; !dead.empty()) {
    // A training job's user cancels no closure: what its shards refuse are updates that were lost
    // with a server.
    std::string which = dead.ToString();
    if (which.size() > kLostTextMax) which = absl::StrCat(which.substr(0, kLostTextMax), "...");
    Event("lost", absl::StrCat("updates that the earlier job lost with a server stay lost: ",
                               dead.size(), dead.size() == 1 ? " closure is" : " closures are",
                               " not run again: ", which));
  }
  epochs_.Resume(book_->durable().succeeded, book_->durable().dead, point.manifest,
                 resumption.same_plan, AccountContext());
  checkpoint_.set_resumed_from(point.uri);
  Event("state", absl::StrCat("resumed at step ", epochs_.steps_done(), " of ",
                              epochs_.steps_total(), " from ", point.uri, ": ", resumption.text));
  SayNotReproducible("it resumes from a checkpoint whose shards were saved at different moments");
}

}  // namespace evergrad::coordinator
