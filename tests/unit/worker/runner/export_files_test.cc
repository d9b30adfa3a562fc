#include "worker/runner/export_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/weights/weight_files.h"
#include "tests/support/temp_folder.h"

namespace evergrad::worker {
namespace {

std::vector<weights::NamedTensor> Tensors(const std::vector<float>& values) {
  return {{"dense/kernel", tensor::Shape{2, 3}, std::span(values).first(6)},
          {"dense/bias", tensor::Shape{3}, std::span(values).subspan(6, 3)}};
}

TEST_CASE("an export writes the bytes of weight files, and reports the size and digest of each") {
  const test::TempFolder folder;
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto files = MakeExport(Tensors(values), {{"work", {"Private", "Self"}}});
  REQUIRE(files.ok());
  REQUIRE(files->size() == 3);
  const auto written = WriteExport(folder.path(), *files);
  REQUIRE(written.ok());
  REQUIRE(weights::WriteNpz(folder / "same.npz", Tensors(values)).ok());
  CHECK(*fs::ReadFile(folder / "weights.npz", 1 << 20) ==
        *fs::ReadFile(folder / "same.npz", 1 << 20));
  for (const v1::RunFileInfo& info : *written) {
    const std::string bytes = *fs::ReadFile(folder / info.name(), 1 << 20);
    snapshot::Sha256 hash;
    hash.Update(snapshot::BytesOf(bytes));
    CHECK(bytes.size() == info.bytes());
    CHECK(snapshot::Hex(snapshot::BytesOf(info.sha256())) == snapshot::Hex(hash.Value()));
  }
  CHECK(*fs::ReadFile(folder / "model/vocabularies.json", 1 << 20) ==
        "{\n\"work\": [\"Private\", \"Self\"]\n}\n");
  CHECK(MakeExport({}, {})->empty());
}

TEST_CASE(
    "the parts of an export that are sent make the same file, with its digest in the last one") {
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto files = MakeExport(Tensors(values), {});
  REQUIRE(files.ok());
  const ExportFile& file = files->at(0);
  std::string whole(file.bytes, '\0');
  file.read(0, std::as_writable_bytes(std::span(whole)));
  ExportReader reader;
  for (int pass = 0; pass < 2; ++pass) {  // the second pass follows a lost session
    std::string got;
    v1::RunFileChunk chunk;
    while (got.size() < whole.size()) {
      chunk.Clear();
      const std::size_t n = std::min<std::size_t>(100, whole.size() - got.size());
      reader.Read(file, got.size(), n, got.size() + n == whole.size(), &chunk);
      CHECK(chunk.offset() == got.size());
      CHECK(chunk.crc32c() == snapshot::Crc32c(snapshot::BytesOf(chunk.data())));
      CHECK(chunk.sha256().empty() == (got.size() + n != whole.size()));
      got += chunk.data();
    }
    CHECK(got == whole);
    snapshot::Sha256 hash;
    hash.Update(snapshot::BytesOf(whole));
    CHECK(snapshot::Hex(snapshot::BytesOf(chunk.sha256())) == snapshot::Hex(hash.Value()));
  }
}

TEST_CASE(
    "a worker writes to the runs folder only if it has write permission and finds the "
    "coordinator's mark") {
  const test::TempFolder folder;
  v1::ExportOrder order;
  order.set_mark_file(".mark");
  order.set_mark("job 7\n");
  CHECK_FALSE(SeesRunsFolder(folder.path(), order));
  std::ofstream(folder / ".mark") << "job 8\n";
  CHECK_FALSE(SeesRunsFolder(folder.path(), order));
  std::ofstream(folder / ".mark") << "job 7\n";
  CHECK(SeesRunsFolder(folder.path(), order));
  order.set_mark_file("../mark");
  CHECK_FALSE(SeesRunsFolder(folder.path(), order));
  order.set_mark_file(".mark");
  // Root may write everywhere, so the test runs as another user for a moment.
  const bool root = ::geteuid() == 0;
  REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
  if (root) REQUIRE(::seteuid(65534) == 0);
  const bool sees = SeesRunsFolder(folder.path(), order);
  if (root) REQUIRE(::seteuid(0) == 0);
  CHECK_FALSE(sees);
}

TEST_CASE("vocabularies are JSON whatever bytes their words have") {
  CHECK(VocabulariesJson(
            {{"a\"b",
              {"x\\y", std::string("tab\tnull\0", 9), "\xc3\xa9", "\x80\xff", "\xed\xa0\x80"}},
             {"empty", {}}}) ==
        "{\n\"a\\\"b\": [\"x\\\\y\", \"tab\\u0009null\\u0000\", \"\xc3\xa9\", \"\\udc80\\udcff\", "
        "\"\\udced\\udca0\\udc80\"],\n\"empty\": []\n}\n");
}

}  // namespace
}  // namespace evergrad::worker
