// The plan of a job, and what it resumes from (LEDGER line 28).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/sharding/partitioner.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/job_error.h"
#include "coordinator/jobs/plan_builder.h"
#include "coordinator/scheduler/placement.h"

namespace evergrad::coordinator {
namespace {

constexpr int kDescribeWarningsMax = 16;
constexpr std::size_t kLostTextMax = 200;

}  // namespace

void Job::OnDescribed(const v1::DescribeResult& described) {
  const SectionLimit limit = placer_.ServersLimit();
  absl::StatusOr<BuiltPlan> built = BuildPlan(id_.spec, described, limit);
  if (!built.ok()) {
    const bool user = BlameOf(built.status()) == Blame::kUser;
    Fail(MakeError(built.status(), user ? "user" : "internal", "coordinator"), user);
    return;
  }
  plan_ = std::move(built->plan);
  epochs_.SetPlan(&*plan_);
  plan_message_ = std::move(built->message);
  shards_.Plan(built->shard_bytes);
  described_ = described;
  partition_bytes_max_ = std::min(limit.bytes, sharding::kPartitionBytesMax);
  described_.clear_warnings();  // they are events from here on
  for (int i = 0; i < std::min(described.warnings_size(), kDescribeWarningsMax); ++i)
    Event("warning", described.warnings(i));
  const std::uint64_t bytes = server_bytes_ = built->server_bytes;
  if (const std::uint64_t max = ServerBytesMax(); max != 0 && bytes > max) {
    const bool its_own = max == id_.spec.resources.server_memory_bytes_max;
    Fail(
        MakeError(
            absl::ResourceExhaustedError(absl::StrCat(
                "the job's variables need more memory of the servers than the limit: bytes=", bytes,
                its_own ? " spec.resources.server_memory_bytes_max="
                        : " coordinator's --job-server-memory-bytes-max=",
                max, " shards=", shards_.size())),
            "user", "coordinator"),
        true);
    return;
  }
  if (!journals())
    described_.clear_variables();  // else the plan is made of them again after a restart
  if (rounds_.on() && id_.spec.checkpoint.resume) return LookForResume();
  BeginPlan();
}

ClosureBook::Options Job::BookOptions() const {
  ClosureBook::Options options;
  options.closures = plan_->closures();
  options.shards = shards_.size();
  options.open_max = options_.closures_open_max;
  return options;
}

std::uint64_t Job::ServerBytesMax() const {
  const std::uint64_t own = id_.spec.resources.server_memory_bytes_max,
                      all = options_.server_memory_bytes_max;
  return own == 0 || all == 0 ? std::max(own, all) : std::min(own, all);
}

void Job::BeginPlan() {
  book_ = std::make_unique<ClosureBook>(BookOptions(), DurableState{});
  Record begun = book_->BeginLife(host_->term());
  book_->CloseWindow();
  epochs_.BeginPlan();
  if (resumption_) {
    AppendRecord(book_->ResumeFrom(resumption_->snapshots), &begun);
    ResumeFrom(*resume_point_, *resumption_);
    resumption_.reset();
    resume_point_.reset();
  }
  source_->UpdateNewLimit();
  Event("state", source_->ReadyText(described_));
  SetPhase(Phase::kPlacing);
  if (journals() ? !PersistWhole() : !Persist(begun)) return;
  v1::CoordinatorMessage message;
  FillJobInfo(message.mutable_job());
  Broadcast(message, true, true);
  Pump();
}

// ---------------------------------------------------------------- line 28

// The plan is known: is there a checkpoint of an earlier job of this name to go on from?
void Job::LookForResume() {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnFileThread([this, alive, disk, spec = id_.spec.checkpoint, runs = id_.runs_folder,
                       name = id_.spec.name, uid = id_.uid] {
    absl::StatusOr<ResumePoint> point = FindResumePoint(*disk, spec, runs, name, uid);
    return [this, alive, point = std::move(point)] {
      if (alive.expired() || phase_ != Phase::kDescribing || book_ != nullptr || ended()) return;
      if (absl::IsNotFound(point.status())) {
        Event("state", absl::StrCat("nothing to resume from, the job begins at its first step: ",
                                    point.status().message()));
        return BeginPlan();
      }
      if (!point.ok()) {
        // Another setting or other files help, or it is a disk that cannot be read now.
        const bool user =
            BlameOf(point.status()) == Blame::kUser || SaveErrorIsFinal(point.status());
        const absl::Status cause(point.status().code(),
                                 absl::StrCat("checkpoint.resume: ", point.status().message()));
        Fail(MakeError(user ? UserError(cause) : cause, user ? "user" : "internal", "coordinator"),
             user);
        return;
      }
      absl::StatusOr<Resumption> resumption = PlanResumption(*point, plan_message_, id_.uid);
      if (!resumption.ok()) {
        Fail(MakeError(UserError(resumption.status()), "user", "coordinator"), true);
        return;
      }
      for (const absl::Status& passed : point->passed_over)
        Event("warning", absl::StrCat("a newer checkpoint is skipped: ", passed.message()));
      resume_point_ = *point;
      resumption_ = *std::move(resumption);
      BeginPlan();
    };
  });
}

// What a former job has done counts as done; its losses of whole epochs are in the manifest, those
// of a part of one are not known.
void Job::ResumeFrom(const ResumePoint& point, const Resumption& resumption) {
  claims_.TakeOver(point, resumption.same_plan);
  if (const IntervalSet& dead = book_->durable().dead; !dead.empty()) {
    // A training job's user cancels no closure: what its shards refuse are updates that were lost
    // with a server.
    std::string which = dead.ToString();
    if (which.size() > kLostTextMax) which = absl::StrCat(which.substr(0, kLostTextMax), "...");
    Event("lost", absl::StrCat("updates that the earlier job lost with a server stay lost: ",
                               dead.size(), dead.size() == 1 ? " closure is" : " closures are",
                               " not run again: ", which));
  }
  epochs_.Resume(book_->durable().succeeded, book_->durable().dead, point.manifest,
                 resumption.same_plan, AccountContext());
  rounds_.SetResumedFrom(point.uri);
  Event("state", absl::StrCat("resumed at step ", epochs_.steps_done(), " of ",
                              epochs_.steps_total(), " from ", point.uri, ": ", resumption.text));
  SayNotReproducible("it resumes from a checkpoint whose shards were saved at different moments");
}

// ---------------------------------------------------------------- the shards

// Values have changed under whoever was reading them: what was measured or written since is void.
void Job::AfterRollback(absl::string_view why) {
  SayNotReproducible(std::string(why));
  if (phase_ != Phase::kEvaluating && phase_ != Phase::kExporting && phase_ != Phase::kReporting &&
      phase_ != Phase::kSaving)
    return;
  Event("rollback", absl::StrCat(PhaseName(phase_), " begins again: ", why));
  epochs_.VoidEvaluation(phase_ == Phase::kEvaluating, host_->Now());
  VoidReading();
  report_.Void();
  SetPhase(Phase::kTraining);
  PersistWhole();
}

void Job::SendCloses() {
  if (!book_ || grants_stopped() || window_open_) return;
  for (const auto& [task, server] : shards_.servers()) {
    if (!server.ready) continue;
    for (const ClosureBook::CloseOrder& order : book_->MakeCloses(task, server.identity)) {
      v1::CoordinatorMessage message;
      v1::Close* close = message.mutable_close();
      close->set_job_uid(id_.uid.value());
      close->set_shard(order.shard.value());
      *close->mutable_epoch() = client::ToProto(order.epoch);
      *close->mutable_version() = client::ToProto(order.version);
      *close->mutable_done() = client::ToProto(order.done);
      *close->mutable_refused() = client::ToProto(order.refused);
      close->set_whole(order.whole);
      host_->Send(task, message);
    }
  }
}

}  // namespace evergrad::coordinator
