// Tests manifests. A reader finds the old manifest or the new one, and never a part of one. A
// damaged manifest is skipped, and its name is reported.
#include "common/snapshot/manifest.h"

#include "common/snapshot/layout.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"

namespace evergrad::snapshot {
namespace {

TEST_CASE("a manifest that was written can be read, and its files match it") {
  fs::MemoryFileSystem files;
  const v1::Manifest manifest = SmallManifest(files);
  REQUIRE(WriteManifest(files, kFolder, manifest).ok());
  CHECK(WriteManifest(files, kFolder, manifest).code() == absl::StatusCode::kAlreadyExists);
  const auto read = ReadManifest(files, fs::JoinUri(kFolder, ManifestName(12)));
  REQUIRE(read.ok());
  CHECK(read->SerializeAsString() == manifest.SerializeAsString());
  for (int i = 0; i < 2; ++i) {
    CHECK(CheckShardOf(files, kFolder, *read, i, true).ok());
    CHECK(CheckShardOf(files, kFolder, *read, i, false).ok());
  }
}

TEST_CASE("every flipped bit and every truncation of a manifest is detected and named") {
  fs::MemoryFileSystem files;
  const std::string whole = *EncodeManifest(SmallManifest(files));
  int quiet = 0;
  const auto check = [&](const std::string& bytes) {
    const absl::Status status = DecodeManifest(bytes, "file:///m").status();
    if (status.code() != absl::StatusCode::kDataLoss ||
        status.message().find("path=file:///m offset=") == std::string::npos)
      ++quiet;
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    check(whole.substr(0, at));
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      check(bytes);
    }
  }
  check(whole + "x");
  CHECK(quiet == 0);
  CHECK(DecodeManifest(whole, "file:///m").ok());
}

TEST_CASE("a manifest of another version is refused by its number") {
  fs::MemoryFileSystem files;
  std::string bytes = *EncodeManifest(SmallManifest(files));
  const std::span<std::byte> preamble =
      std::as_writable_bytes(std::span(bytes.data(), kPreambleBytes));
  Store(preamble, 8, 2u);
  Seal(preamble);
  const absl::Status status = DecodeManifest(bytes, "file:///m").status();
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK(status.message().find("version=2") != std::string::npos);
}

TEST_CASE("an inconsistent manifest is neither written nor read") {
  const struct {
    const char* words;
    std::function<void(v1::Manifest*)> change;
  } cases[] = {
      {"shards", [](auto* m) { m->clear_shards(); }},
      {"shards", [](auto* m) { m->mutable_shards()->RemoveLast(); }},
      {"order of shards", [](auto* m) { m->mutable_shards()->SwapElements(0, 1); }},
      {"duplicate shard",
       [](auto* m) {
         m->mutable_shards(1)->set_shard(0), m->mutable_plan()->mutable_shards(1)->set_shard(0);
       }},
      {"name", [](auto* m) { m->mutable_shards(0)->set_file("../../etc/passwd"); }},
      {"does not match its entry",
       [](auto* m) { m->mutable_shards(0)->set_lsn(7), m->mutable_shards(0)->set_vlsn(7); }},
      {"32 bytes", [](auto* m) { m->mutable_shards(0)->set_sha256("x"); }},
      {"minimum", [](auto* m) { m->mutable_shards(0)->set_bytes(5); }},
      {"vlsn", [](auto* m) { m->mutable_shards(0)->set_vlsn(~0ull); }},
      {"malformed", [](auto* m) { m->mutable_shards(0)->mutable_done()->add_bounds(3); }},
      {"the shard has no file", [](auto* m) { m->mutable_shards(0)->clear_file(); }},
      {"complete", [](auto* m) { m->set_complete(false); }},
      {"complete", [](auto* m) { m->mutable_shards(1)->mutable_done()->clear_bounds(); }},
  };
  fs::MemoryFileSystem files;
  const v1::Manifest good = SmallManifest(files);
  for (const auto& c : cases) {
    INFO(c.words);
    v1::Manifest bad = good;
    c.change(&bad);
    const absl::Status status = EncodeManifest(bad).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message().find(c.words) != std::string::npos);
  }
  // If a shard has no durable file, the manifest has an entry for it that names no file.
  v1::Manifest seed = good;
  seed.mutable_shards(1)->Clear();
  seed.mutable_shards(1)->set_shard(1);
  seed.set_complete(false);
  CHECK(EncodeManifest(seed).ok());
}

TEST_CASE("the newest readable manifest is used, and damaged ones are skipped and named") {
  fs::MemoryFileSystem files;
  CHECK(FindNewestManifest(files, kFolder).status().code() == absl::StatusCode::kNotFound);
  for (const std::uint64_t number : {1u, 2u, 10u})
    REQUIRE(WriteManifest(files, kFolder, SmallManifest(files, number)).ok());
  CHECK(*ListManifests(files, kFolder) == std::vector<std::uint64_t>{1, 2, 10});
  CHECK(FindNewestManifest(files, kFolder)->manifest.number() == 10);
  REQUIRE(files.Damage(fs::JoinUri(kFolder, ManifestName(10)), 100, std::byte{1}).ok());
  const auto newest = FindNewestManifest(files, kFolder);
  REQUIRE(newest.ok());
  CHECK(newest->manifest.number() == 2);
  REQUIRE(newest->passed_over.size() == 1);
  CHECK(newest->passed_over[0].message().find(ManifestName(10)) != std::string::npos);
  REQUIRE(files.Truncate(fs::JoinUri(kFolder, ManifestName(2)), 10).ok());
  // A manifest under the name of another manifest must not be accepted.
  const std::string first = *fs::ReadWhole(files, fs::JoinUri(kFolder, ManifestName(1)), 1 << 20);
  REQUIRE(files.Remove(fs::JoinUri(kFolder, ManifestName(1))).ok());
  REQUIRE(fs::WriteWhole(files, fs::JoinUri(kFolder, ManifestName(3)), first).ok());
  const absl::Status none = FindNewestManifest(files, kFolder).status();
  CHECK(none.code() == absl::StatusCode::kNotFound);
  for (const std::uint64_t number : {2u, 3u, 10u})
    CHECK(none.message().find(ManifestName(number)) != std::string::npos);
}

