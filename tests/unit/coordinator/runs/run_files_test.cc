// Tests the files of a run: how they are received in parts, read back, listed and read. The cases
// include damage, wrong orders, wrong names and wrong sizes.
#include "coordinator/runs/run_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/fs/file.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;

std::string Sha256Of(const std::string& bytes) {
  snapshot::Sha256 hash;
  hash.Update(snapshot::BytesOf(bytes));
  const auto value = hash.Value();
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

v1::RunFileChunk Chunk(const std::string& name, const std::string& whole, std::uint64_t offset,
                       std::size_t bytes) {
  v1::RunFileChunk chunk;
  chunk.set_name(name);
  chunk.set_offset(offset);
  chunk.set_data(whole.substr(offset, bytes));
  chunk.set_crc32c(snapshot::Crc32c(snapshot::BytesOf(chunk.data())));
  chunk.set_bytes(whole.size());
  if (offset + chunk.data().size() == whole.size()) chunk.set_sha256(Sha256Of(whole));
  return chunk;
}

v1::RunFileInfo Info(const std::string& name, const std::string& whole) {
  v1::RunFileInfo info;
  info.set_name(name);
  info.set_bytes(whole.size());
  info.set_sha256(Sha256Of(whole));
  return info;
}

std::size_t FilesIn(const std::string& folder) {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    n += entry.is_regular_file();
  return n;
}

const std::string kWhole = "the weights of a model, in three parts";

TEST_CASE("a received file appears under its name after its last part, if the digest matches") {
  const test::TempFolder folder;
  RunFileReceiver receiver(folder.path());
  for (const std::string name : {"weights.npz", "model/vocabularies.json"}) {
    CHECK(*receiver.Take(Chunk(name, kWhole, 0, 10)) == 10);
    CHECK_FALSE(fs::Exists(folder / name));
    CHECK(*receiver.Take(Chunk(name, kWhole, 10, 10)) == 20);
    // A worker that has lost its session sends the file once more from its first byte.
    CHECK(*receiver.Take(Chunk(name, kWhole, 0, 30)) == 30);
    CHECK_FALSE(fs::Exists(folder / name));
    CHECK(*receiver.Take(Chunk(name, kWhole, 30, 30)) == kWhole.size());
    CHECK(*fs::ReadFile(folder / name, 1000) == kWhole);
  }
  CHECK(FilesIn(folder.path()) == 2);
  // A file that an earlier attempt has left is replaced.
  CHECK(*receiver.Take(Chunk("weights.npz", "x", 0, 1)) == 1);
  CHECK(*fs::ReadFile(folder / "weights.npz", 1000) == "x");
}

TEST_CASE("a part that is damaged, out of order or under another name leaves no file") {
  const test::TempFolder folder;
  RunFileReceiver receiver(folder.path());
  const auto refused = [&](v1::RunFileChunk chunk, absl::StatusCode code) {
    const auto taken = receiver.Take(chunk);
    CHECK(taken.status().code() == code);
    CHECK(FilesIn(folder.path()) == 0);
  };
  for (const std::string name :
       {"../weights.npz", "/etc/passwd", "result.json", "weights.npz/", "", "model/../weights.npz"})
    refused(Chunk(name, kWhole, 0, 10), absl::StatusCode::kInvalidArgument);
  // A chunk that is not at the start of the file needs the chunks before it.
  refused(Chunk("weights.npz", kWhole, 10, 10), absl::StatusCode::kInvalidArgument);

  v1::RunFileChunk flipped = Chunk("weights.npz", kWhole, 0, 10);
  flipped.mutable_data()->at(3) ^= 1;
  refused(flipped, absl::StatusCode::kDataLoss);

  REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());
  // The bytes between this chunk and the former one are missing.
  refused(Chunk("weights.npz", kWhole, 20, 10), absl::StatusCode::kInvalidArgument);
  REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());
  refused(Chunk("weights.safetensors", kWhole, 10, 10), absl::StatusCode::kInvalidArgument);
  REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());
  v1::RunFileChunk more = Chunk("weights.npz", kWhole, 10, 100);
  more.set_data(more.data() + "and more");
  more.set_crc32c(snapshot::Crc32c(snapshot::BytesOf(more.data())));
  refused(more, absl::StatusCode::kInvalidArgument);

  REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());
  v1::RunFileChunk other = Chunk("weights.npz", kWhole, 10, 100);
  other.set_sha256(Sha256Of("something else"));
  refused(other, absl::StatusCode::kDataLoss);
  // After these errors the receiver must still accept the whole file.
  REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 100)).ok());
  CHECK(FilesIn(folder.path()) == 1);
}

