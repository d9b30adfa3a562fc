// The export closure and its files: written to the runs folder by the worker where it sees that
// folder, sent to the coordinator where it does not; read back in either case before anything is
// called present.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/client/run_file_names.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/runs/run_files.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kTextMax = 1024;
constexpr std::chrono::seconds kTroubleSaidEvery{60};
constexpr std::uint64_t kVocabularyBytesMax = 2ull << 30;
// What a chunk costs while it waits beside its data, and room for as many as two windows are.
constexpr std::uint64_t kChunkBytes = 512, kChunksBytesMax = 64u << 10;
constexpr std::uint64_t kVariableHeadBytesMax = 4096, kFileHeadBytesMax = 1u << 20;

}  // namespace

// One export attempt whose files come by RunFileChunks. The receiver is the file thread's: work for
// that thread shares it, and the way back does not, so that the file thread destroys it. The rest
// is the control executor's.
struct Job::Receiving {
  Receiving(Attempt a, const std::string& folder)
      : attempt(a), receiver(std::make_shared<RunFileReceiver>(folder)) {}
  const Attempt attempt;
  std::shared_ptr<RunFileReceiver> receiver;
  std::uint64_t queued_bytes = 0;  // handed to the file thread and not back
};

void Job::FillExportOrder(v1::ExportOrder* order) const {
  order->set_mark_file(client::kRunMarkFile);
  order->set_mark(client::RunMark(id_.uid));
  order->set_upload(export_upload_);
}

// A worker may make the coordinator write no more than the plan's variables need.
std::uint64_t Job::ExportBytesMax(absl::string_view name) const {
  if (name == "model/vocabularies.json") return kVocabularyBytesMax;
  std::uint64_t bytes = kFileHeadBytesMax;
  for (const v1::ShardSpec& shard : plan_message_.shards()) {
    // A variable is counted whole, with the shard of its first rows.
    if (shard.has_slot() || shard.row_begin() != 0) continue;
    std::uint64_t elements = 1;  // The shapes of a plan are checked.
    for (const std::uint64_t d : shard.variable().shape()) elements *= d;
    bytes += elements * sizeof(float) + 4 * shard.variable().name().size() + kVariableHeadBytesMax;
  }
  return bytes;
}

absl::Status Job::OnRunFile(TaskId task, const v1::RunFileChunk& chunk) {
  if (chunk.data().size() > client::kRunFileChunkMax ||
      (!chunk.sha256().empty() && chunk.sha256().size() != 32))
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of a run's file is too large: bytes=", chunk.data().size(),
                     " max=", client::kRunFileChunkMax));
  if (!client::IsExportName(chunk.name()))
    return absl::InvalidArgumentError(
        absl::StrCat("not a file of an export: name=", client::CleanText(chunk.name(), 100)));
  if (chunk.data().empty() && chunk.bytes() != 0)
    return absl::InvalidArgumentError(absl::StrCat("a chunk without data: name=", chunk.name(),
                                                   " offset=", chunk.offset(),
                                                   " of=", chunk.bytes()));
  const Attempt attempt = client::FromProto<Attempt>(chunk.attempt());
  if (!exporting() || reading_.HeldBy(task, chunk.closure(), attempt) == nullptr) {
    host_->ForeignMessage(task, "RunFileChunk of an export that it does not hold");
    return absl::OkStatus();
  }
  if (!receiving_ || receiving_->attempt != attempt) {
    DropReceiving();
    receiving_ = std::make_shared<Receiving>(attempt, id_.runs_folder);
  }
  // A worker that has registered again begins anew while what it sent before may still wait for the
  // disk.
  const std::uint64_t bytes = chunk.data().size() + kChunkBytes;
  if (receiving_->queued_bytes + bytes > 2 * client::kRunFileWindow + kChunksBytesMax)
    return absl::InvalidArgumentError(absl::StrCat(
        "more of a run's file than the window allows: waiting_bytes=", receiving_->queued_bytes));
  if (const std::uint64_t most = ExportBytesMax(chunk.name()); chunk.bytes() > most) {
    OnRunFileTaken(
        receiving_, task, chunk.closure(), chunk.name(), 0,
        absl::InvalidArgumentError(absl::StrCat(
            "a file is larger than the job's variables can make it: name=",
            client::CleanText(chunk.name(), 100), " bytes=", chunk.bytes(), " max=", most)));
    return absl::OkStatus();
  }
  receiving_->queued_bytes += bytes;
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, task, bytes, receiving = receiving_,
                       receiver = receiving_->receiver,
                       chunk = std::make_shared<const v1::RunFileChunk>(chunk)] {
    const absl::StatusOr<std::uint64_t> taken = receiver->Take(*chunk);
    return [this, alive, task, bytes, receiving, closure = chunk->closure(), name = chunk->name(),
            taken] {
      if (!alive.expired()) OnRunFileTaken(receiving, task, closure, name, bytes, taken);
    };
  });
  return absl::OkStatus();
}

