#include "ps_server/service/shard_cuts.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/runtime/arrival.h"

namespace evergrad::ps_server {
namespace {

constexpr std::uint64_t kSliceBytes = 512 << 10;  // size of one piece of a table's cut

absl::Status NotHeld(const ShardKey& key, ShardEpoch epoch) {
  return absl::NotFoundError(absl::StrCat("the shard is not held at this epoch: shard=",
                                          key.shard.ToString(), " epoch=", epoch.ToString()));
}

}  // namespace

void ShardCuts::Take(const ShardKey& key, ShardEpoch epoch, bool stop, Ready ready) {
  HostedShard* const hosted = shards_.Find(key, epoch);
  if (hosted == nullptr) return ready(NotHeld(key, epoch));
  if (stop) hosted->shard->Stop();  // queued sections will be answered STALE
  if (!hosted->applying) return ready(CutOf(*hosted->shard));
  waiting_[key].push_back(std::move(ready));
}

void ShardCuts::AnswerWaiting(const ShardKey& key, const Shard& shard) {
  const auto node = waiting_.extract(key);
  if (node.empty()) return;
  for (const Ready& ready : node.mapped()) ready(CutOf(shard));
}

void ShardCuts::Removed(const ShardKey& key, ShardEpoch epoch) {
  const auto node = waiting_.extract(key);
  if (node.empty()) return;
  for (const Ready& ready : node.mapped()) ready(NotHeld(key, epoch));
}

// Returns a cut. The rows of a slot are captured between its pushes, piece by piece, as the writer
// of the cut requests them.
ShardCut ShardCuts::CutOf(const Shard& shard) {
  ShardCut cut = shard.Cut();
  if (!cut.settings->slot) return cut;
  const ShardKey key{cut.settings->job, cut.settings->shard};
  // The cut ends when this pointer is released.
  const std::shared_ptr<void> open(
      nullptr, [this, executor = &executor_, key, epoch = cut.epoch, serial = cut.serial](void*) {
        executor->Post([this, key, epoch, serial] {
          if (HostedShard* const hosted = shards_.Find(key, epoch); hosted != nullptr)
            hosted->shard->EndCut(serial);
        });
      });
  cut.next_slice = [this, executor = &executor_, key, epoch = cut.epoch, serial = cut.serial,
                    open] {
    const auto arrival = std::make_shared<runtime::Arrival<SlotSlice>>();
    executor->Post(
        [this, key, epoch, serial,
         ready = runtime::Arrival<SlotSlice>::Answerer(arrival, "the shard's executor has ended")] {
          TakeSlice(key, epoch, serial, ready);
        });
    return arrival->Wait();
  };
  return cut;
}

void ShardCuts::TakeSlice(ShardKey key, ShardEpoch epoch, std::uint64_t serial,
                          const SliceReady& ready) {
  HostedShard* const hosted = shards_.Find(key, epoch);
  if (hosted == nullptr) return ready(NotHeld(key, epoch));
  if (!hosted->applying) return ready(hosted->shard->NextSlice(serial, kSliceBytes));
  hosted->after_apply.emplace_back(
      [this, key, epoch, serial, ready] { TakeSlice(key, epoch, serial, ready); });
}

}  // namespace evergrad::ps_server
