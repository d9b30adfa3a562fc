#include "ps_server/service/shard_directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kJobsNamedMax = 256, kJobNameBytesMax = 256;

}  // namespace

HeldShard* ShardDirectory::Find(const ShardKey& key) {
  const auto it = held_.find(key);
  return it == held_.end() ? nullptr : &it->second;
}

HeldShard* ShardDirectory::Find(const ShardKey& key, ShardEpoch epoch) {
  HeldShard* const held = Find(key);
  return held != nullptr && held->epoch == epoch ? held : nullptr;
}

bool ShardDirectory::Holds(JobUid job) const {
  const auto held = held_.lower_bound({job, ShardId(0)});
  return held != held_.end() && held->first.job == job;
}

void ShardDirectory::Put(const ShardKey& key, HeldShard held) {
  if (const HeldShard* const before = Find(key); before == nullptr || !before->loading) ++loading_;
  held_[key] = std::move(held);
  ShowLoading();
}

void ShardDirectory::EndLoading(HeldShard* held) {
  held->loading = false;
  --loading_;
  ShowLoading();
}

void ShardDirectory::Remove(const ShardKey& key) {
  const auto it = held_.find(key);
  if (it->second.loading) --loading_;
  held_.erase(it);
  ShowLoading();
}

void ShardDirectory::ShowLoading() const {
  if (loading_ == 0) return restored_.Meet();
  restored_.Fail(absl::StrCat("assigned shards are not restored yet: loading=", loading_,
                              " assigned=", held_.size()));
}

void ShardDirectory::ForgetJobIfUnheld(JobUid job) {
  if (Holds(job)) return;
  logger_.Info("this server no longer holds a shard of this job", About(job));
  if (!job_names_.contains(job)) jobs_.Forget(job);
}

std::size_t ShardDirectory::RemoveJob(JobUid job) {
  job_names_.erase(job);
  const std::size_t count = std::erase_if(held_, [&](const auto& entry) {
    if (entry.first.job != job) return false;
    if (entry.second.loading) --loading_;
    return true;
  });
  ShowLoading();
  return count;
}

void ShardDirectory::NameJob(const v1::JobInfo& info) {
  const JobUid job(info.job_uid());
  if (job_names_.size() >= kJobsNamedMax && !job_names_.contains(job)) ForgetUnheldJobs();
  job_names_[job] = client::CleanText(info.name(), kJobNameBytesMax);
}

void ShardDirectory::ForgetUnheldJobs() {
  std::erase_if(job_names_, [&](const auto& entry) {
    if (Holds(entry.first)) return false;
    jobs_.Forget(entry.first);
    return true;
  });
}

log::Context ShardDirectory::About(JobUid job) const {
  const auto it = job_names_.find(job);
  return {it == job_names_.end() ? JobUidString(job) : it->second, ""};
}

void ShardDirectory::FillHello(v1::Hello* hello) const {
  for (const auto& [key, held] : held_) {
    v1::HeldShard* shard = hello->add_shards();
    shard->set_job_uid(key.job.value());
    shard->set_shard(key.shard.value());
    *shard->mutable_epoch() = client::ToProto(held.epoch);
    *shard->mutable_start() = client::ToProto(held.start);
    *shard->mutable_done() = client::ToProto(held.done);
    *shard->mutable_refused() = client::ToProto(held.refused);
    shard->set_loading(held.loading);
    shard->set_stopped_in(held.stopped_in);
  }
}

v1::ServerProgress ShardDirectory::Progress() const {
  v1::ServerProgress progress;
  std::uint64_t bytes = 0;
  std::map<JobUid, v1::JobUsage> usage;
  const auto of = [&](JobUid job) {
    const auto [it, added] = usage.try_emplace(job);
    if (added) {
      it->second.set_job_uid(job.value());
      if (const auto counters = jobs_.Find(job).counters) {
        it->second.set_stint(counters->stint);
        it->second.set_updates_applied(counters->updates_applied.load(std::memory_order_relaxed));
        it->second.set_duplicates_refused(
            counters->duplicates_refused.load(std::memory_order_relaxed));
        it->second.set_bytes_sent(counters->bytes_sent.load(std::memory_order_relaxed));
        it->second.set_bytes_received(counters->bytes_received.load(std::memory_order_relaxed));
      }
    }
    return it;
  };
  for (const auto& [job, name] : job_names_) of(job);
  for (const auto& [key, held] : held_) {
    const auto it = of(key.job);
    it->second.set_shards(it->second.shards() + 1);
    if (!held.rows) it->second.set_bytes(it->second.bytes() + held.value_bytes + held.state_bytes);
  }
  for (auto& [job, one] : usage) {
    one.set_bytes(one.bytes() + jobs_.TableBytes(job));
    bytes += one.bytes();
    const auto name = job_names_.find(job);
    jobs_.Held(job, name == job_names_.end() ? "" : name->second, one.shards(), one.bytes());
    if (one.stint() != 0) *progress.add_jobs() = std::move(one);
  }
  progress.set_shards(static_cast<std::uint32_t>(held_.size()));
  progress.set_bytes(bytes);
  return progress;
}

}  // namespace evergrad::ps_server
