#include "coordinator/service/job_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::coordinator {
namespace {

constexpr std::uint64_t kForeignLoggedMax = 10;  // further messages are only counted

class ServiceJobHost final : public JobHost {
 public:
  ServiceJobHost(ServiceParts parts, runtime::Executor* checkpoints, fault::Failpoints* failpoints,
                 fs::FileSystem* file_system, JobSupervisor* supervisor)
      : parts_(parts),
        checkpoints_(checkpoints),
        failpoints_(failpoints),
        file_system_(file_system),
        supervisor_(supervisor) {}

  MonoTime Now() const override { return parts_.clock->Now(); }
  std::int64_t WallMillis() const override { return parts_.clock->WallMillis(); }
  std::string HostName() const override { return parts_.options->host; }
  Term term() const override { return parts_.life->term; }
  StateStore& store() override { return *parts_.store; }
  fault::Failpoints& failpoints() override { return *failpoints_; }
  void Log(log::Level level, absl::string_view text, absl::string_view job) override {
    log::Context context;
    context.job = std::string(job);
    parts_.logger->Write(level, text, context);
  }
  void Send(TaskId task, const v1::CoordinatorMessage& message) override {
    // Each job reports only its own shards, so ServerDrains collects the reports of all jobs.
    if (message.has_drained()) return parts_.drains->OnDrained(task, message.drained());
    if (message.has_grant()) NoteGrant(task, message.grant());
    if (Session* session = parts_.sessions->Of(task)) parts_.sessions->Queue(*session, message);
  }
  void WriteFiles(const std::string& folder, std::vector<RunFile> files,
                  std::function<void(absl::Status)> done) override {
    parts_.files->WriteFiles(folder, std::move(files), std::move(done));
  }
  void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                   std::function<void(absl::Status)> done) override {
    parts_.files->AppendLines(folder, name, std::move(lines), std::move(done));
  }
  void RestoreLines(const std::string& folder, const std::string& name, std::uint64_t offset,
                    std::string tail, std::function<void(absl::Status)> done) override {
    parts_.files->RestoreLines(folder, name, offset, std::move(tail), std::move(done));
  }
  void WhenDurable(std::function<void()> then) override {
    parts_.gate->WhenDurable(std::move(then));
  }
  void OnFileThread(std::function<std::function<void()>()> work) override {
    parts_.files->Run(std::move(work));
  }
  void OnCheckpointThread(std::function<std::function<void()>()> work) override {
    checkpoints_->Post(
        [control = parts_.control, work = std::move(work)] { control->Post(work()); });
  }
  fs::FileSystem& file_system() override { return *file_system_; }
  std::string StoreTrouble() const override {
    return std::string(parts_.store_watch->status().message());
  }
  std::uint64_t NextNumber() override { return parts_.life->NextNumber(); }
  void JobChanged(JobUid) override { supervisor_->JobChanged(); }
  void ForeignMessage(TaskId task, absl::string_view what) override {
    parts_.metrics->foreign.Add();
    if (parts_.metrics->foreign.value() > kForeignLoggedMax) return;
    const TaskEntry* entry = parts_.membership->Find(task);
    parts_.logger->Warning(absl::StrCat(
        "ignored a message about work or a shard that its sender does not hold: task=",
        entry == nullptr ? "?" : TaskName(entry->role, entry->identity), " message=", what));
  }
  void StoreFailed(const absl::Status& status) override { parts_.store_watch->Fail(status); }

 private:
  void NoteGrant(TaskId task, const v1::Grant& grant) {
    const Job* const job = parts_.jobs->Running(JobUid(grant.job_uid()));
    if (job == nullptr) return;
    parts_.metrics->work_times.OnGrant(task, job->uid(), job->name(),
                                       client::FromProto<Attempt>(grant.attempt()),
                                       grant.kind() == v1::TRAIN, Now());
  }

  const ServiceParts parts_;
  runtime::Executor* const checkpoints_;
  fault::Failpoints* const failpoints_;
  fs::FileSystem* const file_system_;
  JobSupervisor* const supervisor_;
};

}  // namespace

std::unique_ptr<JobHost> MakeJobHost(ServiceParts parts, runtime::Executor* checkpoints,
                                     fault::Failpoints* failpoints, fs::FileSystem* file_system,
                                     JobSupervisor* supervisor) {
  return std::make_unique<ServiceJobHost>(parts, checkpoints, failpoints, file_system, supervisor);
}

}  // namespace evergrad::coordinator
