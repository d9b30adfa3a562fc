// psctl job fetch.
#include "coordinator/psctl/fetch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "common/daemon/option_table.h"
#include "common/fs/file.h"
#include "common/fs/file_system.h"
#include "common/fs/link.h"
#include "common/fs/raw_file.h"
#include "common/snapshot/checksum.h"
#include "coordinator/psctl/json_output.h"
#include "coordinator/psctl/progress.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

// The name of a file in a folder of fetched files. The contents of the file identify the run.
constexpr char kFetchedMark[] = ".evergrad-fetched";
constexpr std::uint64_t kResultBytesMax = 64u << 20;
// Limit on how often a file is listed and read again because it changed while it was read.
constexpr int kListedMax = 4;
// The coordinator reads every file of the run before it answers with the list.
constexpr auto kListingLonger = std::chrono::minutes(10);
constexpr auto kPause = std::chrono::milliseconds(200);

// Returns whether the file is already complete on this machine and need not be transferred again.
bool IsHere(const std::string& path, const v1::RunFileInfo& file) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat about {};
  bool same = ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
              static_cast<std::uint64_t>(about.st_size) == file.bytes();
  snapshot::Sha256 hash;
  std::vector<std::byte> buffer(1u << 20);
  for (ssize_t n = 1; same && n > 0;) {
    n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0) same = false;
    if (n > 0) hash.Update(std::span(buffer).first(static_cast<std::size_t>(n)));
  }
  ::close(fd);
  return same && hash.Bytes() == file.sha256();
}

class Fetcher {
 public:
  Fetcher(Context& context, ControlClient& client, const FetchOptions& options)
      : context_(context), client_(client), options_(options) {}

  absl::StatusOr<Fetched> Run() {
    Fetched fetched;
    for (int listed = 1;; ++listed) {
      v1::ListRunFilesRequest request;
      request.set_job(options_.job);
      EG_ASSIGN_OR_RETURN(const v1::ListRunFilesResponse list, Patiently([&] {
                            return client_.Call<v1::ListRunFilesResponse>(request, kListingLonger);
                          }));
      fetched.host = list.host();
      fetched.there = list.folder();
      fetched.state = list.state();
      fetched.files.clear();
      uid_ = ShowHex(list.job_uid());  // a repeated call by name may find another job
      EG_RETURN_IF_ERROR(Check(list));
      EG_RETURN_IF_ERROR(TakeFolder(JobUid(list.job_uid())));
      absl::Status changed;
      for (const v1::RunFileInfo& file : list.files()) {
        absl::Status status = Bring(file, &fetched.bytes);
        if (absl::IsDataLoss(status) || absl::IsNotFound(status)) {
          changed = status;  // the file was rewritten during the transfer
          continue;
        }
        EG_RETURN_IF_ERROR(status);
        fetched.files.push_back(file.name());
      }
      if (changed.ok()) {
        // As in the run itself, the weights are linked into the folder `model`. Without the links
        // load.py finds the weights in the parent folder.
        const std::string weights = absl::StrCat(options_.folder, "/weights.npz"),
                          model = absl::StrCat(options_.folder, "/model");
        if (fs::Exists(weights) && fs::Exists(model))
          (void)fs::LinkFile(weights, absl::StrCat(model, "/weights.npz"));
        return fetched;
      }
      if (listed == kListedMax) return absl::Status(absl::StatusCode::kDataLoss, changed.message());
    }
  }

