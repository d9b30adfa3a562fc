#include "coordinator/service/file_writer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/fs/file.h"

namespace evergrad::coordinator {

FileWriter::FileWriter(Parts parts, std::uint64_t bytes_max)
    : parts_(parts),
      bytes_max_(bytes_max),
      limit_(*parts.registry, "evergrad_coordinator_file_bytes",
             "bytes of metrics.jsonl that wait to be written; refused: includes failed writes",
             static_cast<double>(bytes_max)) {}

void FileWriter::WriteFiles(const std::string& folder, std::vector<RunFile> files, Done done) {
  parts_.files->Post([this, folder, files = std::move(files), done = std::move(done)] {
    absl::Status status = fs::MakeDirectories(folder);
    // These files describe a job, and the lines of the job were appended earlier. The lines are
    // synced first, because they must survive a power failure if the files survive it.
    if (const std::string lines = absl::StrCat(folder, "/metrics.jsonl");
        status.ok() && fs::Exists(lines))
      status = fs::SyncFile(lines);
    for (const RunFile& file : files) {
      const std::string path = absl::StrCat(folder, "/", file.name);
      if (status.ok() && absl::StrContains(file.name, '/'))
        status = fs::MakeDirectories(fs::FolderOf(path));
      if (status.ok()) status = fs::WriteFileAtomic(path, file.contents());
    }
    parts_.control->Post([done, status] { done(status); });
  });
}

void FileWriter::Run(std::function<std::function<void()>()> work) {
  parts_.files->Post([this, work = std::move(work)] { parts_.control->Post(work()); });
}

void FileWriter::AppendLines(const std::string& folder, const std::string& name, std::string lines,
                             Done done) {
  if (!lines.empty() && lines.back() == '\n') lines.pop_back();
  const std::uint64_t bytes = lines.size();
  WriteLines(
      absl::StrCat(folder, "/", name), bytes, std::move(done),
      [lines = std::move(lines)](const std::string& path) { return fs::AppendLine(path, lines); });
}

void FileWriter::RestoreLines(const std::string& folder, const std::string& name,
                              std::uint64_t offset, std::string tail, Done done) {
  const std::uint64_t bytes = tail.size();
  WriteLines(absl::StrCat(folder, "/", name), bytes, std::move(done),
             [folder, offset, tail = std::move(tail)](const std::string& path) {
               const absl::Status status = fs::MakeDirectories(folder);
               return status.ok() ? fs::RestoreEnd(path, offset, tail) : status;
             });
}

void FileWriter::WriteLines(const std::string& path, std::uint64_t bytes, Done done,
                            std::function<absl::Status(const std::string& path)> write) {
  const auto answer = [this](Done to, absl::Status status) {
    parts_.control->Post([to = std::move(to), status = std::move(status)] { to(status); });
  };
  if (bytes_.fetch_add(bytes) + bytes > bytes_max_) {
    bytes_.fetch_sub(bytes);
    limit_.refused.Add();
    answer(std::move(done),
           absl::ResourceExhaustedError("too many bytes wait to be written to disk"));
    return;
  }
  const bool posted = parts_.files->Post(
      [this, path, bytes, answer, done = std::move(done), write = std::move(write)]() mutable {
        const absl::Status status = write(path);
        const bool written = status.ok() || absl::IsDataLoss(status);
        if (!written) limit_.refused.Add();
        const std::string trouble =
            write_trouble_.After(path, written ? absl::OkStatus() : status, parts_.clock->Now());
        if (!trouble.empty()) parts_.logger->Warning(trouble);
        bytes_.fetch_sub(bytes);
        answer(std::move(done), status);
      });
  if (!posted) bytes_.fetch_sub(bytes);
}

}  // namespace evergrad::coordinator
