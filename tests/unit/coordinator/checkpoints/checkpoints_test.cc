// Tests that manifests are saved, that old manifests are deleted, and that unneeded shard files are
// swept. Damage, full disks, races and losses of power occur in between.
#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/coordinator/checkpoints/checkpoints_fixture.h"

namespace evergrad::coordinator {
namespace {

const char kFolder[] = "file:///runs/mnist-0000000000000001/checkpoint";
std::string Uri(const std::string& name) { return fs::JoinUri(kFolder, name); }

TEST_CASE("a checkpoint is in the runs folder, or in its own folder under the job's directory") {
  config::CheckpointSpec spec;
  CHECK(CheckpointFolder(spec, "/runs/mnist-0000000000000007", "mnist", JobUid(7)) ==
        "/runs/mnist-0000000000000007/checkpoint");
  spec.directory = "file:///shared/";
  CHECK(CheckpointFolder(spec, "/runs/mnist-0000000000000007", "mnist", JobUid(7)) ==
        "file:///shared/mnist-0000000000000007");
}

TEST_CASE(
    "manifests are numbered upwards, the newest `keep` manifests remain, and their files are "
    "listed") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  for (std::uint64_t n = 1; n <= 5; ++n) {
    job.lsn = n;
    const Saved saved = job.Save(files, 3);
    CHECK(saved.number == n);
    CHECK(saved.uri == Uri(snapshot::ManifestName(n)));
    CHECK(saved.warnings.empty());
    CHECK(saved.named.size() == 2 * std::min<std::uint64_t>(n, 3));
    CHECK(saved.named.count(snapshot::ShardFileName(ShardId(1), {1, 1}, n)) == 1);
  }
  CHECK(*snapshot::ListManifests(files, kFolder) == std::vector<std::uint64_t>{3, 4, 5});
  // The new manifest names the same two files as manifest 5. Only the newest manifest is kept.
  CHECK(job.Save(files, 1).named.size() == 2);
  CHECK(*snapshot::ListManifests(files, kFolder) == std::vector<std::uint64_t>{6});
  const auto read = snapshot::ReadManifest(files, Uri(snapshot::ManifestName(6)));
  REQUIRE(read.ok());
  CHECK(read->number() == 6);
}

TEST_CASE("the coordinator verifies that a manifest is complete") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  job.done = {IntervalSet{0, 1}, IntervalSet{0}};
  v1::Manifest manifest = job.Cut(files);
  manifest.set_complete(true);
  REQUIRE(SaveManifest(files, {kFolder, manifest, 3}).ok());
  CHECK_FALSE(snapshot::ReadManifest(files, Uri(snapshot::ManifestName(1)))->complete());
}

TEST_CASE(
    "damaged manifests do not count as kept ones and are reported, and damaged old ones are "
    "removed") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  for (job.lsn = 1; job.lsn <= 3; ++job.lsn) job.Save(files, 3);
  REQUIRE(files.Damage(Uri(snapshot::ManifestName(2)), 100, std::byte{1}).ok());
  job.lsn = 4;
  Saved saved = job.Save(files, 3);
  CHECK(*snapshot::ListManifests(files, kFolder) == std::vector<std::uint64_t>{1, 2, 3, 4});
  REQUIRE(saved.warnings.size() == 1);
  CHECK(absl::IsDataLoss(saved.warnings[0]));
  CHECK(saved.named.size() == 6);  // two files for each of the manifests 1, 3 and 4
  job.lsn = 5;
  saved = job.Save(files, 2);
  CHECK(*snapshot::ListManifests(files, kFolder) == std::vector<std::uint64_t>{4, 5});
  CHECK(saved.warnings.empty());
}

