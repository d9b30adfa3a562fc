// The shards of one executor, with the requests that wait for each of them.
//
// The executor's thread alone uses this table and its entries. The parts of the executor
// (SectionRunner, ShardCuts, ShardReports) share the table, and only the executor itself adds and
// removes shards.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/grants/grant_guard.h"
#include "ps_server/service/data_call.h"
#include "ps_server/service/sender_pulls.h"
#include "ps_server/service/shard_key.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

// Limit of the work of one task of an executor, in bytes that the task touches. This work takes
// about a millisecond.
inline constexpr std::uint64_t kTurnBytes = 1 << 20;
// The cost of a section, or of the state of a shard in a report, in bytes. The cost is in addition
// to the bytes that the section or report touches.
inline constexpr std::uint64_t kSectionCost = 2048;

// One push or one pull of a request.
struct RequestSection {
  std::shared_ptr<DataCall> call;  // shared with the other executors that answer a part of the call
  std::uint32_t index = 0;
  bool is_push = false;
  bool delayed = false;  // a failpoint has delayed this section, and the delay has ended

  ShardKey key() const {
    const v1::RequestHeader& header = *call->request().header;
    const int i = static_cast<int>(index);
    return {JobUid(header.job_uid()),
            ShardId(is_push ? header.pushes(i).shard() : header.pulls(i).shard())};
  }
};

struct HostedShard {
  std::unique_ptr<Shard> shard;
  // The guard of the shard's job, shared with the table of jobs; null if proofs are not required.
  std::shared_ptr<grants::GrantGuard> grants;
  struct Traffic {  // see v1::ShardState
    std::uint64_t pulls = 0, pushes = 0, bytes_sent = 0, bytes_received = 0;
  } traffic;
  SenderPulls sender_pulls;
  // The waiting sections in order of arrival. The transport's budget bounds the queue, because each
  // entry is part of a request that the budget granted.
  std::deque<RequestSection> queue;
  bool waiting = false;  // the shard is in the executor's queue, or a failpoint delays it
  // A section whose push was admitted and whose apply has not ended.
  std::optional<RequestSection> applying;
  // Callbacks that are posted when the apply has ended, or when the shard has been dropped.
  std::vector<std::function<void()>> after_apply;
};

// Pointers to a shard are valid until the shard is removed.
class HostedShards {
 public:
  // Returns null if the shard is not held.
  HostedShard* Find(const ShardKey& key) {
    const auto it = shards_.find(key);
    return it == shards_.end() ? nullptr : &it->second;
  }
  // Returns null if the shard is not held at this epoch.
  HostedShard* Find(const ShardKey& key, ShardEpoch epoch) {
    HostedShard* const hosted = Find(key);
    return hosted != nullptr && hosted->shard->epoch() == epoch ? hosted : nullptr;
  }
  // Like Find, but needs no search if `key` follows the key of the last call, because sections
  // usually arrive in the order of their shards.
  HostedShard* FindNext(const ShardKey& key) {
    const auto it = next_ != shards_.end() && next_->first == key ? next_ : shards_.find(key);
    next_ = it == shards_.end() ? it : std::next(it);
    return it == shards_.end() ? nullptr : &it->second;
  }
  // Adds a shard that is not held.
  void Add(std::unique_ptr<Shard> shard, std::shared_ptr<grants::GrantGuard> grants) {
    HostedShard& hosted = shards_[{shard->settings().job, shard->settings().shard}];
    hosted.grants = std::move(grants);
    hosted.shard = std::move(shard);
  }
  // Frees a held shard and everything in its entry.
  void Remove(const ShardKey& key) {
    const auto it = shards_.find(key);
    if (next_ == it) next_ = shards_.end();
    shards_.erase(it);
  }
  // Returns the keys of the job's shards, or of all shards without a job.
  std::set<ShardKey> KeysOf(std::optional<JobUid> job) const {
    std::set<ShardKey> keys;
    for (const auto& [key, hosted] : shards_) {
      if (!job || key.job == *job) keys.insert(keys.end(), key);
    }
    return keys;
  }

 private:
  std::map<ShardKey, HostedShard> shards_;
  // The entry that FindNext checks first.
  std::map<ShardKey, HostedShard>::iterator next_ = shards_.end();
};

}  // namespace evergrad::ps_server
