// The view that jobs have of the control plane.
#include "absl/strings/str_cat.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

class ControlPlane::Host final : public JobHost {
 public:
  explicit Host(ControlPlane* plane) : plane_(*plane) {}

  MonoTime Now() const override { return plane_.Now(); }
  std::int64_t WallMillis() const override { return plane_.WallMillis(); }
  std::string HostName() const override { return plane_.options_.host; }
  Term term() const override { return plane_.term_; }
  StateStore& store() override { return *plane_.parts_.store; }
  fault::Failpoints& failpoints() override { return *plane_.parts_.failpoints; }
  void Log(log::Level level, absl::string_view text, absl::string_view job) override {
    log::Context context;
    context.job = std::string(job);
    plane_.parts_.logger->Write(level, text, context);
  }
  void Send(TaskId task, const v1::CoordinatorMessage& message) override {
    plane_.Send(task, message);
  }
  void WriteFiles(const std::string& folder, std::vector<RunFile> files,
                  std::function<void(absl::Status)> done) override {
    plane_.files_.WriteFiles(folder, std::move(files), std::move(done));
  }
  void AppendLines(const std::string& folder, const std::string& name, std::string lines,
                   std::function<void(absl::Status)> done) override {
    plane_.files_.AppendLines(folder, name, std::move(lines), std::move(done));
  }
  void RestoreLines(const std::string& folder, const std::string& name, std::uint64_t offset,
                    std::string tail, std::function<void(absl::Status)> done) override {
    plane_.files_.RestoreLines(folder, name, offset, std::move(tail), std::move(done));
  }
  void WhenDurable(std::function<void()> then) override { plane_.WhenDurable(std::move(then)); }
  void OnFileThread(std::function<std::function<void()>()> work) override {
    plane_.files_.Run(std::move(work));
  }
  fs::FileSystem& file_system() override { return *plane_.parts_.file_system; }
  std::string StoreTrouble() const override {
    return std::string(plane_.store_.status().message());
  }
  std::uint64_t NextNumber() override { return plane_.NextNumber(); }
  void JobChanged(JobUid) override { plane_.JobChanged(); }
  void ForeignMessage(TaskId task, absl::string_view what) override {
    plane_.ForeignMessage(task, what);
  }
  void StoreFailed(const absl::Status& status) override { plane_.store_.Fail(status); }

 private:
  ControlPlane& plane_;
};

std::unique_ptr<JobHost> ControlPlane::MakeJobHost() { return std::make_unique<Host>(this); }

void ControlPlane::Send(TaskId task, const v1::CoordinatorMessage& message) {
  if (message.has_drained()) {  // each job reports its own shards
    facts_[task].drained[message.drained().job_uid()] = message.drained().cannot();
    return CheckDrained(task);
  }
  if (Session* session = sessions_.Of(task)) sessions_.Queue(*session, message);
}

// A job calls this in the middle of its own work, so the following work is posted.
void ControlPlane::JobChanged() {
  if (jobs_changed_posted_ || stopped_) return;
  jobs_changed_posted_ = true;
  parts_.control->Post([this] {
    jobs_changed_posted_ = false;
    if (!stopped_) AfterJobsChanged();
  });
}

void ControlPlane::ForeignMessage(TaskId task, absl::string_view what) {
  metrics_.foreign.Add();
  // Only the first messages are logged. The counter counts all.
  if (metrics_.foreign.value() > 10) return;
  const TaskEntry* entry = membership_.Find(task);
  parts_.logger->Warning(absl::StrCat(
      "ignored a message about work or a shard of another task: task=",
      entry == nullptr ? "?" : absl::StrCat(RoleName(entry->role), "/", entry->identity),
      " message=", what));
}

}  // namespace evergrad::coordinator
