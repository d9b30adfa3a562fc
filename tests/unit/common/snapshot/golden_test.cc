// Tests that files have the stored bytes of format version 1 (tests/golden/snapshot). With
// EVERGRAD_WRITE_GOLDEN=1 the test writes the stored files. Use it for a new version only.
#include <fstream>

#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/paths.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"
#include "tests/unit/common/wire/golden_fixture.h"

namespace evergrad::snapshot {
namespace {

std::string Unhex(const std::string& text) {
  std::istringstream in(text);
  std::string bytes, pair;
  while (in >> pair) bytes.push_back(static_cast<char>(std::stoi(pair, nullptr, 16)));
  return bytes;
}

TEST_CASE("files of version 1 equal the golden bytes, and the golden bytes can be read") {
  fs::MemoryFileSystem files;
  WriteSmall(files, "file:///dense", SmallHeader());
  WriteSmall(files, "file:///table", SmallTableHeader());
  REQUIRE(fs::WriteWhole(files, "file:///manifest", *EncodeManifest(SmallManifest(files))).ok());
  fs::MemoryFileSystem golden;
  for (const char* name : {"dense", "table", "manifest"}) {
    INFO(name);
    const std::string path = test::SourceDir() + "/tests/golden/snapshot/" + name + ".v1.hex";
    const std::string bytes = *fs::ReadWhole(files, absl::StrCat("file:///", name), 1 << 20);
    if (test::FromEnvironment("EVERGRAD_WRITE_GOLDEN", "") == "1")
      std::ofstream(path) << wire::Hex(BytesOf(bytes));
    const std::string kept = wire::ReadText(path);
    REQUIRE_FALSE(kept.empty());
    CHECK(wire::Hex(BytesOf(bytes)) == kept);
    REQUIRE(fs::WriteWhole(golden, absl::StrCat("file:///", name), Unhex(kept)).ok());
  }
  const auto dense = VerifyShardFile(golden, "file:///dense"),
             table = VerifyShardFile(golden, "file:///table");
  REQUIRE(dense.ok());
  REQUIRE(table.ok());
  CHECK(dense->header.lsn() == 120);
  CHECK(dense->done == IntervalSet{0, 1, 2, 5});
  CHECK(dense->open_closures == 1);
  CHECK(table->header.kind() == v1::SHARD_KIND_SLOT);
  CHECK(table->header.table_rows(0) == 4);
  CHECK(table->value_bytes == 2 * (8 + 3 * 2 * 8 + 8 * 4));
  const auto manifest = ReadManifest(golden, "file:///manifest");
  REQUIRE(manifest.ok());
  CHECK(manifest->number() == 12);
  CHECK(manifest->shards_size() == 2);
  CHECK(manifest->complete());
}

}  // namespace
}  // namespace evergrad::snapshot