TEST_CASE("a receiver that ends in mid-file or is out of space leaves no file and reports it") {
  const test::TempFolder folder;
  {
    RunFileReceiver receiver(folder.path());
    REQUIRE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());
    CHECK(FilesIn(folder.path()) == 1);
  }
  CHECK(FilesIn(folder.path()) == 0);
  // A write to /dev/full fails, as on a disk without space. The link has the name of the hidden
  // file that the receiver opens.
  if (!fs::Exists("/dev/full")) return;
  std::filesystem::create_symlink("/dev/full", folder / ".weights.npz.receiving");
  RunFileReceiver receiver(folder.path());
  CHECK_FALSE(receiver.Take(Chunk("weights.npz", kWhole, 0, 10)).ok());  // no link is followed
}

TEST_CASE("files are read in bounded parts, and an absent, shorter or changed file is named") {
  const test::TempFolder folder;
  std::ofstream(folder / "weights.npz") << kWhole;
  std::ofstream(folder / "weights.safetensors") << kWhole << kWhole;
  const auto check = [&](std::vector<v1::RunFileInfo> files, int* steps = nullptr) {
    RunFileCheck reading(folder.path(), std::move(files), 16);
    int n = 1;
    while (!reading.Step()) REQUIRE(++n < 100);
    if (steps != nullptr) *steps = n;
    return reading.status();
  };
  int steps = 0;
  CHECK(check({Info("weights.npz", kWhole), Info("weights.safetensors", kWhole + kWhole)}, &steps)
            .ok());
  CHECK(check({}).ok());
  CHECK(absl::IsNotFound(check({Info("model/vocabularies.json", kWhole)})));
  CHECK_THAT(std::string(check({Info("weights.npz", "other")}).message()),
             Contains("want=5 got=38"));
  std::string same_size = kWhole;
  same_size[0] = 'T';
  const absl::Status other = check({Info("weights.npz", same_size)});
  CHECK(absl::IsDataLoss(other));
  CHECK_THAT(std::string(other.message()), Contains("digest") && Contains("weights.npz"));
  CHECK(absl::IsInvalidArgument(check({Info("../secret", kWhole)})));
}

TEST_CASE(
    "a listing has the existing files of a fixed list with their digests, and their parts can be "
    "read") {
  const test::TempFolder folder;
  std::ofstream(folder / "result.json") << kWhole;
  std::ofstream(folder / "weights.npz") << kWhole;
  std::ofstream(folder / "secret.txt") << kWhole;
  // A folder with the name of a file of a run.
  std::filesystem::create_directory(folder / "report.html");
  v1::RunFileInfo known = Info("weights.npz", kWhole);
  known.set_sha256(std::string(32, 'k'));
  RunFileListing listing(folder.path(), {known}, 16);
  while (!listing.Step()) {
  }
  REQUIRE(listing.files().size() == 2);
  CHECK(listing.files()[0].name() == "result.json");
  CHECK(listing.files()[0].bytes() == kWhole.size());
  CHECK(listing.files()[0].sha256() == Sha256Of(kWhole));
  CHECK(listing.files()[1].sha256() == known.sha256());  // this file was not read

  CHECK(*ReadRunFilePart(folder.path(), "result.json", 0, 10) == kWhole.substr(0, 10));
  CHECK(*ReadRunFilePart(folder.path(), "result.json", 30, 100) == kWhole.substr(30));
  CHECK(ReadRunFilePart(folder.path(), "result.json", 1000, 100)->empty());
  CHECK(absl::IsNotFound(ReadRunFilePart(folder.path(), "secret.txt", 0, 10).status()));
  CHECK(absl::IsNotFound(ReadRunFilePart(folder.path(), "../result.json", 0, 10).status()));
  CHECK(absl::IsNotFound(ReadRunFilePart(folder.path(), "job.yaml", 0, 10).status()));
}

}  // namespace
}  // namespace evergrad::coordinator
