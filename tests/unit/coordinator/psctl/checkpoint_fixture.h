// A psctl with a small checkpoint on a real disk.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coordinator/psctl/context.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/snapshot/snapshot_fixture.h"

namespace evergrad::psctl {

struct Stage {
  test::TempFolder folder;
  std::ostringstream out, err;
  Context context{out, err};
  Stage() { context.folder = folder / "job"; }

  // Writes two shards and the manifests 11 and 12 into folder/job.
  void Write() {
    fs::MemoryFileSystem memory;
    for (const std::uint64_t number : {11u, 12u})
      REQUIRE(snapshot::WriteManifest(memory, snapshot::kFolder,
                                      snapshot::SmallManifest(memory, number))
                  .ok());
    const auto files = fs::MakeLocalFileSystem();
    REQUIRE(files->MakeFolders(folder / "job").ok());
    const std::vector<fs::ListedFile> entries = *memory.List(snapshot::kFolder);
    for (const fs::ListedFile& entry : entries)
      REQUIRE(fs::WriteWhole(
                  *files, folder / "job/" + entry.name,
                  *fs::ReadWhole(memory, fs::JoinUri(snapshot::kFolder, entry.name), 1 << 20))
                  .ok());
  }
  std::string Shard(std::uint32_t shard) const {
    return folder / "job/" + snapshot::ShardFileName(ShardId(shard), {2, 7}, 120 + shard);
  }
  std::string Manifest(std::uint64_t number) const {
    return folder / "job/" + snapshot::ManifestName(number);
  }
  static void Flip(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    REQUIRE(file.good());
  }
  int Run(std::vector<std::string> args) {
    out.str("");
    err.str("");
    args.insert(args.begin(), "checkpoint");
    return RunPsctl(context, args);
  }
  nlohmann::json Json(const std::vector<std::string>& args, int want) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"--output", "json"});
    CHECK(Run(all) == want);
    return nlohmann::json::parse(out.str());
  }
};

}  // namespace evergrad::psctl