TEST_CASE("a number in use is skipped, and a number above the limit is refused") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  const v1::Manifest manifest = job.Cut(files);
  // A file system that leaves the manifest with the highest number out of its listings.
  class Hiding final : public fs::FileSystem {
   public:
    explicit Hiding(fs::FileSystem& inner) : inner_(inner) {}
    absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
      return inner_.Create(uri);
    }
    absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
      return inner_.Open(uri);
    }
    absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
      auto entries = inner_.List(uri);
      if (entries.ok()) entries->erase(entries->begin());
      return entries;
    }
    absl::Status Remove(absl::string_view uri) override { return inner_.Remove(uri); }
    absl::StatusOr<bool> Exists(absl::string_view uri) override { return inner_.Exists(uri); }
    absl::Status MakeFolders(absl::string_view uri) override { return inner_.MakeFolders(uri); }

   private:
    fs::FileSystem& inner_;
  } hiding(files);
  REQUIRE(SaveManifest(files, {kFolder, manifest, 3})->number == 1);
  CHECK(SaveManifest(hiding, {kFolder, manifest, 3})->number == 2);

  REQUIRE(fs::WriteWhole(files, Uri(snapshot::ManifestName(~0ull)), "x").ok());
  const auto refused = SaveManifest(files, {kFolder, manifest, 3});
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(SaveErrorIsFinal(refused.status()));
}

TEST_CASE(
    "an invalid manifest is not written, a full disk keeps the old ones, and permanent errors are "
    "marked") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  job.Save(files);
  v1::Manifest none = job.Cut(files);
  none.mutable_shards()->RemoveLast();
  CHECK(absl::IsInvalidArgument(SaveManifest(files, {kFolder, none, 3}).status()));
  job.lsn = 2;
  const v1::Manifest next = job.Cut(files);
  files.SetBytesMax(files.bytes());
  const auto full = SaveManifest(files, {kFolder, next, 1});
  CHECK(absl::IsResourceExhausted(full.status()));
  CHECK_FALSE(SaveErrorIsFinal(full.status()));
  CHECK(*snapshot::ListManifests(files, kFolder) == std::vector<std::uint64_t>{1});
  CHECK(SaveErrorIsFinal(absl::PermissionDeniedError("")));
  CHECK(SaveErrorIsFinal(SaveManifest(files, {"s3://bucket/x", next, 1}).status()));
  CHECK_FALSE(SaveErrorIsFinal(absl::DataLossError("")));
}

TEST_CASE("a sweep deletes only unneeded files that are not newer than the known ones") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  for (job.lsn = 1; job.lsn <= 4; ++job.lsn) job.Cut(files);
  job.epoch = {1, 2};  // a rollback begins a new epoch, with a lower lsn
  job.lsn = 1;
  job.Cut(files);
  const auto name = [](std::uint32_t shard, ShardEpoch epoch, std::uint64_t lsn) {
    return snapshot::ShardFileName(ShardId(shard), epoch, lsn);
  };
  for (const char* other : {"notes.txt", "shard-1.egshard", "manifest-000000000001.egmanifest"})
    REQUIRE(fs::WriteWhole(files, Uri(other), "x").ok());
  SweepRequest request{kFolder, {name(0, {1, 1}, 2)}, {{ShardId(0), {ShardEpoch{1, 1}, 3}}}};
  CHECK(*SweepFolder(files, request) == 2);
  CHECK(Names(files, kFolder) ==
        std::vector<std::string>{
            "manifest-000000000001.egmanifest", "notes.txt", "shard-00000.epoch-1-1.lsn-2.egshard",
            "shard-00000.epoch-1-1.lsn-4.egshard", "shard-00000.epoch-1-2.lsn-1.egshard",
            "shard-00001.epoch-1-1.lsn-1.egshard", "shard-00001.epoch-1-1.lsn-2.egshard",
            "shard-00001.epoch-1-1.lsn-3.egshard", "shard-00001.epoch-1-1.lsn-4.egshard",
            "shard-00001.epoch-1-2.lsn-1.egshard", "shard-1.egshard"});
  request.newest = {{ShardId(0), {ShardEpoch{1, 2}, 1}}, {ShardId(1), {ShardEpoch{1, 2}, 1}}};
  request.needed = {name(0, {1, 2}, 1), name(1, {1, 2}, 1)};
  CHECK(*SweepFolder(files, request) == 6);
  CHECK(*SweepFolder(files, request) == 0);
  CHECK(Count(files, kFolder, "shard-0") == 2);
  CHECK(*SweepFolder(files, {"file:///nowhere", {}, {}}) == 0);
}