void Job::OnRunFileTaken(const std::shared_ptr<Receiving>& receiving, TaskId from,
                         std::uint64_t closure, const std::string& name, std::uint64_t bytes,
                         const absl::StatusOr<std::uint64_t>& taken) {
  receiving->queued_bytes -= bytes;
  ReadingRound::Closure* reading =
      exporting() ? reading_.Running(closure, receiving->attempt) : nullptr;
  if (receiving != receiving_ || reading == nullptr) return;
  if (reading->worker != from)
    return;  // it was sent in a former session, and in this one the file begins anew
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
      ExportHasNoRoom(reading,
                      absl::StrCat("on host ", host_->HostName(), ": ", taken.status().message()));
    DropReceiving();
  }
  host_->Send(reading->worker, message);
}

// Files are closed and deleted where they are written.
void Job::DropReceiving() {
  if (!receiving_) return;
  host_->OnFileThread([receiver = std::move(receiving_->receiver)]() mutable {
    receiver.reset();
    return [] {};
  });
  receiving_.reset();
}

// A full disk is waited for: the job has its weights, only no place for them yet.
void Job::ExportHasNoRoom(ReadingRound::Closure* reading, absl::string_view why) {
  const MonoTime now = host_->Now();
  export_trouble_ = client::CleanText(why, kTextMax);
  reading->not_before = now + options_.RetryDelay(++export_waits_);
  Touch();
  if (export_trouble_said_at_ != MonoTime{0} && now - export_trouble_said_at_ < kTroubleSaidEvery)
    return;
  export_trouble_said_at_ = now;
  Event("warning", absl::StrCat("cannot write the job's files, retrying: ", export_trouble_));
}

void Job::FinishExport(const v1::ExportResult& said, const std::string& worker) {
  reading_.Clear();
  DropReceiving();
  host_->OnFileThread([folder = id_.runs_folder] {
    RemoveHalfReceived(folder);
    return [] {};
  });
  // What is not read back is in no result.
  v1::ExportResult result = said;
  result.clear_exported();
  std::set<std::string> names;
  for (const v1::RunFileInfo& file : said.exported()) {
    if (client::IsExportName(file.name()) && names.insert(file.name()).second)
      *result.add_exported() = file;
  }
  std::vector<v1::RunFileInfo> files(result.exported().begin(), result.exported().end());
  StepExportCheck(std::make_shared<RunFileCheck>(id_.runs_folder, std::move(files)),
                  ++export_round_, result, worker);
}

// `check` is shared with the file thread, which alone uses it until its step has ended.
void Job::StepExportCheck(std::shared_ptr<RunFileCheck> check, std::uint64_t round,
                          const v1::ExportResult& result, const std::string& worker) {
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, check, round, result, worker]() -> std::function<void()> {
    const bool over = check->Step();
    return [this, alive, check, round, result, worker, over] {
      if (alive.expired() || !exporting() || round != export_round_ || !reading_.empty())
        return;  // a shard was rolled back meanwhile
      if (!over) return StepExportCheck(check, round, result, worker);
      OnExportChecked(check->status(), result, worker);
    };
  });
}

void Job::OnExportChecked(const absl::Status& status, const v1::ExportResult& result,
                          const std::string& worker) {
  const std::string far = client::CleanText(result.host(), 256), here = host_->HostName();
  if (!status.ok()) {
    const std::string why = client::CleanText(status.message(), kTextMax);
    if (!result.uploaded()) {
      export_upload_ = true;
      Event("state", absl::StrCat("the files that worker/", worker, " on host ", far,
                                  " wrote to the runs folder cannot be read on host ", here,
                                  ", so the worker sends them: ", why));
      BeginReading(phase_, 1);
    } else if (phase_ == Phase::kSealedExporting) {
      return GiveUpSealedExport(absl::StrCat("they cannot be read back on host ", here, ": ", why));
    } else {
      Event("warning", absl::StrCat("the exported files cannot be read back on host ", here, " (",
                                    ++export_failures_, " in a row): ", why));
      if (export_failures_ > options_.retries_max)
        return Fail(MakeError(status, "internal", "coordinator"), false);
      BeginReading(Phase::kExporting, 1, host_->Now() + options_.RetryDelay(export_failures_));
    }
    return Pump();
  }
  weights_exported_ = true;
  exported_.assign(result.exported().begin(), result.exported().end());
  export_trouble_.clear();
  std::vector<std::string> names;
  for (const v1::RunFileInfo& file : exported_) names.push_back(file.name());
  if (!names.empty()) {
    Event("state",
          absl::StrCat(result.uploaded() ? "weights sent by worker/" : "weights written by worker/",
                       worker, " on host ", far, " and read back on host ", here, ": ",
                       absl::StrJoin(names, ", ")));
  } else if (result.files_size() > 0) {
    Event("state",
          absl::StrCat("weights written on host ", far, ": ", result.files(0).substr(0, kTextMax),
                       result.files_size() == 1
                           ? ""
                           : absl::StrCat(" and ", result.files_size() - 1, " more")));
  }
  if (plan_ && plan_message_.tables_size() > 0) {
    // A table may be larger than any worker: its rows are where the servers save them.
    Event("state",
          absl::StrCat(
              "embedding tables are not among the exported weights: ",
              rounds_.on()
                  ? absl::StrCat("psctl checkpoint export ", rounds_.folder().substr(0, kTextMax),
                                 " --to FILE.npz writes their rows")
                  : "checkpoints are off for this job, so their rows are lost when it ends"));
  }
  if (phase_ == Phase::kSealedExporting) return FinishJob();
  BeginReport();
}

}  // namespace evergrad::coordinator