 private:
  absl::Status Check(const v1::ListRunFilesResponse& list) const {
    std::set<std::string> names;
    for (const v1::RunFileInfo& file : list.files()) {
      if (!client::IsRunFileName(file.name()) || !names.insert(file.name()).second ||
          file.sha256().size() != 32)
        return absl::InternalError(absl::StrCat(
            "cannot read the coordinator's list of files: name=", CleanText(file.name(), 100)));
    }
    if (names.empty())
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("the run has no files yet: job=", options_.job, " state=", list.state())));
    return absl::OkStatus();
  }

  // Takes the folder for this run only, because files of two runs in one folder could be mistaken
  // for one model.
  absl::Status TakeFolder(JobUid job) const {
    const std::string path = absl::StrCat(options_.folder, "/", kFetchedMark),
                      mine = client::RunMark(job);
    const auto there = fs::ReadFile(path, client::kRunMarkBytesMax);
    if (there.ok() && *there == mine) return absl::OkStatus();
    if (there.ok())
      return UserError(absl::FailedPreconditionError(
          absl::StrCat("the folder already has the files of another run: folder=", options_.folder,
                       " has=", CleanText(absl::StripAsciiWhitespace(*there), 100), " want=job ",
                       uid_, " (name an empty folder, or remove this one first)")));
    if (!absl::IsNotFound(there.status())) return there.status();
    EG_RETURN_IF_ERROR(fs::MakeDirectories(options_.folder));
    return fs::WriteFileAtomic(path, mine);
  }

  // Repeats `call` until its answer is final.
  template <class F>
  auto Patiently(F call) -> decltype(call()) {
    std::optional<MonoTime> since;
    for (;;) {
      auto answer = call();
      const bool again = absl::IsUnavailable(answer.status()) ||
                         absl::IsDeadlineExceeded(answer.status()) ||
                         absl::IsResourceExhausted(answer.status());
      if (answer.ok() || !again) return answer;
      const MonoTime now = context_.clock->Now();
      if (!since) since = now;
      if (now - *since >= options_.retry_for) return answer;
      if (const auto happening = context_.inbox->Take(kPause); happening && happening->signal != 0)
        return absl::CancelledError("interrupted");
    }
  }

  absl::Status Bring(const v1::RunFileInfo& file, std::uint64_t* bytes) {
    const std::string path = absl::StrCat(options_.folder, "/", file.name());
    if (IsHere(path, file)) return absl::OkStatus();
    EG_RETURN_IF_ERROR(fs::MakeDirectories(fs::FolderOf(path)));
    const std::string beside = absl::StrCat(path, ".", ::getpid(), ".tmp");
    const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fs::FileError(errno, "cannot create file", path);
    absl::Status status = Receive(file, fd, beside);
    if (status.ok() && ::fsync(fd) != 0) status = fs::FileError(errno, "cannot sync", beside);
    ::close(fd);
    if (status.ok() && std::rename(beside.c_str(), path.c_str()) != 0)
      status = fs::FileError(errno, "cannot rename", path);
    if (!status.ok()) {
      ::unlink(beside.c_str());
      return status;
    }
    *bytes += file.bytes();
    return absl::OkStatus();
  }

  absl::Status Receive(const v1::RunFileInfo& file, int fd, const std::string& beside) {
    snapshot::Sha256 hash;
    v1::ReadRunFileRequest request;
    request.set_job(uid_);
    request.set_name(file.name());
    for (std::uint64_t offset = 0; offset < file.bytes();) {
      request.set_offset(offset);
      request.set_bytes_max(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(client::kRunFileChunkMax, file.bytes() - offset)));
      EG_ASSIGN_OR_RETURN(const v1::ReadRunFileResponse part, Patiently([&] {
                            return client_.Call<v1::ReadRunFileResponse>(request);
                          }));
      if (part.data().empty() || part.data().size() > request.bytes_max())
        return absl::DataLossError(absl::StrCat(
            "a file changed while it was read: name=", file.name(), " offset=", offset));
      if (snapshot::Crc32c(snapshot::BytesOf(part.data())) != part.crc32c())
        return absl::DataLossError(absl::StrCat(
            "a chunk of a file was damaged in transit: name=", file.name(), " offset=", offset));
      hash.Update(snapshot::BytesOf(part.data()));
      EG_RETURN_IF_ERROR(fs::WriteAll(fd, snapshot::BytesOf(part.data()), beside));
      offset += part.data().size();
      if (const auto happening = context_.inbox->Take(std::chrono::nanoseconds(0));
          happening && happening->signal != 0)
        return absl::CancelledError("interrupted");
    }
    if (hash.Bytes() != file.sha256())
      return absl::DataLossError(
          absl::StrCat("the digest of a file differs from the coordinator's: name=", file.name()));
    return absl::OkStatus();
  }

  Context& context_;
  ControlClient& client_;
  const FetchOptions& options_;
  std::string uid_;
};

}  // namespace

bool SeesRun(const v1::JobStatus& job) {
  if (job.runs_mark().empty()) return true;
  const auto mark = fs::ReadFile(absl::StrCat(job.runs_folder(), "/", client::kRunMarkFile),
                                 client::kRunMarkBytesMax);
  if (!mark.ok() || *mark != job.runs_mark()) return false;
  if (!IsEnded(job) || job.result_json().empty()) return true;
  // The mark alone is not enough, because a copy of the folder from before the end of the job also
  // has the mark.
  const auto result =
      fs::ReadFile(absl::StrCat(job.runs_folder(), "/result.json"), kResultBytesMax);
  return result.ok() && *result == job.result_json();
}

absl::StatusOr<Fetched> FetchRun(Context& context, ControlClient& client,
                                 const FetchOptions& options) {
  context.handles_signals->store(true);
  return Fetcher(context, client, options).Run();
}

int FetchJob(Context& context, const std::vector<std::string>& args) {
  FetchOptions options;
  Connection connection;
  std::string output = "text";
  daemon::OptionTable table(
      "psctl job fetch",
      "copies the files of a run to this machine: report.html, result.json, metrics.jsonl, "
      "job.yaml, weights.npz, weights.safetensors and the folder model. Files are sent in chunks "
      "with checksums, and each file is written completely or not at all. Files that are already "
      "here are not copied again, so a second call resumes an interrupted copy",
      daemon::OptionTable::Kind::kCommand);
  table.AddArgument("JOB", &options.job,
                    "uid or name of the job; a name means the newest job of that name");
  table.Add("to", &options.folder, "folder for the files; created if it does not exist");
  AddConnectionOptions(&table, &connection);
  AddOutputOption(&table, &output);
  if (const auto code = ParseArguments(context, &table, args)) return *code;
  if (options.folder.empty())
    return Report(context, UserError(absl::InvalidArgumentError(
                               "--to is missing: expected the folder for the files")));
  options.folder = AbsolutePath(context, options.folder);
  auto client = ControlClient::Connect(context, connection);
  if (!client.ok()) return Report(context, client.status());
  const auto fetched = FetchRun(context, **client, options);
  if (absl::IsCancelled(fetched.status())) return kInterrupted;
  if (!fetched.ok()) return Report(context, fetched.status());
  if (output == "json") {
    context.out << Dump({{"folder", options.folder},
                         {"host", fetched->host},
                         {"state", fetched->state},
                         {"files", fetched->files},
                         {"bytes", fetched->bytes}})
                << "\n";
  } else {
    context.out << "from " << Printable(fetched->host) << ":" << Printable(fetched->there) << ": "
                << ShowPath(context, options.folder) << "/   ("
                << absl::StrJoin(fetched->files, ", ") << ")\n";
    if (fetched->state != "SUCCEEDED")
      context.out << "the job is " << Printable(fetched->state) << ": these are its files so far\n";
  }
  return kSucceeded;
}

}  // namespace evergrad::psctl
