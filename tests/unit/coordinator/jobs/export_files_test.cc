// Tests the files of an export, without a Job object.
#include "coordinator/jobs/export_files.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "common/client/run_file_names.h"
#include "common/fs/file.h"
#include "part_fixture.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {
namespace {

using Stage = ExportFiles::Stage;

const std::string kWeights = "what a worker calls weights";

std::string Sha256Of(const std::string& bytes) {
  snapshot::Sha256 hash;
  hash.Update(snapshot::BytesOf(bytes));
  return hash.Bytes();
}

// Worker 7 holds the export closure of a job. The job's runs folder is on the real disk.
struct Fixture : PartFixture {
  static constexpr TaskId kWorker{7};

  explicit Fixture(Stage stage = Stage::kSucceeding) {
    id.runs_folder = folder.path();
    files.emplace(Part(), &reading, &rounds,
                  ExportFiles::Hooks{.again =
                                         [this](MonoTime not_before) {
                                           said.push_back("again");
                                           Grant(not_before);
                                         },
                                     .done = [this] { said.push_back("done"); },
                                     .gave_up =
                                         [this](absl::string_view why) {
                                           said.push_back(absl::StrCat("gave up: ", why));
                                         }});
    files->SetStage(stage);
    Grant(MonoTime{0});
  }
  void Grant(MonoTime not_before) {
    reading.Begin(1, not_before);
    closure = reading.Waiting(MonoTime::max());
    closure->attempt = Attempt{1, ++attempts};
    closure->worker = kWorker;
  }
  v1::RunFileChunk Chunk(std::uint64_t offset, std::size_t bytes) {
    v1::RunFileChunk chunk;
    chunk.set_closure(closure->number);
    *chunk.mutable_attempt() = client::ToProto(closure->attempt);
    chunk.set_name("weights.npz");
    chunk.set_offset(offset);
    chunk.set_data(kWeights.substr(offset, bytes));
    chunk.set_crc32c(snapshot::Crc32c(snapshot::BytesOf(chunk.data())));
    chunk.set_bytes(kWeights.size());
    if (offset + chunk.data().size() == kWeights.size()) chunk.set_sha256(Sha256Of(kWeights));
    return chunk;
  }
  v1::ExportResult Result(bool uploaded) {
    v1::ExportResult result;
    result.set_host("far");
    result.set_uploaded(uploaded);
    v1::RunFileInfo* file = result.add_exported();
    file->set_name("weights.npz");
    file->set_bytes(kWeights.size());
    file->set_sha256(Sha256Of(kWeights));
    return result;
  }
  void Exported(bool uploaded) {
    files->OnExported(Result(uploaded), "0");
    RunFileThread();
  }

  test::TempFolder folder;
  ReadingRound reading;
  EpochAccount epochs{{}, MonoTime{0}};
  CheckpointRounds rounds{
      Part(), &epochs, {.round_ended = [] {}, .saved = [](const v1::Manifest&) {}, .over = [] {}}};
  std::optional<ExportFiles> files;
  ReadingRound::Closure* closure = nullptr;
  std::uint64_t attempts = 0;
};

TEST_CASE("files that are sent are confirmed part by part, read back, and then told") {
  Fixture f;
  for (const std::uint64_t offset : {0, 10}) {
    REQUIRE(f.files->OnChunk(f.kWorker, f.Chunk(offset, offset == 0 ? 10 : 100)).ok());
    f.RunFileThread();
  }
  const auto sent = f.Take(f.kWorker);
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].run_file_answer().written() == 10);
  CHECK(sent[1].run_file_answer().written() == kWeights.size());
  CHECK_FALSE(f.files->weights_exported());
  f.Exported(true);
  CHECK(f.Said("weights sent by worker/0 on host far and read back on host near: weights.npz"));
  CHECK(f.said.back() == "done");
  CHECK(f.files->weights_exported());
  REQUIRE(f.files->files().size() == 1);
  CHECK(f.files->files()[0].name() == "weights.npz");
  v1::JobSnapshot snapshot;
  f.files->Fill(&snapshot);
  CHECK(snapshot.weights_exported());
}

TEST_CASE("a part counts only from the worker that holds the export, while there is one") {
  Fixture f;
  CHECK(f.files->OnChunk(TaskId(8), f.Chunk(0, 10)).ok());
  f.files->SetStage(Stage::kNone);
  CHECK(f.files->OnChunk(f.kWorker, f.Chunk(0, 10)).ok());
  f.RunFileThread();
  CHECK(f.host.foreign.size() == 2);
  CHECK(f.Take(f.kWorker).empty());
}

TEST_CASE("files that cannot be seen here are asked for, and every later order says so") {
  Fixture f;
  v1::ExportOrder order;
  f.files->FillOrder(&order);
  CHECK_FALSE(order.upload());
  CHECK(order.mark() == client::RunMark(f.id.uid));
  f.Exported(false);
  CHECK(f.said.back() == "again");
  f.files->FillOrder(&order);
  CHECK(order.upload());
}

TEST_CASE("files that were sent and cannot be read back end a job, or only the export of one") {
  SECTION("the job waits longer each time, and then fails") {
    Fixture f;
    for (std::uint32_t i = 0; i < f.options.retries_max; ++i) {
      f.Exported(true);
      REQUIRE(f.said.back() == "again");
      CHECK(f.closure->not_before == f.host.Now() + f.options.RetryDelay(i + 1));
    }
    f.Exported(true);
    CHECK(f.Said("fail machine: "));
  }
  SECTION("of a failed job") {
    Fixture f(Stage::kFailed);
    f.Exported(true);
    CHECK(f.Said("gave up: the files cannot be read back on host near"));
    CHECK_FALSE(f.Said("fail"));
  }
}

TEST_CASE("what is read back of a stage that has ended is void") {
  Fixture f;
  std::ofstream(f.folder / "weights.npz") << kWeights;
  f.files->OnExported(f.Result(false), "0");
  f.files->SetStage(Stage::kNone);
  f.RunFileThread();
  CHECK(f.said.empty());
  CHECK_FALSE(f.files->weights_exported());
}

TEST_CASE("a full disk delays the closure, is told once a minute, and stays to be waited for") {
  Fixture f;
  CHECK(f.files->WaitingFor().empty());
  for (std::uint32_t i = 0; i < 3; ++i) {
    f.files->OnNoSpace(f.closure, "no space left");
    CHECK(f.closure->not_before == f.host.Now() + f.options.RetryDelay(i + 1));
    f.host.clock.Advance(std::chrono::seconds(1));
  }
  CHECK(f.said.size() == 1);
  CHECK(f.files->WaitingFor() == "disk space for the job's files: no space left");
  f.host.clock.Advance(std::chrono::seconds(60));
  f.files->OnNoSpace(f.closure, "no space left");
  CHECK(f.said.size() == 2);
}

}  // namespace
}  // namespace evergrad::coordinator
