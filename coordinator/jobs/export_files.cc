#include "coordinator/jobs/export_files.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/runs/run_files.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kTextMax = 1024;
constexpr std::chrono::seconds kTroubleSaidEvery{60};
constexpr std::uint64_t kVocabularyBytesMax = 2ull << 30;
// Memory of a waiting chunk in addition to its data, and the limit for the sum of this memory over
// all chunks of two windows.
constexpr std::uint64_t kChunkBytes = 512, kChunksBytesMax = 64u << 10;
constexpr std::uint64_t kVariableHeadBytesMax = 4096, kFileHeadBytesMax = 1u << 20;

absl::Status CheckChunk(const v1::RunFileChunk& chunk) {
  if (chunk.data().size() > client::kRunFileChunkMax ||
      (!chunk.sha256().empty() && chunk.sha256().size() != 32))
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of a run's file is too large, or its SHA-256 is malformed: bytes=",
                     chunk.data().size(), " max=", client::kRunFileChunkMax));
  if (!client::IsExportName(chunk.name()))
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk has a name that is not the name of an export file: name=",
                     client::CleanText(chunk.name(), 100)));
  if (chunk.data().empty() && chunk.bytes() != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of a run's file has no data: name=", chunk.name(),
                     " offset=", chunk.offset(), " of=", chunk.bytes()));
  return absl::OkStatus();
}

}  // namespace

// An export attempt that sends its files to the coordinator. Only the file thread uses the
// receiver. Work for that thread holds references to the receiver, and the functions that it
// returns do not, so the receiver is also destroyed on the file thread. The other members belong to
// the control executor.
struct ExportFiles::Receiving {
  Receiving(Attempt a, const std::string& folder)
      : attempt(a), receiver(std::make_shared<RunFileReceiver>(folder)) {}
  const Attempt attempt;
  std::shared_ptr<RunFileReceiver> receiver;
  std::uint64_t queued_bytes = 0;  // Bytes that the file thread has not written yet.
};

void ExportFiles::FillOrder(v1::ExportOrder* order) const {
  order->set_mark_file(client::kRunMarkFile);
  order->set_mark(client::RunMark(id_.uid));
  order->set_upload(upload_);
}

// Returns the largest size of the file. A worker cannot make the coordinator write more than the
// plan's variables need.
std::uint64_t ExportFiles::BytesMax(absl::string_view name) const {
  if (name == "model/vocabularies.json") return kVocabularyBytesMax;
  std::uint64_t bytes = kFileHeadBytesMax;
  for (const v1::ShardSpec& shard : plan_message_.shards()) {
    // The whole variable is counted at the shard with its first rows.
    if (shard.has_slot() || shard.row_begin() != 0) continue;
    std::uint64_t elements = 1;  // No overflow: the shapes of a plan are checked.
    for (const std::uint64_t d : shard.variable().shape()) elements *= d;
    bytes += elements * sizeof(float) + 4 * shard.variable().name().size() + kVariableHeadBytesMax;
  }
  return bytes;
}

// ---------------------------------------------------------------- files that are sent

absl::Status ExportFiles::OnChunk(TaskId task, const v1::RunFileChunk& chunk) {
  if (absl::Status status = CheckChunk(chunk); !status.ok()) return status;
  const Attempt attempt = client::FromProto<Attempt>(chunk.attempt());
  if (stage_ == Stage::kNone || reading_.HeldBy(task, chunk.closure(), attempt) == nullptr) {
    host_->ForeignMessage(task, "RunFileChunk of an export that its sender does not hold");
    return absl::OkStatus();
  }
  if (!receiving_ || receiving_->attempt != attempt) {
    DropReceiver();
    receiving_ = std::make_shared<Receiving>(attempt, id_.runs_folder);
  }
  // The limit is two windows: a worker that has registered again begins the file again, while
  // chunks that it sent earlier may still wait for the disk.
  const std::uint64_t bytes = chunk.data().size() + kChunkBytes;
  if (receiving_->queued_bytes + bytes > 2 * client::kRunFileWindow + kChunksBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("a worker sent too many bytes of a run's file in advance: waiting_bytes=",
                     receiving_->queued_bytes));
  if (const std::uint64_t most = BytesMax(chunk.name()); chunk.bytes() > most) {
    OnTaken(receiving_, task, chunk.closure(), chunk.name(), 0,
            absl::InvalidArgumentError(absl::StrCat(
                "a file is larger than the job's variables need: name=",
                client::CleanText(chunk.name(), 100), " bytes=", chunk.bytes(), " max=", most)));
    return absl::OkStatus();
  }
  Take(task, chunk, bytes);
  return absl::OkStatus();
}

