// Tests psctl checkpoint list: the manifests that it finds below a folder, the order in which it
// lists them, and the defects that it reports.
#include "coordinator/psctl/checkpoint.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/coordinator/psctl/checkpoint_fixture.h"

namespace evergrad::psctl {
namespace {

// Three folders with the manifests 11 and 12: the folders `checkpoint` in runs/a and in runs/b, and
// the folder saved/c.
struct Runs : Stage {
  Runs() {
    Write();
    std::filesystem::create_directories(folder / "runs/a/logs");
    std::filesystem::copy(folder / "job", folder / "runs/a/checkpoint");
    std::filesystem::create_directories(folder / "runs/b");
    std::filesystem::copy(folder / "job", folder / "runs/b/checkpoint");
    std::filesystem::create_directories(folder / "saved");
    std::filesystem::rename(folder / "job", folder / "saved/c");
    std::ofstream(folder / "runs/notes.txt") << "x";
    context.folder = folder.path();
  }
  // Adds one manifest to a folder.
  void Add(const std::string& where, std::uint64_t number, std::int64_t written_ms,
           const std::function<void(v1::Manifest*)>& change = {}) {
    fs::MemoryFileSystem memory;
    v1::Manifest manifest = snapshot::SmallManifest(memory, number);
    manifest.set_written_ms(written_ms);
    manifest.mutable_plan()->set_batch_size(1000);
    manifest.mutable_plan()->set_steps_per_closure(60);  // so that an epoch has one closure
    manifest.mutable_plan()->set_epochs(9);
    if (change) change(&manifest);
    const auto files = fs::MakeLocalFileSystem();
    REQUIRE(snapshot::WriteManifest(*files, folder / where, manifest).ok());
  }
};

TEST_CASE("the checkpoints below any given folder are listed newest first") {
  Runs runs;
  runs.Add("runs/a/checkpoint", 13, 1'800'000'000'000);
  runs.Add("runs/b/checkpoint", 13, 1'750'000'000'000);
  nlohmann::json json = runs.Json({"list", runs.folder / "runs"}, kSucceeded);
  CHECK(json["whole"] == true);
  REQUIRE(json["checkpoints"].size() == 6);
  CHECK(json["checkpoints"][0]["path"] ==
        runs.folder / "runs/a/checkpoint/" + snapshot::ManifestName(13));
  CHECK(json["checkpoints"][1]["path"] ==
        runs.folder / "runs/b/checkpoint/" + snapshot::ManifestName(13));
  CHECK(json["checkpoints"][2]["number"] == 12);
  CHECK(json["checkpoints"][5]["number"] == 11);
  const nlohmann::json& first = json["checkpoints"][0];
  CHECK(first["job"] == "fashion-cnn");
  CHECK(first["job_uid"] == "0123456789abcdef");
  CHECK(first["written_ms"] == 1'800'000'000'000);
  CHECK(first["complete"] == true);
  CHECK(first["shards"] == 2);
  CHECK(first["shards_from_seed"] == 0);
  CHECK(first["closures_done"] == 4);  // closures 0, 1, 2 and 5
  CHECK(first["closures"] == 9);
  CHECK(first["epochs_done"] == 3);
  CHECK(first["epochs"] == 9);
  CHECK(first["state"] == "whole");
  CHECK(first["bytes"].get<std::uint64_t>() > 1000);

  CHECK(runs.Json({"list", "file://" + (runs.folder / "runs/a/checkpoint")},
                  kSucceeded)["checkpoints"]
            .size() == 3);
  CHECK(runs.Json({"list", runs.folder / "runs/a"}, kSucceeded)["checkpoints"].size() == 3);
  CHECK(runs.Json({"list", "saved"}, kSucceeded)["checkpoints"].size() == 2);
  CHECK(runs.Json({"list", runs.folder / "runs/a/logs"}, kSucceeded)["checkpoints"].empty());

  CHECK(runs.Run({"list", "runs"}) == kSucceeded);
  CHECK(runs.err.str().empty());
  const std::string text = runs.out.str();
  CHECK(text.find("fashion-cnn-0123456789abcdef") != std::string::npos);
  CHECK(text.find("4/9") != std::string::npos);
  CHECK(text.find("runs/a/checkpoint/manifest-000000000013.egmanifest") <
        text.find("runs/b/checkpoint/manifest-000000000013.egmanifest"));
  CHECK(runs.Run({"list", "runs/a/logs"}) == kSucceeded);
  CHECK(runs.out.str().find("no checkpoints") != std::string::npos);
}

TEST_CASE(
    "a damaged manifest, missing files and files of a wrong size are listed as such, and end with "
    "code 1") {
  Runs runs;
  Stage::Flip(runs.folder / "runs/a/checkpoint/" + snapshot::ManifestName(12), 300);
  nlohmann::json json = runs.Json({"list", "runs/a"}, kFailed);
  CHECK(json["whole"] == false);
  REQUIRE(json["checkpoints"].size() == 2);
  // The time of the damaged manifest is not known. It is listed beside the other manifest of its
  // folder.
  CHECK(json["checkpoints"][0]["number"] == 12);
  CHECK(json["checkpoints"][0]["state"] == "damaged");
  CHECK(json["checkpoints"][0]["errors"][0].get<std::string>().find("offset=64") !=
        std::string::npos);
  CHECK_FALSE(json["checkpoints"][0].contains("job"));
  CHECK(json["checkpoints"][1]["state"] == "whole");
  CHECK(runs.Run({"list", "runs/a"}) == kFailed);
  CHECK(runs.out.str().find("DAMAGED") != std::string::npos);
  CHECK(runs.err.str().find(snapshot::ManifestName(12)) != std::string::npos);

  const std::string shard = snapshot::ShardFileName(ShardId(1), {2, 7}, 121);
  std::filesystem::remove(runs.folder / "runs/b/checkpoint/" + shard);
  json = runs.Json({"list", "runs/b"}, kFailed);
  CHECK(json["checkpoints"][0]["state"] == "missing");
  CHECK(json["checkpoints"][0]["errors"][0].get<std::string>().find(shard) != std::string::npos);
  CHECK(runs.Run({"list", "runs/b"}) == kFailed);
  CHECK(runs.out.str().find("FILES MISSING") != std::string::npos);

  std::filesystem::resize_file(runs.folder / "saved/c/" + shard, 100);
  json = runs.Json({"list", "saved"}, kFailed);
  CHECK(json["checkpoints"][1]["state"] == "damaged");
  CHECK(json["checkpoints"][1]["errors"][0].get<std::string>().find("got=100") !=
        std::string::npos);
}

TEST_CASE("shards without a saved file are counted, and the checkpoint is shown as incomplete") {
  Runs runs;
  runs.Add("saved/c", 20, 1'900'000'000'000, [](v1::Manifest* manifest) {
    v1::ShardFile empty;
    empty.set_shard(1);
    *manifest->mutable_shards(1) = empty;
    manifest->set_complete(false);
  });
  const nlohmann::json json = runs.Json({"list", "saved"}, kSucceeded);
  CHECK(json["checkpoints"][0]["shards_from_seed"] == 1);
  CHECK(json["checkpoints"][0]["complete"] == false);
  CHECK(json["checkpoints"][0]["closures_done"] == 0);
  CHECK(runs.Run({"list", "saved"}) == kSucceeded);
  CHECK(runs.out.str().find("1 of 2") != std::string::npos);
}

// The checkpoint folder of a running job. Each time after psctl lists the folder, the next file of
// `goes` is removed, as the job removes old manifests and their files.
class LivingFolder : public fs::FileSystem {
 public:
  LivingFolder(fs::FileSystem* files, std::vector<std::string> goes)
      : files_(files), goes_(std::move(goes)) {}
  absl::StatusOr<std::unique_ptr<fs::WritableFile>> Create(absl::string_view uri) override {
    return files_->Create(uri);
  }
  absl::StatusOr<std::unique_ptr<fs::ReadableFile>> Open(absl::string_view uri) override {
    return files_->Open(uri);
  }
  absl::StatusOr<std::vector<fs::ListedFile>> List(absl::string_view uri) override {
    auto entries = files_->List(uri);
    if (!goes_.empty()) {
      if (!goes_.front().empty()) REQUIRE(files_->Remove(goes_.front()).ok());
      goes_.erase(goes_.begin());
    }
    return entries;
  }
  absl::Status Remove(absl::string_view uri) override { return files_->Remove(uri); }
  absl::StatusOr<bool> Exists(absl::string_view uri) override { return files_->Exists(uri); }
  absl::Status MakeFolders(absl::string_view uri) override { return files_->MakeFolders(uri); }

