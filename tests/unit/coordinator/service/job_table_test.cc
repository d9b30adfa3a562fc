// Tests the table of jobs. The jobs are real, and their host does at once what they request.
#include "coordinator/service/job_table.h"

#include <catch2/catch.hpp>

#include "common/config/job_spec.h"
#include "tests/support/manual_executor.h"

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

// A job's host that writes files only when the test says so, and sends no message.
class QuietHost final : public JobHost {
 public:
  MonoTime Now() const override { return clock.Now(); }
  std::int64_t WallMillis() const override { return clock.WallMillis(); }
  std::string HostName() const override { return "here"; }
  Term term() const override { return Term(1); }
  StateStore& store() override { return memory; }
  fault::Failpoints& failpoints() override { return points; }
  void Log(log::Level, absl::string_view, absl::string_view) override {}
  void Send(TaskId, const v1::CoordinatorMessage&) override {}
  void WriteFiles(const std::string&, std::vector<RunFile>,
                  std::function<void(absl::Status)> done) override {
    later.push_back([done = std::move(done)] { done(absl::OkStatus()); });
  }
  void AppendLines(const std::string&, const std::string&, std::string,
                   std::function<void(absl::Status)> done) override {
    later.push_back([done = std::move(done)] { done(absl::OkStatus()); });
  }
  void RestoreLines(const std::string&, const std::string&, std::uint64_t, std::string,
                    std::function<void(absl::Status)> done) override {
    later.push_back([done = std::move(done)] { done(absl::OkStatus()); });
  }
  void WhenDurable(std::function<void()> then) override { then(); }
  void OnFileThread(std::function<std::function<void()>()> work) override {
    later.push_back([work = std::move(work)] { work()(); });
  }
  fs::FileSystem& file_system() override { std::abort(); }
  std::string StoreTrouble() const override { return ""; }
  std::uint64_t NextNumber() override { return next++; }
  void JobChanged(JobUid) override {}
  void ForeignMessage(TaskId, absl::string_view) override {}
  void StoreFailed(const absl::Status&) override {}

  void RunLater() {
    while (!later.empty()) {
      const auto work = std::move(later);
      later.clear();
      for (const auto& one : work) one();
    }
  }

  ManualClock clock;
  MemoryStateStore memory;
  fault::Failpoints points;
  std::vector<std::function<void()>> later;
  std::uint64_t next = 1;
};

struct Stage {
  QuietHost host;
  JobTable table{2};

  std::unique_ptr<Job> Make(std::uint64_t uid, const std::string& name) {
    Job::Identity identity;
    identity.uid = JobUid(uid);
    config::ParsedJob parsed = config::ParseJob(
        "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " + name +
            "}\nspec:\n  type: counting\n  counting: {examples: 64, shards: 4}\n  data: "
            "{batch_size: 4, shuffle: {seed: 7}}\n  training: {epochs: 2, steps_per_closure: 2}\n  "
            "checkpoint: off\n",
        {});
    REQUIRE(parsed.spec);
    identity.spec = *std::move(parsed.spec);
    identity.runs_folder = "/runs/" + name;
    return std::make_unique<Job>(&host, JobOptions(), std::move(identity));
  }
  Job* Add(std::uint64_t uid, const std::string& name) { return table.Add(Make(uid, name)); }
  void End(Job& job) {
    job.Cancel();
    for (int i = 0; i < 10 && !job.ended(); ++i) {
      host.RunLater();
      host.clock.Advance(std::chrono::seconds(10));
      job.Tick();
    }
    REQUIRE(job.ended());
  }
};

}  // namespace

TEST_CASE("a uid names its job, even if a newer job has the uid as its name") {
  Stage stage;
  Job* const old = stage.Add(0xabcdefabcdefabcd, "a");
  Job* const young = stage.Add(2, "abcdefabcdefabcd");
  CHECK(stage.table.Find("abcdefabcdefabcd") == old);
  stage.table.TakeBack(old->uid());
  CHECK(stage.table.Find("abcdefabcdefabcd") == young);
}