void ExportFiles::Take(TaskId task, const v1::RunFileChunk& chunk, std::uint64_t bytes) {
  receiving_->queued_bytes += bytes;
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, task, bytes, receiving = receiving_,
                       receiver = receiving_->receiver,
                       chunk = std::make_shared<const v1::RunFileChunk>(chunk)] {
    const absl::StatusOr<std::uint64_t> taken = receiver->Take(*chunk);
    return [this, alive, task, bytes, receiving, closure = chunk->closure(), name = chunk->name(),
            taken] {
      if (!alive.expired()) OnTaken(receiving, task, closure, name, bytes, taken);
    };
  });
}

void ExportFiles::OnTaken(const std::shared_ptr<Receiving>& receiving, TaskId from,
                          std::uint64_t closure, const std::string& name, std::uint64_t bytes,
                          const absl::StatusOr<std::uint64_t>& taken) {
  receiving->queued_bytes -= bytes;
  ReadingRound::Closure* const reading =
      stage_ == Stage::kNone ? nullptr : reading_.Running(closure, receiving->attempt);
  if (receiving != receiving_ || reading == nullptr) return;
  // A chunk of a former session gets no answer, because the worker begins the file again in the new
  // session.
  if (reading->worker != from) return;
  v1::CoordinatorMessage message;
  v1::RunFileAnswer* answer = message.mutable_run_file_answer();
  answer->set_job_uid(id_.uid.value());
  answer->set_closure(closure);
  *answer->mutable_attempt() = client::ToProto(receiving->attempt);
  answer->set_name(name);
  if (taken.ok()) {
    answer->set_written(*taken);
  } else {
    *answer->mutable_error() = client::ToErrorDetail(taken.status(), "coordinator");
    if (absl::IsResourceExhausted(taken.status()))
      OnNoSpace(reading,
                absl::StrCat("on host ", host_->HostName(), ": ", taken.status().message()));
    DropReceiver();
  }
  host_->Send(reading->worker, message);
}

// The file thread closes and deletes the file, because only that thread uses the receiver.
void ExportFiles::DropReceiver() {
  if (!receiving_) return;
  host_->OnFileThread([receiver = std::move(receiving_->receiver)]() mutable {
    receiver.reset();
    return [] {};
  });
  receiving_.reset();
}

void ExportFiles::OnNoSpace(ReadingRound::Closure* closure, absl::string_view why) {
  const MonoTime now = host_->Now();
  trouble_ = client::CleanText(why, kTextMax);
  closure->not_before = now + options_.RetryDelay(++waits_);
  job_.Touch();
  if (trouble_said_at_ && now - *trouble_said_at_ < kTroubleSaidEvery) return;
  trouble_said_at_ = now;
  job_.Event("warning", absl::StrCat("cannot write the job's files, retrying: ", trouble_));
}

std::string ExportFiles::WaitingFor() const {
  return trouble_.empty() ? "" : absl::StrCat("disk space for the job's files: ", trouble_);
}

// ---------------------------------------------------------------- the files are read back

void ExportFiles::OnExported(const v1::ExportResult& reported, const std::string& worker) {
  reading_.Clear();
  DropReceiver();
  host_->OnFileThread([folder = id_.runs_folder] {
    RemoveHalfReceived(folder);
    return [] {};
  });
  // The result keeps only names of export files, each once. All of these files are read back.
  v1::ExportResult result = reported;
  result.clear_exported();
  std::set<std::string> names;
  for (const v1::RunFileInfo& file : reported.exported()) {
    if (client::IsExportName(file.name()) && names.insert(file.name()).second)
      *result.add_exported() = file;
  }
  std::vector<v1::RunFileInfo> files(result.exported().begin(), result.exported().end());
  StepCheck(std::make_shared<RunFileCheck>(id_.runs_folder, std::move(files)), ++round_, result,
            worker);
}

