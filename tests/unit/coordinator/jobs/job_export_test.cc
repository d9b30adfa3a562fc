// Tests how the exported files reach the coordinator, which of these files the coordinator reads
// back, and how a job waits while the disk is full.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "common/fs/file.h"
#include "common/snapshot/checksum.h"
#include "job_fixture.h"
#include "tests/support/temp_folder.h"

namespace evergrad::coordinator {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

const std::string kWhole = "what a worker calls weights";

std::string Sha256Of(const std::string& bytes) {
  snapshot::Sha256 hash;
  hash.Update(snapshot::BytesOf(bytes));
  return hash.Bytes();
}

// A cluster with one worker, which holds the export of the weights. The runs folder is on the real
// disk.
struct Exporting {
  Exporting() : c({}, {}, JobUid(0xabcdef), nullptr, folder.path()) {
    c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EXPORT; };
    c.AddServer("0");
    c.AddWorker("0");
    c.job->Start();
    REQUIRE(c.Run([&] { return !worker().held.empty(); }));
  }
  FakeWorker& worker() { return c.workers.at("0"); }
  const v1::Grant& grant() { return worker().held.front(); }

  v1::TaskMessage Chunk(std::uint64_t offset, std::size_t bytes,
                        const std::string& name = "weights.npz") {
    v1::TaskMessage message;
    v1::RunFileChunk* chunk = message.mutable_run_file();
    chunk->set_job_uid(grant().job_uid());
    chunk->set_closure(grant().closure());
    *chunk->mutable_attempt() = grant().attempt();
    chunk->set_name(name);
    chunk->set_offset(offset);
    chunk->set_data(kWhole.substr(offset, bytes));
    chunk->set_crc32c(snapshot::Crc32c(snapshot::BytesOf(chunk->data())));
    chunk->set_bytes(kWhole.size());
    if (offset + chunk->data().size() == kWhole.size()) chunk->set_sha256(Sha256Of(kWhole));
    return message;
  }
  // The worker loses its session and registers again with the unfinished export.
  void ComeBack() {
    const v1::Grant granted = grant();
    v1::Hello hello;
    hello.set_process_uid(worker().process);
    FakeCluster::AddHeld(granted, worker().map.version(), &hello);
    c.AddWorker("0", hello, /*former_died=*/false);
    worker().held.push_back(granted);
  }
  void CheckSuccess() {
    REQUIRE(c.RunToEnd());
    CHECK(c.Status().state() == "SUCCEEDED");
  }
  // The worker reports the export as done, with one file of these contents. The worker has sent
  // this file or written it to the folder.
  void End(bool uploaded, const std::string& contents = kWhole) {
    c.on_done = [&, uploaded, contents](const v1::Grant& g, v1::Done* done) {
      if (g.kind() != v1::EXPORT) return;
      v1::ExportResult* result = done->mutable_export_();
      result->clear_files();
      result->set_uploaded(uploaded);
      v1::RunFileInfo* file = result->add_exported();
      file->set_name("weights.npz");
      file->set_bytes(contents.size());
      file->set_sha256(Sha256Of(contents));
    };
    const v1::Grant granted = grant();
    c.Finish(worker(), granted);
  }

  test::TempFolder folder;
  FakeCluster c;
};

TEST_CASE("an export is ordered with the mark of the runs folder") {
  Exporting e;
  const v1::ExportOrder& order = e.grant().export_order();
  CHECK(order.mark_file() == client::kRunMarkFile);
  CHECK(order.mark() == e.c.host.files.at(e.folder / client::kRunMarkFile));
  CHECK_FALSE(order.upload());
  CHECK(e.c.Status().runs_mark() == order.mark());
  CHECK(e.c.Status().runs_host() == "near");
}