TEST_CASE("jobs are found by name and uid, the newest first") {
  Stage stage;
  CHECK(stage.table.Find("") == nullptr);
  Job* const old = stage.Add(1, "a");
  Job* const other = stage.Add(3, "b");
  Job* const young = stage.Add(2, "a");
  CHECK(stage.table.Find("a") == young);
  CHECK(stage.table.Find("b") == other);
  CHECK(stage.table.Find("") == young);
  CHECK(stage.table.Find(JobUidString(JobUid(1))) == old);
  CHECK(stage.table.Find("c") == nullptr);
  CHECK(stage.table.by_submission() == std::vector<JobUid>{JobUid(1), JobUid(3), JobUid(2)});
  stage.table.TakeBack(JobUid(2));
  CHECK(stage.table.Find("a") == old);
  CHECK(stage.table.queued() == 2);
  CHECK(stage.table.size() == 2);
}

TEST_CASE("jobs begin in the order of the queue, with a limited number side by side") {
  Stage stage;
  Job* const first = stage.Add(5, "a");
  Job* const second = stage.Add(4, "b");
  Job* const third = stage.Add(3, "c");
  CHECK(stage.table.PlaceInQueue(JobUid(3)) == 2);
  CHECK(stage.table.TakeNext() == first);
  CHECK_FALSE(stage.table.full());
  CHECK(stage.table.TakeNext() == second);
  CHECK(stage.table.full());
  CHECK(stage.table.TakeNext() == nullptr);
  CHECK(stage.table.Running() == std::vector<Job*>{first, second});
  CHECK(stage.table.Running(JobUid(3)) == nullptr);
  first->Start();
  stage.End(*first);
  // Until its end has been processed, the job still takes a place of a running job, but does not
  // count as running.
  CHECK(stage.table.Running(JobUid(5)) == nullptr);
  CHECK(stage.table.Running() == std::vector<Job*>{second});
  CHECK(stage.table.full());
  CHECK(stage.table.RemoveEnded() == std::vector<JobUid>{JobUid(5)});
  CHECK(stage.table.RemoveEnded().empty());
  CHECK(stage.table.TakeNext() == third);
  CHECK(stage.table.queued() == 0);
}

TEST_CASE("a job that was cancelled in the queue does not begin") {
  Stage stage;
  Job* const cancelled = stage.Add(1, "a");
  Job* const removed = stage.Add(2, "b");
  Job* const next = stage.Add(3, "c");
  stage.End(*cancelled);
  stage.table.RemoveFromQueue(removed->uid());
  CHECK_FALSE(stage.table.PlaceInQueue(removed->uid()));
  CHECK(stage.table.TakeNext() == next);
}

// A long job was forgotten in the moment of its end, because newer jobs had ended before it.
TEST_CASE("jobs are forgotten in the order of their ends, and a name is free after its job's end") {
  Stage stage;
  for (const std::uint64_t uid : {9, 8, 7}) stage.Add(uid, "a");
  CHECK(stage.table.FindLiving("a") != nullptr);
  CHECK(stage.table.EndedBeyond(0).empty());
  for (const std::uint64_t uid : {9, 7}) stage.End(*stage.table.Get(JobUid(uid)));
  CHECK(stage.table.FindLiving("a") == stage.table.Get(JobUid(8)));
  CHECK(stage.table.HasLiving());
  CHECK(stage.table.EndedBeyond(1) == std::vector<JobUid>{JobUid(9)});
  CHECK(stage.table.EndedBeyond(2).empty());
  stage.End(*stage.table.Get(JobUid(8)));
  CHECK(stage.table.FindLiving("a") == nullptr);
  CHECK_FALSE(stage.table.HasLiving());
  CHECK(stage.table.EndedBeyond(1) == std::vector<JobUid>{JobUid(9), JobUid(7)});
  stage.table.Forget(JobUid(9));
  CHECK_FALSE(stage.table.Contains(JobUid(9)));
  CHECK(stage.table.Find("a")->uid() == JobUid(7));
}

TEST_CASE("jobs of the journal are queued or running as before, even above the limit") {
  Stage stage;
  CHECK_FALSE(stage.table.Restore(stage.Make(1, "waits")));
  for (const std::uint64_t uid : {2, 3, 4}) {
    auto job = stage.Make(uid, "runs-" + std::to_string(uid));
    job->Start();
    CHECK(stage.table.Restore(std::move(job)));
  }
  auto ended = stage.Make(5, "ended");
  stage.End(*ended);
  CHECK_FALSE(stage.table.Restore(std::move(ended)));
  CHECK(stage.table.running() == 3);
  CHECK(stage.table.queued() == 1);
  CHECK(stage.table.TakeNext() == nullptr);  // as many jobs run as running_max allows
  CHECK(stage.table.by_submission().size() == 5);
}