TEST_CASE("a kept manifest with a temporary read error blocks every sweep of the folder") {
  fs::MemoryFileSystem files;
  SavedJob job{kFolder};
  for (job.lsn = 1; job.lsn <= 2; ++job.lsn) job.Save(files);
  class Busy final : public fs::FileSystem {
   public:
    explicit Busy(fs::FileSystem& inner) : inner_(inner) {}
    absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
      return inner_.Create(uri);
    }
    absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
      if (fs::NameOf(uri) == snapshot::ManifestName(1))
        return absl::ResourceExhaustedError("too many open files");
      return inner_.Open(uri);
    }
    absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
      return inner_.List(uri);
    }
    absl::Status Remove(absl::string_view uri) override { return inner_.Remove(uri); }
    absl::StatusOr<bool> Exists(absl::string_view uri) override { return inner_.Exists(uri); }
    absl::Status MakeFolders(absl::string_view uri) override { return inner_.MakeFolders(uri); }

   private:
    fs::FileSystem& inner_;
  } busy(files);
  job.lsn = 3;
  const auto saved = SaveManifest(busy, {kFolder, job.Cut(files), 3});
  REQUIRE(saved.ok());
  CHECK(saved->named.count(snapshot::ShardFileName(ShardId(0), {1, 1}, 1)) == 1);
  CHECK(saved->warnings.size() == 1);
}

TEST_CASE(
    "after a loss of power during save, delete or sweep the newest readable manifest is whole and "
    "not older than promised") {
  const char* const points[] = {"fs.write", "fs.sync", "fs.link", "fs.sync_folder", "fs.remove"};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    fault::Failpoints failpoints;
    fs::MemoryFileSystem files({.failpoints = &failpoints});
    SavedJob job{kFolder};
    std::uint64_t promised = 0;
    const std::string point = points[seed % 5];
    const auto arm = [&](std::uint64_t hit) {
      REQUIRE(failpoints.Arm(absl::StrCat(point, "=", hit, "*error"), seed).ok());
    };
    // The first saves succeed. Then one step of a save fails, and the power is lost.
    for (job.lsn = 1; job.lsn <= 6; ++job.lsn) {
      arm(1000);
      const v1::Manifest manifest = job.Cut(files);
      if (job.lsn == 2 + seed / 15) arm(1 + seed / 5 % 3);
      const auto saved = SaveManifest(files, {kFolder, manifest, 2});
      if (!saved.ok()) break;
      promised = saved->number;
      const auto key = std::pair(job.epoch, job.lsn);
      if (!SweepFolder(files, {kFolder, saved->named, {{ShardId(0), key}, {ShardId(1), key}}}).ok())
        break;
    }
    files.Crash(seed);
    arm(1000);
    INFO("seed " << seed);
    const auto newest = snapshot::FindNewestManifest(files, kFolder);
    REQUIRE(newest.ok());
    CHECK(newest->manifest.number() >= promised);
    for (int i = 0; i < 2; ++i)
      CHECK(snapshot::CheckShardOf(files, kFolder, newest->manifest, i, true).status() ==
            absl::OkStatus());
    // Saves after the loss of power must succeed.
    job.lsn = 9;
    CHECK(SaveManifest(files, {kFolder, job.Cut(files), 2}).ok());
  }
}

}  // namespace
}  // namespace evergrad::coordinator