TEST_CASE(
    "a remote worker sends its files, each part is confirmed, and all are read back before the job "
    "continues") {
  Exporting e;
  e.c.Say(e.worker().task, e.Chunk(0, 10));
  e.c.Deliver();
  REQUIRE(e.worker().files.size() == 1);
  CHECK(e.worker().files[0].written() == 10);
  CHECK_FALSE(fs::Exists(e.folder / "weights.npz"));
  e.c.Say(e.worker().task, e.Chunk(10, 100));
  e.c.Deliver();
  REQUIRE(e.worker().files.size() == 2);
  CHECK(e.worker().files[1].written() == kWhole.size());
  e.End(true);
  e.CheckSuccess();
  CHECK(*fs::ReadFile(e.folder / "weights.npz", 1000) == kWhole);
  const Json result = Json::parse(e.c.Status().result_json());
  REQUIRE(result["files"].size() == 1);
  CHECK(result["files"][0]["name"] == "weights.npz");
  CHECK(result["files"][0]["sha256"] == snapshot::Hex(snapshot::BytesOf(Sha256Of(kWhole))));
  CHECK_THAT(
      AllEvents(e.c),
      Contains("weights sent by worker/0 on host far and read back on host near: weights.npz"));
}

TEST_CASE(
    "a part of a file counts only from the worker with the export, and changes nothing else") {
  Exporting e;
  const FakeWorker& other = e.c.AddWorker("1");
  const std::size_t foreign = e.c.host.foreign.size();
  e.c.Say(other.task, e.Chunk(0, 10));
  v1::TaskMessage old = e.Chunk(0, 10);
  old.mutable_run_file()->mutable_attempt()->set_n(999);
  e.c.Say(e.worker().task, old);
  e.c.Deliver();
  CHECK(e.c.host.foreign.size() == foreign + 2);
  CHECK(e.worker().files.empty());
  CHECK(other.files.empty());
  CHECK(std::filesystem::is_empty(e.folder.path()));
  // A part larger than the limit of a part makes the message malformed. A part of a file that is
  // larger than any file of this job can be is refused, and the answer names the file.
  v1::TaskMessage large = e.Chunk(0, 10);
  large.mutable_run_file()->set_data(std::string(client::kRunFileChunkMax + 1, 'x'));
  CHECK_FALSE(e.c.Try(e.worker().task, large).ok());
  v1::TaskMessage huge = e.Chunk(0, 10);
  huge.mutable_run_file()->set_bytes(1ull << 40);
  e.c.Say(e.worker().task, huge);
  e.c.Deliver();
  REQUIRE(e.worker().files.size() == 1);
  CHECK_THAT(e.worker().files[0].error().message(), Contains("larger than the job's variables"));
  CHECK(std::filesystem::is_empty(e.folder.path()));
}

TEST_CASE("a coordinator takes exported weights of any size, also when it has no journal") {
  test::TempFolder folder;
  FakeCluster c({}, {.persistent = GENERATE(false, true)}, JobUid(0xabcdef), nullptr,
                folder.path());
  c.on_done = [](const v1::Grant& g, v1::Done* done) {
    if (g.kind() == v1::DESCRIBE)
      done->mutable_describe()->mutable_variables(0)->set_shape(0, 1u << 20);
  };
  c.hold = [](const FakeWorker&, const v1::Grant& g) { return g.kind() == v1::EXPORT; };
  c.AddServer("0");
  FakeWorker& worker = c.AddWorker("0");
  c.job->Start();
  REQUIRE(c.Run([&] { return !worker.held.empty(); }));
  v1::TaskMessage message;
  v1::RunFileChunk* chunk = message.mutable_run_file();
  chunk->set_job_uid(c.job->uid().value());
  chunk->set_closure(worker.held.front().closure());
  *chunk->mutable_attempt() = worker.held.front().attempt();
  chunk->set_name("weights.npz");
  chunk->set_data(kWhole);
  chunk->set_crc32c(snapshot::Crc32c(snapshot::BytesOf(kWhole)));
  chunk->set_bytes(4u << 20);
  c.Say(worker.task, message);
  c.Deliver();
  REQUIRE(worker.files.size() == 1);
  CHECK_FALSE(worker.files[0].has_error());
  CHECK(worker.files[0].written() == kWhole.size());
}