// `check` is shared with the file thread, which alone uses it until its step has ended.
void ExportFiles::StepCheck(const std::shared_ptr<RunFileCheck>& check, std::uint64_t round,
                            const v1::ExportResult& result, const std::string& worker) {
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, check, round, result, worker]() -> std::function<void()> {
    const bool over = check->Step();
    return [this, alive, check, round, result, worker, over] {
      // The stage may have ended or changed since the step began, for example because a shard was
      // rolled back.
      if (alive.expired() || stage_ == Stage::kNone || round != round_ || !reading_.empty()) return;
      if (!over) return StepCheck(check, round, result, worker);
      if (check->status().ok())
        OnReadBack(result, worker);
      else
        OnUnreadable(check->status(), result, worker);
    };
  });
}

void ExportFiles::OnUnreadable(const absl::Status& status, const v1::ExportResult& result,
                               const std::string& worker) {
  const std::string here = host_->HostName(), why = client::CleanText(status.message(), kTextMax);
  if (!result.uploaded()) {
    upload_ = true;
    job_.Event("state", absl::StrCat("the files that worker/", worker, " on host ",
                                     client::CleanText(result.host(), 256),
                                     " wrote to the runs folder cannot be read on host ", here,
                                     ", so the worker sends them: ", why));
    return hooks_.again(MonoTime{0});
  }
  if (stage_ == Stage::kFailed)
    return hooks_.gave_up(absl::StrCat("the files cannot be read back on host ", here, ": ", why));
  job_.Event("warning", absl::StrCat("the exported files cannot be read back on host ", here,
                                     " (failures in a row: ", ++failures_, "): ", why));
  if (failures_ > options_.retries_max)
    return job_.Fail(MakeError(status, "internal", "coordinator"), false);
  hooks_.again(host_->Now() + options_.RetryDelay(failures_));
}

void ExportFiles::OnReadBack(const v1::ExportResult& result, const std::string& worker) {
  const std::string far = client::CleanText(result.host(), 256), here = host_->HostName();
  weights_exported_ = true;
  files_.assign(result.exported().begin(), result.exported().end());
  trouble_.clear();
  std::vector<std::string> names;
  for (const v1::RunFileInfo& file : files_) names.push_back(file.name());
  if (!names.empty()) {
    job_.Event("state", absl::StrCat(result.uploaded() ? "weights sent by worker/"
                                                       : "weights written by worker/",
                                     worker, " on host ", far, " and read back on host ", here,
                                     ": ", absl::StrJoin(names, ", ")));
  } else if (result.files_size() > 0) {
    job_.Event(
        "state",
        absl::StrCat("weights written on host ", far, ": ", result.files(0).substr(0, kTextMax),
                     result.files_size() == 1
                         ? ""
                         : absl::StrCat(" and ", result.files_size() - 1, " more")));
  }
  if (plan_ && plan_message_.tables_size() > 0) {
    // A table may be larger than the memory of a worker, so its rows are exported from a
    // checkpoint.
    job_.Event(
        "state",
        absl::StrCat(
            "embedding tables are not among the exported weights: ",
            rounds_.on()
                ? absl::StrCat("psctl checkpoint export ", rounds_.folder().substr(0, kTextMax),
                               " --to FILE.npz writes their rows")
                : "checkpoints are off for this job, so their rows are lost when it ends"));
  }
  hooks_.done();
}

// ---------------------------------------------------------------- the journal

void ExportFiles::Fill(v1::JobSnapshot* snapshot) const {
  snapshot->set_weights_exported(weights_exported_);
}

void ExportFiles::Read(const v1::JobSnapshot& snapshot) {
  weights_exported_ = snapshot.weights_exported();
}

}  // namespace evergrad::coordinator