TEST_CASE("a file that does not match its manifest is named with the difference") {
  const struct {
    const char* words;
    std::function<void(v1::ShardFileHeader*, v1::ShardLedger*)> change;
  } cases[] = {
      {"job", [](auto* h, auto*) { h->set_job_uid(1); }},
      {"plan", [](auto* h, auto*) { h->set_plan_fingerprint("other"); }},
      {"epoch", [](auto* h, auto*) { h->mutable_epoch()->set_n(8); }},
      {"start", [](auto* h, auto*) { h->mutable_start()->set_n(8); }},
      {"lsn", [](auto* h, auto*) { h->set_lsn(999); }},
      {"vlsn", [](auto* h, auto*) { h->set_vlsn(1); }},
      {"cut", [](auto* h, auto*) { h->mutable_dense()->mutable_variable()->set_name("other"); }},
      {"done", [](auto*, auto* l) { l->mutable_done()->clear_bounds(); }},
      {"refused", [](auto*, auto* l) { l->mutable_refused()->clear_bounds(); }},
  };
  for (const auto& c : cases) {
    INFO(c.words);
    fs::MemoryFileSystem files;
    v1::Manifest manifest = SmallManifest(files);
    const std::string uri = fs::JoinUri(kFolder, manifest.shards(0).file());
    REQUIRE(files.Remove(uri).ok());
    v1::ShardFileHeader header = SmallHeader(0);
    v1::ShardLedger ledger = SmallLedger();
    c.change(&header, &ledger);
    const FileDigest digest = WriteSmall(files, uri, header, ledger);
    manifest.mutable_shards(0)->set_bytes(digest.bytes);
    manifest.mutable_shards(0)->set_sha256(digest.sha256.data(), digest.sha256.size());
    for (const bool whole : {false, true}) {
      const absl::Status status = CheckShardOf(files, kFolder, manifest, 0, whole).status();
      CHECK(status.code() == absl::StatusCode::kDataLoss);
      CHECK(status.message().find(absl::StrCat("manifest: ", c.words, ": path=")) !=
            std::string::npos);
    }
    CHECK(CheckShardOf(files, kFolder, manifest, 1, true).ok());
  }
  fs::MemoryFileSystem files;
  const v1::Manifest manifest = SmallManifest(files);
  const std::string uri = fs::JoinUri(kFolder, manifest.shards(0).file());
  REQUIRE(files.Damage(uri, manifest.shards(0).bytes() / 2, std::byte{1}).ok());
  CHECK(CheckShardOf(files, kFolder, manifest, 0, true).status().code() ==
        absl::StatusCode::kDataLoss);
  REQUIRE(files.Remove(uri).ok());
  CHECK(CheckShardOf(files, kFolder, manifest, 0, false).status().code() ==
        absl::StatusCode::kNotFound);
}

TEST_CASE("a shard file matches the manifest of a job that sends 16 bits") {
  fs::MemoryFileSystem files;
  v1::Manifest manifest = SmallManifest(files);
  for (v1::ShardSpec& shard : *manifest.mutable_plan()->mutable_shards())
    shard.mutable_variable()->set_wire_dtype(v1::DTYPE_BFLOAT16);
  for (const bool whole : {false, true})
    CHECK(CheckShardOf(files, kFolder, manifest, 0, whole).ok());
}

// Like scenario K1 of tests/chaos, but small. Power may be lost after any step of the commit, and
// the disk may keep any part of the unsynced bytes.
TEST_CASE("a loss of power at any step of writing a manifest leaves the old one or the new one") {
  int olds = 0, news = 0;
  for (const char* failpoint : {"fs.write", "fs.sync", "fs.link", "fs.sync_folder", "none"}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      fault::Failpoints failpoints;
      fs::MemoryFileSystem files({&failpoints});
      REQUIRE(WriteManifest(files, kFolder, SmallManifest(files, 1)).ok());
      const v1::Manifest second = SmallManifest(files, 2);
      if (failpoint != std::string("none"))
        REQUIRE(failpoints.Arm(absl::StrCat(failpoint, "=error"), 1).ok());
      const bool promised = WriteManifest(files, kFolder, second).ok();
      files.Crash(seed);
      const auto newest = FindNewestManifest(files, kFolder);
      REQUIRE(newest.ok());
      CHECK(newest->passed_over.empty());
      if (promised) CHECK(newest->manifest.number() == 2);
      ++(newest->manifest.number() == 2 ? news : olds);
      for (int i = 0; i < 2; ++i)
        CHECK(CheckShardOf(files, kFolder, newest->manifest, i, true).ok());
    }
  }
  CHECK(olds == 40);
  CHECK(news == 10);
}

}  // namespace
}  // namespace evergrad::snapshot
