#include "coordinator/jobs/manifest_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "common/snapshot/manifest.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kSha256Bytes = 32;

std::vector<std::string> FilesOf(const v1::Manifest& manifest) {
  std::vector<std::string> files;
  for (const v1::ShardFile& entry : manifest.shards())
    files.push_back(entry.file() + entry.sha256());
  return files;
}

}  // namespace

ManifestWriter::ManifestWriter(const JobPart& part, const EpochAccount* epochs)
    : JobPart(part),
      epochs_(epochs),
      folder_(CheckpointFolder(id_.spec.checkpoint, id_.runs_folder, id_.spec.name, id_.uid)) {}

std::optional<v1::Manifest> ManifestWriter::Make() const {
  v1::Manifest manifest;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    v1::ShardFile* entry = manifest.add_shards();
    entry->set_shard(p);
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    // A manifest needs a file of every shard. No job can resume from a manifest that lacks a shard,
    // and such a manifest would hide an older complete manifest. A manifest names only files in its
    // own folder, so files of another job cannot be used.
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
  manifest.set_owner(id_.owner);
  manifest.set_yaml(id_.yaml);
  manifest.set_seed(id_.spec.training.seed);
  *manifest.mutable_plan() = plan_message_;
  *manifest.mutable_version() = client::ToProto(book_->durable().version);
  manifest.set_complete(snapshot::DoneSetsAreEqual(manifest));
  manifest.set_written_ms(host_->WallMillis());
  epochs_->FillManifest(plan_message_.eval_examples(), &manifest);
  return manifest;
}

bool ManifestWriter::IsNewest(const v1::Manifest& manifest) const {
  return FilesOf(manifest) == files_;
}

void ManifestWriter::Write(v1::Manifest manifest, bool whole, const Done& done) {
  busy_ = true;
  ReadBack::Options options;
  options.whole = whole;
  for (const std::string& file : files_)
    options.read_before.insert(file.substr(0, file.size() - std::min(file.size(), kSha256Bytes)));
  left_ = manifest.shards_size();
  Step(std::make_shared<ReadBack>(folder_, std::move(manifest), std::move(options)), done);
}

// `reading` is shared with the file thread, which alone uses it until its step has ended.
void ManifestWriter::Step(const std::shared_ptr<ReadBack>& reading, const Done& done) {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnCheckpointThread([this, alive, disk, reading, done, folder = folder_,
                             keep = id_.spec.checkpoint.keep,
                             here = host_->HostName()]() -> std::function<void()> {
    if (!reading->Step(*disk)) {
      return [this, alive, reading, done] {
        if (alive.expired()) return;
        left_ = reading->total() - reading->done();
        if (stopped_) {
          busy_ = false;
          return;
        }
        job_.Touch();
        Step(reading, done);
      };
    }
    const absl::Status unread = UnreadError(reading->unread(), reading->total(), folder, here);
    absl::StatusOr<Saved> saved = unread.ok()
                                      ? SaveManifest(*disk, {folder, reading->manifest(), keep})
                                      : absl::StatusOr<Saved>(unread);
    return [this, alive, reading, done, unread, saved = std::move(saved)] {
      if (alive.expired()) return;
      busy_ = false;
      if (stopped_) return;
      if (saved.ok()) files_ = FilesOf(reading->manifest());
      done(reading->manifest(), saved, !unread.ok());
    };
  });
}

// Removes the snapshots that no kept manifest names and that are not the newest of their shard. The
// files of these snapshots are deleted once the removal is durable.
void ManifestWriter::ForgetOlder(const std::set<std::string>& named) {
  SweepRequest sweep;
  sweep.folder = folder_;
  sweep.needed = named;
  Record all;
  for (std::uint32_t p = 0; p < shards_.size(); ++p) {
    const Snapshot* newest = book_->NewestSnapshot(ShardId(p));
    if (newest == nullptr || newest->resumed) continue;
    std::set<std::string> free;
    for (const Snapshot& known : book_->durable().snapshots[p]) {
      const bool is_named = known.folder == folder_ && named.contains(known.file);
      // A file of another job is kept until a manifest has a file of this job. A file of a job with
      // another plan is always kept, because the initial values from this job's seed cannot replace
      // the values in the file.
      const bool is_free =
          known.resumed ? named.contains(newest->file) && !known.replace_ledger : !is_named;
      if (&known != newest && is_free) free.insert(known.Uri());
    }
    sweep.newest[ShardId(p)] = {newest->epoch, newest->lsn};
    if (!free.empty()) AppendRecord(book_->RemoveSnapshots(ShardId(p), free), &all);
    for (const Snapshot& known : book_->durable().snapshots[p]) sweep.needed.insert(known.file);
  }
  if (!job_.Persist(all)) return;
  std::weak_ptr<bool> alive = alive_;
  host_->WhenDurable([this, alive, sweep = std::move(sweep)]() mutable {
    if (alive.expired()) return;
    fs::FileSystem* const disk = &host_->file_system();
    host_->OnCheckpointThread([this, alive, disk, sweep = std::move(sweep)] {
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

}  // namespace evergrad::coordinator
