#include "ps_server/service/shard_directory.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace evergrad::ps_server {
namespace {

constexpr JobUid kOne{1}, kTwo{2};
constexpr ShardEpoch kEpoch{1, 5}, kNext{1, 6};

struct Fixture {
  JobTable jobs;
  log::Logger logger{{.level = log::Level::kError, .file = "/dev/null"}};
  health::Readiness readiness;
  ShardDirectory directory{&jobs, &logger, readiness.Add("shards", "")};
  std::string Missing() const {
    const std::vector<health::Unmet> missing = readiness.Missing();
    return missing.empty() ? "" : missing[0].reason;
  }

  HeldShard* Put(JobUid job, std::uint32_t shard, ShardEpoch epoch = kEpoch) {
    jobs.Learn(job, {1, 1}, 8);
    HeldShard held;
    held.epoch = epoch;
    directory.Put({job, ShardId(shard)}, std::move(held));
    return directory.Find({job, ShardId(shard)});
  }
  void EndLoading(JobUid job, std::uint32_t shard) {
    directory.EndLoading(directory.Find({job, ShardId(shard)}));
  }
  void Name(JobUid job, const std::string& name) {
    v1::JobInfo info;
    info.set_job_uid(job.value());
    info.set_name(name);
    directory.NameJob(info);
  }
};

TEST_CASE_METHOD(Fixture, "a shard is found at its epoch only, and a newer one takes its place") {
  Put(kOne, 3);
  CHECK(directory.Find({kOne, ShardId(3)}, kEpoch) != nullptr);
  CHECK(directory.Find({kOne, ShardId(3)}, kNext) == nullptr);
  CHECK(directory.Find({kOne, ShardId(4)}) == nullptr);
  Put(kOne, 3, kNext);
  CHECK(directory.Find({kOne, ShardId(3)}, kEpoch) == nullptr);
  CHECK(directory.shards() == 1);
}

TEST_CASE_METHOD(Fixture, "the number of loading shards follows each way in and out") {
  Put(kOne, 1);
  Put(kOne, 1, kNext);  // shard 1 of this job is already loading
  Put(kOne, 2);
  Put(kTwo, 1);
  CHECK(directory.loading() == 3);
  directory.EndLoading(directory.Find({kOne, ShardId(1)}));
  CHECK(directory.loading() == 2);
  directory.Remove({kOne, ShardId(1)});  // no longer loading when it is removed
  CHECK(directory.loading() == 2);
  directory.Remove({kTwo, ShardId(1)});
  CHECK(directory.loading() == 1);
  CHECK(directory.RemoveJob(kOne) == 1);
  CHECK(directory.loading() == 0);
}

TEST_CASE_METHOD(Fixture, "the condition of readiness is met while no assigned shard is loading") {
  Put(kOne, 1);
  EndLoading(kOne, 1);
  CHECK(Missing().empty());
  Put(kOne, 2);
  Put(kTwo, 1);
  CHECK(Missing() == "assigned shards are not restored yet: loading=2 assigned=3");
  EndLoading(kOne, 2);
  CHECK(Missing() == "assigned shards are not restored yet: loading=1 assigned=3");
  directory.Remove({kTwo, ShardId(1)});
  CHECK(Missing().empty());
  Put(kOne, 1, kNext);
  CHECK(Missing() == "assigned shards are not restored yet: loading=1 assigned=2");
  CHECK(directory.RemoveJob(kOne) == 2);
  CHECK(Missing().empty());
}

TEST_CASE_METHOD(Fixture, "a Hello names the held shards in order of job and shard") {
  Put(kTwo, 1);
  HeldShard* const held = Put(kOne, 2);
  held->file = "file:///job/shard";
  CHECK(held->restoring());
  held->stopped_in = 4;
  Put(kOne, 1);
  directory.EndLoading(held);
  CHECK_FALSE(held->restoring());
  v1::Hello hello;
  directory.FillHello(&hello);
  REQUIRE(hello.shards_size() == 3);
  CHECK(hello.shards(0).shard() == 1);
  CHECK(hello.shards(0).loading());
  CHECK(hello.shards(1).shard() == 2);
  CHECK_FALSE(hello.shards(1).loading());
  CHECK(hello.shards(1).stopped_in() == 4);
  CHECK(hello.shards(2).job_uid() == 2);
}

TEST_CASE_METHOD(Fixture, "a job without a held shard is forgotten, unless it runs") {
  Put(kOne, 1);
  Put(kTwo, 1);
  Name(kTwo, "two");
  for (const JobUid job : {kOne, kTwo}) {
    directory.ForgetJobIfUnheld(job);
    CHECK(jobs.CountersOf(job) != nullptr);
    directory.Remove({job, ShardId(1)});
    directory.ForgetJobIfUnheld(job);
  }
  CHECK(jobs.CountersOf(kOne) == nullptr);
  CHECK(jobs.CountersOf(kTwo) != nullptr);
  directory.ForgetUnheldJobs();  // called when a new session begins
  CHECK(jobs.CountersOf(kTwo) == nullptr);
  CHECK(directory.jobs_named() == 0);
}

TEST_CASE_METHOD(Fixture,
                 "the bytes of a job are those of its loaded shards, without table slots") {
  HeldShard* const dense = Put(kOne, 1);
  dense->value_bytes = 100;
  dense->state_bytes = 20;
  HeldShard* const slot = Put(kOne, 2);
  slot->rows = true;
  slot->value_bytes = 1000;
  Name(kOne, "one");
  const v1::ServerProgress progress = directory.Progress();
  CHECK(progress.shards() == 2);
  CHECK(progress.bytes() == 120);
  REQUIRE(progress.jobs_size() == 1);
  CHECK(progress.jobs(0).shards() == 2);
  CHECK(jobs.Find(kOne).name == "one");
  CHECK(jobs.Find(kOne).bytes == 120);
  CHECK(directory.About(kOne).job == "one");
}

}  // namespace
}  // namespace evergrad::ps_server
