#include "coordinator/service/run_file_calls.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/snapshot/checksum.h"
#include "coordinator/runs/run_files.h"

namespace evergrad::coordinator {
namespace {

// The coordinator computed the digests of exported files when it read them back. A listing
// therefore need not read large files again.
std::vector<v1::RunFileInfo> KnownFiles(const std::string& result_json) {
  std::vector<v1::RunFileInfo> files;
  const auto result = nlohmann::json::parse(result_json, nullptr, false);
  if (!result.is_object() || !result.contains("files") || !result["files"].is_array()) return files;
  for (const auto& file : result["files"]) {
    if (!file.is_object() || !file.value("name", nlohmann::json()).is_string() ||
        !file.value("bytes", nlohmann::json()).is_number_unsigned() ||
        !file.value("sha256", nlohmann::json()).is_string())
      continue;
    v1::RunFileInfo& info = files.emplace_back();
    info.set_name(file["name"].get<std::string>());
    info.set_bytes(file["bytes"].get<std::uint64_t>());
    info.set_sha256(absl::HexStringToBytes(file["sha256"].get<std::string>()));
  }
  return files;
}

}  // namespace

bool RunFileCalls::Begin(const Responder& responder) {
  if (calls_ < parts_.options->file_calls_max) {
    ++calls_;
    return true;
  }
  responder->Answer(absl::ResourceExhaustedError(absl::StrCat(
      "too many calls that read files of runs: limit=", parts_.options->file_calls_max)));
  return false;
}

void RunFileCalls::Serve(const v1::ListRunFilesRequest& request, const Responder& responder) {
  const Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  if (!Begin(responder)) return;
  v1::JobStatus status;
  job->FillStatus(&status, ~0ull);
  v1::ListRunFilesResponse response;
  response.set_job_uid(status.job_uid());
  response.set_name(status.name());
  response.set_state(status.state());
  response.set_host(status.runs_host());
  response.set_folder(status.runs_folder());
  StepListing(
      std::make_shared<RunFileListing>(status.runs_folder(), KnownFiles(status.result_json())),
      std::move(response), responder);
}

// `listing` is shared with the file thread, which alone uses it until its step has ended.
void RunFileCalls::StepListing(std::shared_ptr<RunFileListing> listing,
                               v1::ListRunFilesResponse response, Responder responder) {
  parts_.files->Run([this, listing, response = std::move(response),
                     responder = std::move(responder)]() mutable -> std::function<void()> {
    const bool over = listing->Step();
    return [this, listing, over, response = std::move(response),
            responder = std::move(responder)]() mutable {
      if (!over && !parts_.life->stopped)
        return StepListing(std::move(listing), std::move(response), std::move(responder));
      --calls_;
      if (!over) return responder->Answer(StoppingError());
      response.mutable_files()->Assign(listing->files().begin(), listing->files().end());
      AnswerWith(*responder, response);
    };
  });
}

void RunFileCalls::Serve(const v1::ReadRunFileRequest& request, const Responder& responder) {
  const Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  if (!Begin(responder)) return;
  const std::size_t bytes_max =
      request.bytes_max() == 0
          ? client::kRunFileChunkMax
          : std::min<std::size_t>(request.bytes_max(), client::kRunFileChunkMax);
  parts_.files->Run([this, folder = job->runs_folder(), name = request.name(),
                     offset = request.offset(), bytes_max, responder]() -> std::function<void()> {
    absl::StatusOr<std::string> data = ReadRunFilePart(folder, name, offset, bytes_max);
    return [this, data = std::move(data), responder]() mutable {
      --calls_;
      if (!data.ok()) return responder->Answer(data.status());
      v1::ReadRunFileResponse response;
      response.set_crc32c(snapshot::Crc32c(snapshot::BytesOf(*data)));
      response.set_data(*std::move(data));
      AnswerWith(*responder, response);
    };
  });
}

}  // namespace evergrad::coordinator