TEST_CASE("at most two windows of one export wait for the disk") {
  Exporting e;
  std::size_t taken = 0;
  absl::Status refused;
  for (; taken < 100 && refused.ok(); ++taken) {
    v1::TaskMessage part = e.Chunk(0, 10);
    part.mutable_run_file()->set_data(std::string(client::kRunFileChunkMax, 'x'));
    refused = e.c.Try(e.worker().task, part);  // the file thread runs no task in this loop
  }
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(taken == 2 * client::kRunFileWindow / client::kRunFileChunkMax + 1);
}

TEST_CASE("parts without bytes or with a wrong name are refused and never wait") {
  Exporting e;
  v1::TaskMessage empty = e.Chunk(0, 0);
  CHECK(absl::IsInvalidArgument(e.c.Try(e.worker().task, empty)));
  CHECK(
      absl::IsInvalidArgument(e.c.Try(e.worker().task, e.Chunk(0, 10, std::string(1 << 20, 'x')))));
  CHECK(absl::IsInvalidArgument(e.c.Try(e.worker().task, e.Chunk(0, 10, "../weights.npz"))));
  // A file of 0 bytes is valid, and its part is accepted like any other part.
  v1::TaskMessage none = e.Chunk(0, 0);
  none.mutable_run_file()->set_bytes(0);
  std::size_t taken = 0;
  while (taken < 100'000 && e.c.Try(e.worker().task, none).ok()) ++taken;
  CHECK(taken > 0);
  CHECK(taken < 10'000);
  e.c.Deliver();
  CHECK(std::filesystem::is_empty(e.folder.path()));
}

TEST_CASE("the answer to a part of a former session is not sent, and the file continues") {
  Exporting e;
  // This part still waits for the file thread when the session ends.
  e.c.Say(e.worker().task, e.Chunk(0, 10));
  e.ComeBack();
  e.c.Deliver();
  CHECK(e.worker().files.empty());
  e.c.Say(e.worker().task, e.Chunk(0, 100));
  e.c.Deliver();
  REQUIRE(e.worker().files.size() == 1);
  CHECK(e.worker().files[0].written() == kWhole.size());
  e.End(true);
  e.CheckSuccess();
}

TEST_CASE("the end of a former attempt's receiver keeps the next attempt's file") {
  Exporting e;
  e.c.host.hold_file_answers = true;
  e.c.Say(e.worker().task, e.Chunk(0, 10));
  e.c.Deliver();  // the part was accepted, and its answer waits in the host
  e.c.host.hold_file_answers = false;
  e.c.KillWorker("0");
  e.c.AddWorker("0");
  REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
  e.c.Say(e.worker().task, e.Chunk(0, 10));
  e.c.Deliver();
  REQUIRE(fs::Exists(e.folder / ".weights.npz.receiving"));
  for (auto& answer : std::exchange(e.c.host.held_file_answers, {})) answer();
  CHECK(fs::Exists(e.folder / ".weights.npz.receiving"));
  e.c.Say(e.worker().task, e.Chunk(10, 100));
  e.c.Deliver();
  CHECK(e.worker().files.back().written() == kWhole.size());
  e.End(true);
  e.CheckSuccess();
}

TEST_CASE(
    "a result contains only files that were read back, and a dead coordinator's partial file is "
    "removed") {
  Exporting e;
  std::ofstream(e.folder / "weights.npz") << kWhole;
  std::ofstream(e.folder / ".weights.safetensors.receiving") << "half";
  e.c.on_done = [&](const v1::Grant& g, v1::Done* done) {
    if (g.kind() != v1::EXPORT) return;
    v1::ExportResult* result = done->mutable_export_();
    result->clear_files();
    for (const char* name : {"weights.npz", "weights.npz", "model/load.py", "/etc/passwd"}) {
      v1::RunFileInfo* file = result->add_exported();
      file->set_name(name);
      file->set_bytes(kWhole.size());
      file->set_sha256(Sha256Of(kWhole));
    }
  };
  const v1::Grant granted = e.grant();
  e.c.Finish(e.worker(), granted);
  e.CheckSuccess();
  const Json result = Json::parse(e.c.Status().result_json());
  REQUIRE(result["files"].size() == 1);
  CHECK(result["files"][0]["name"] == "weights.npz");
  CHECK_FALSE(fs::Exists(e.folder / ".weights.safetensors.receiving"));
}

TEST_CASE("files that the coordinator cannot see are sent by the worker") {
  Exporting e;
  e.End(false);  // the worker wrote to its own folder and sent nothing
  REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
  CHECK(e.grant().kind() == v1::EXPORT);
  CHECK(e.grant().export_order().upload());
  CHECK_THAT(AllEvents(e.c),
             Contains("the files that worker/0 on host far wrote to the runs folder cannot be read "
                      "on host near, so the worker sends them"));
  e.c.Say(e.worker().task, e.Chunk(0, 100));
  e.c.Deliver();
  e.End(true);
  e.CheckSuccess();
}

TEST_CASE("files in the shared folder are read back there, and a different file is refused") {
  Exporting e;
  std::ofstream(e.folder / "weights.npz") << kWhole;
  SECTION("the file is the same") {
    e.End(false);
    e.CheckSuccess();
    CHECK_THAT(AllEvents(e.c),
               Contains("weights written by worker/0 on host far and read back on host near"));
  }
  SECTION("the file is another one") {
    e.End(false, "other weights of another size");
    REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
    CHECK(e.grant().export_order().upload());
  }
}

TEST_CASE(
    "files that cannot be read back are exported again, and at last the job fails with the "
    "reason") {
  Exporting e;
  const std::uint32_t tries = JobOptions().retries_max + 1;
  for (std::uint32_t i = 0; i < tries; ++i) {
    REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
    e.End(true);  // the worker reports an upload but has sent nothing
  }
  REQUIRE(e.c.RunToEnd());
  CHECK(e.c.Status().state() == "FAILED");
  CHECK_THAT(e.c.Status().first_cause().message(), Contains("weights.npz"));
}

TEST_CASE("an export waits for a full disk for any time") {
  Exporting e;
  for (int i = 0; i < 30; ++i) {
    REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
    v1::TaskMessage message;
    v1::Failed* failed = message.mutable_failed();
    const v1::Grant granted = e.grant();
    failed->set_job_uid(granted.job_uid());
    failed->set_closure(granted.closure());
    *failed->mutable_attempt() = granted.attempt();
    failed->set_kind(v1::EXPORT);
    *failed->mutable_cause() = client::ToErrorDetail(
        absl::ResourceExhaustedError("no space left: path=/runs/weights.npz"));
    e.worker().held.clear();
    e.c.Say(e.worker().task, message);
    CHECK_THAT(e.c.job->WaitingFor(), Contains("disk space for the job's files: no space left"));
  }
  CHECK_THAT(AllEvents(e.c), Contains("cannot write the job's files, retrying: no space left"));
  REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
  e.c.Say(e.worker().task, e.Chunk(0, 100));
  e.c.Deliver();
  e.End(true);
  e.CheckSuccess();
}

TEST_CASE(
    "a worker that returns in mid-file restarts that file, and one that does not return leaves "
    "none") {
  Exporting e;
  e.c.Say(e.worker().task, e.Chunk(0, 10));
  e.c.Deliver();
  SECTION("the worker returns") {
    e.ComeBack();
    e.c.Say(e.worker().task, e.Chunk(0, 100));
    e.c.Deliver();
    REQUIRE(e.worker().files.size() == 1);
    CHECK(e.worker().files[0].written() == kWhole.size());
    e.End(true);
  }
  SECTION("another worker exports") {
    e.c.KillWorker("0");
    e.c.AddWorker("0");
    REQUIRE(e.c.Run([&] { return !e.worker().held.empty(); }));
    e.c.Say(e.worker().task, e.Chunk(0, 100));
    e.c.Deliver();
    e.End(true);
  }
  e.CheckSuccess();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(e.folder.path()))
    files += entry.is_regular_file();
  CHECK(files == 1);
}

}  // namespace
}  // namespace evergrad::coordinator