 private:
  fs::FileSystem* const files_;
  std::vector<std::string> goes_;
};

TEST_CASE("a manifest that is removed during the listing is absent, not damaged") {
  const auto local = fs::MakeLocalFileSystem();
  for (const bool file_first : {false, true}) {
    Runs runs;
    const std::string manifest = runs.folder / "saved/c/" + snapshot::ManifestName(11);
    const std::string shard =
        runs.folder / "saved/c/" + snapshot::ShardFileName(ShardId(1), {2, 7}, 121);
    // In one case manifest 11 disappears after psctl listed it and before psctl reads it. In the
    // other case psctl reads manifest 11 and misses one of its files. The manifest disappears when
    // psctl lists the folder once more.
    if (file_first) std::filesystem::remove(shard);
    LivingFolder living(local.get(), file_first ? std::vector<std::string>{"", manifest}
                                                : std::vector<std::string>{manifest});
    ListCheckpointsOf(runs.context, living, runs.folder / "saved/c", true);
    const nlohmann::json json = nlohmann::json::parse(runs.out.str());
    for (const auto& found : json["checkpoints"]) CHECK(found["number"] == 12);
    CHECK(json["checkpoints"].size() == 1);
    // The missing file is also named by manifest 12, which still exists.
    CHECK(json["whole"] == !file_first);
  }
}

TEST_CASE("closures of a functions job are listed without a total, because its plan has none") {
  Runs runs;
  runs.Add("saved/c", 20, 1'900'000'000'000, [](v1::Manifest* manifest) {
    manifest->set_yaml(
        "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: f}\nspec:\n  type: "
        "functions\n"
        "  functions: {variables: [{name: w, shape: [4]}]}\n");
  });
  const nlohmann::json json = runs.Json({"list", "saved"}, kSucceeded);
  CHECK(json["checkpoints"][0]["closures"].is_null());
  CHECK(json["checkpoints"][0]["closures_done"].is_number());
  CHECK(json["checkpoints"][1]["closures"].is_number());
}

TEST_CASE("a path that is no folder is the user's error") {
  Runs runs;
  CHECK(runs.Run({"list", "none"}) == kUsage);
  CHECK(runs.Run({"list", "runs/notes.txt"}) == kUsage);
  CHECK(runs.Run({"list", "hdfs://host/x"}) == kUsage);
  CHECK(runs.Run({"list"}) == kUsage);
  CHECK(runs.Run({"list", "--help"}) == kSucceeded);
  CHECK(runs.out.str().find("FOLDER") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::psctl
