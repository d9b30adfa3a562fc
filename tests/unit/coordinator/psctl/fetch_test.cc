// Tests how psctl fetches the files of a run by control calls. The cases are damage, files that
// change during the transfer, invalid names, and files that already exist.
#include "coordinator/psctl/fetch.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/client/control.h"
#include "common/client/protocol.h"
#include "common/fs/file.h"
#include "common/snapshot/checksum.h"
#include "tests/support/inproc/inproc_transport.h"
#include "tests/support/temp_folder.h"

namespace evergrad::psctl {
namespace {

using Catch::Matchers::Contains;

constexpr char kAddress[] = "127.0.0.1:4000";

std::string Sha256Of(const std::string& bytes) {
  snapshot::Sha256 hash;
  hash.Update(snapshot::BytesOf(bytes));
  const auto value = hash.Value();
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

class QuickClock final : public Clock {
 public:
  MonoTime Now() const override { return now_ += std::chrono::milliseconds(500); }
  std::int64_t WallMillis() const override { return 1'000'000; }

 private:
  mutable MonoTime now_{0};
};

// A coordinator that has one ended job with files, and a psctl that fetches them.
struct Stage {
  Stage() {
    transport::Handlers handlers;
    handlers.unary = [this](const transport::PeerInfo&, absl::string_view method,
                            std::string request,
                            std::unique_ptr<transport::UnaryResponder> responder) {
      responder->Answer(Handle(std::string(method), request));
    };
    transport::ServerOptions options;
    options.listen = kAddress;
    auto made = transport->Listen(options, std::move(handlers));
    EG_CHECK(made.ok());
    server = *std::move(made);
    context.transport = transport.get();
    context.clock = &clock;
    context.folder = folder.path();
    context.inbox = &inbox;
    context.handles_signals = &handles_signals;
    context.environment = {{"EVERGRAD_COORDINATOR", kAddress}};
    files["result.json"] = "{}\n";
    files["weights.npz"] = std::string(client::kRunFileChunkMax + 1000, 'w');
    files["model/load.py"] = "print()\n";
    status.set_job_uid(0x2a);
    status.set_name("job");
    status.set_state("SUCCEEDED");
    status.set_revision(1);
    status.set_runs_folder("/nowhere/runs/job-2a");
    status.set_runs_host("far");
    status.set_runs_mark("mark of job 2a\n");
    status.set_result_json("{}\n");
  }

  absl::StatusOr<std::string> Handle(const std::string& method, const std::string& bytes) {
    MutexLock lock(&mu);
    ++calls[method];
    if (method == client::ControlMethod<v1::GetJobRequest>()) {
      v1::GetJobResponse response;
      *response.mutable_job() = status;
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::SubmitJobRequest>()) {
      v1::SubmitJobResponse response;
      response.set_job_uid(status.job_uid());
      response.set_name("job");
      response.set_runs_folder(status.runs_folder());
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ListRunFilesRequest>()) {
      v1::ListRunFilesResponse response;
      response.set_job_uid(0x2a);
      response.set_state(status.state());
      response.set_host("far");
      response.set_folder(status.runs_folder());
      for (const auto& [name, contents] : files) {
        v1::RunFileInfo* file = response.add_files();
        file->set_name(name);
        file->set_bytes(contents.size());
        file->set_sha256(Sha256Of(contents));
      }
      return response.SerializeAsString();
    }
    if (method == client::ControlMethod<v1::ReadRunFileRequest>()) {
      v1::ReadRunFileRequest request;
      EG_CHECK(request.ParseFromString(bytes));
      EG_CHECK(request.job() == "000000000000002a");
      if (refuse > 0 && --refuse >= 0) return refusal;
      v1::ReadRunFileResponse response;
      const std::string& whole = files.at(request.name());
      response.set_data(request.offset() >= whole.size()
                            ? ""
                            : whole.substr(request.offset(), request.bytes_max()));
      response.set_crc32c(snapshot::Crc32c(snapshot::BytesOf(response.data())));
      if (on_read) on_read(request, &response);
      return response.SerializeAsString();
    }
    return absl::UnimplementedError(method);
  }
  int Run(std::vector<std::string> args) {
    out.str("");
    err.str("");
    return RunPsctl(context, args);
  }
  std::string At(const std::string& name) {
    return fs::ReadFile(folder / name, 10 << 20).value_or("(none)");
  }
  std::size_t FilesHere() {
    std::size_t n = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
      n += entry.is_regular_file();
    return n;
  }

  const test::TempFolder folder;
  Inbox<Happening> inbox;
  std::unique_ptr<transport::Transport> transport = transport::MakeInprocTransport(nullptr);
  QuickClock clock;
  std::atomic<bool> handles_signals{false};
  std::ostringstream out, err;
  Context context{out, err};
  Mutex mu;
  std::map<std::string, std::string> files;
  std::map<std::string, int> calls;
  v1::JobStatus status;
  int refuse = 0;
  absl::Status refusal =
      absl::ResourceExhaustedError("too many calls that read files of runs: limit=16");
  std::function<void(const v1::ReadRunFileRequest&, v1::ReadRunFileResponse*)> on_read;
  // This member is the last one, so the server stops before the members that its handlers use are
  // destroyed.
  std::unique_ptr<transport::Server> server;
};

TEST_CASE("fetch downloads every file of a run whole, and skips local files that are complete") {
  Stage stage;
  stage.refuse = 3;  // a call that a busy coordinator refuses is repeated
  REQUIRE(stage.Run({"job", "fetch", "job", "--to", "here"}) == kSucceeded);
  CHECK_THAT(
      stage.out.str(),
      Contains("from far:/nowhere/runs/job-2a: here/   (model/load.py, result.json, weights.npz)"));
  for (const auto& [name, contents] : stage.files) CHECK(stage.At("here/" + name) == contents);
  CHECK(std::filesystem::equivalent(stage.folder / "here/weights.npz",
                                    stage.folder / "here/model/weights.npz"));
  const int reads = stage.calls[client::ControlMethod<v1::ReadRunFileRequest>()];
  CHECK(reads == 3 + 4);
  std::ofstream(stage.folder / "here/result.json") << "damaged";
  REQUIRE(stage.Run({"job", "fetch", "job", "--to", "here", "--output", "json"}) == kSucceeded);
  CHECK(stage.calls[client::ControlMethod<v1::ReadRunFileRequest>()] == reads + 1);
  CHECK(stage.At("here/result.json") == "{}\n");
  CHECK(stage.Run({"job", "fetch", "job"}) == kUsage);
  CHECK_THAT(stage.err.str(), Contains("--to"));
}

TEST_CASE("a folder with another run's files is refused and stays unchanged") {
  Stage stage;
  REQUIRE(stage.Run({"job", "fetch", "job", "--to", "here"}) == kSucceeded);
  // The second call finds the files of the same run, so it succeeds.
  REQUIRE(stage.Run({"job", "fetch", "job", "--to", "here"}) == kSucceeded);
  std::ofstream(stage.folder / "here/.evergrad-fetched")
      << "evergrad run of job 00000000000000ff\n";
  stage.files["result.json"] = "{\"newer\": 1}\n";
  CHECK(stage.Run({"job", "fetch", "job", "--to", "here"}) == kUsage);
  CHECK_THAT(stage.err.str(), Contains("has the files of another run") &&
                                  Contains("00000000000000ff") && Contains("000000000000002a"));
  CHECK(stage.At("here/result.json") == "{}\n");
}

TEST_CASE(
    "a damaged part or a changing file is read again and at last named, and no partial file "
    "remains") {
  Stage stage;
  int damaged = 1;
  stage.on_read = [&](const v1::ReadRunFileRequest& request, v1::ReadRunFileResponse* response) {
    if (request.name() == "weights.npz" && request.offset() > 0 && damaged > 0)
      --damaged, response->mutable_data()->at(0) ^= 1;
  };
  REQUIRE(stage.Run({"job", "fetch", "job", "--to", "once"}) == kSucceeded);
  CHECK(stage.At("once/weights.npz") == stage.files["weights.npz"]);

  damaged = 1000;
  CHECK(stage.Run({"job", "fetch", "job", "--to", "ever"}) != kSucceeded);
  CHECK_THAT(stage.err.str(), Contains("damaged in transit: name=weights.npz"));
  CHECK_FALSE(fs::Exists(stage.folder / "ever/weights.npz"));
  // The checksums of the parts are right, but the whole file does not have the listed hash.
  stage.on_read = [&](const v1::ReadRunFileRequest& request, v1::ReadRunFileResponse* response) {
    if (request.name() != "weights.npz") return;
    response->mutable_data()->at(0) ^= 1;
    response->set_crc32c(snapshot::Crc32c(snapshot::BytesOf(response->data())));
  };
  CHECK(stage.Run({"job", "fetch", "job", "--to", "other"}) != kSucceeded);
  CHECK_THAT(stage.err.str(), Contains("the digest of a file differs"));
  CHECK_FALSE(fs::Exists(stage.folder / "other/weights.npz"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(stage.folder.path()))
    CHECK(entry.path().string().find(".tmp") == std::string::npos);
}

TEST_CASE("no name from a coordinator becomes a path") {
  Stage stage;
  for (const std::string name :
       {"../outside", "/etc/evergrad", "model/../../outside", "notes.txt"}) {
    stage.files = {{name, "x"}};
    CHECK(stage.Run({"job", "fetch", "job", "--to", "here"}) != kSucceeded);
    CHECK_THAT(stage.err.str(), Contains("list of files: name="));
  }
  CHECK(stage.FilesHere() == 0);
  stage.files.clear();
  CHECK(stage.Run({"job", "fetch", "job", "--to", "here"}) != kSucceeded);
  CHECK_THAT(stage.err.str(), Contains("the run has no files yet"));
}

TEST_CASE(
    "a run is visible if its folder has the coordinator's mark, or for an ended job the same "
    "result") {
  const test::TempFolder folder;
  v1::JobStatus job;
  job.set_state("SUCCEEDED");
  job.set_runs_folder(folder.path());
  job.set_result_json("{\"state\": \"SUCCEEDED\"}\n");
  CHECK(SeesRun(job));  // this coordinator puts no mark into the status
  job.set_runs_mark("mark\n");
  CHECK_FALSE(SeesRun(job));
  std::ofstream(folder / client::kRunMarkFile) << "mark\n";
  CHECK_FALSE(SeesRun(job));  // the copied folder has the mark but no result.json
  std::ofstream(folder / "result.json") << job.result_json();
  CHECK(SeesRun(job));
  job.set_state("RUNNING");
  job.set_result_json("");
  CHECK(SeesRun(job));
  std::ofstream(folder / client::kRunMarkFile) << "another mark\n";
  CHECK_FALSE(SeesRun(job));
}

TEST_CASE(
    "job show and job watch name the host of remote files, and the command that fetches them") {
  Stage stage;
  REQUIRE(stage.Run({"job", "show", "job"}) == kSucceeded);
  CHECK_THAT(stage.out.str(),
             Contains("the run's files: on host far: /nowhere/runs/job-2a/   (report.html"));
  CHECK_THAT(stage.out.str(), Contains("psctl job fetch 000000000000002a --to DIR"));
  REQUIRE(stage.Run({"job", "watch", "job"}) == kSucceeded);
  CHECK_THAT(stage.out.str(), Contains("the run's files: on host far"));
  CHECK(stage.FilesHere() == 0);
}

}  // namespace
}  // namespace evergrad::psctl
