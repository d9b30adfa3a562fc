#include "ps_server/service/shard_executor.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace evergrad::ps_server {
namespace {

ShardExecutor::Loaded LoadedOf(const Shard& shard) {
  return {absl::OkStatus(), shard.value_bytes(),   shard.state_bytes(),
          shard.lsn(),      shard.ledger().done(), shard.ledger().refused()};
}

}  // namespace

ShardExecutor::ShardExecutor(Options options)
    : options_(std::move(options)),
      copies_(options_.pool),
      runner_({.jobs = options_.jobs,
               .failpoints = options_.failpoints,
               .metrics = options_.metrics,
               .images = options_.images,
               .copies = &copies_,
               .on_unproved = options_.on_unproved}),
      cuts_(options_.executor, &shards_),
      reports_(options_.executor, &shards_) {}

void ShardExecutor::Submit(std::vector<RequestSection> sections, bool here) {
  runtime::Task task = [this, sections = std::move(sections)]() mutable {
    for (RequestSection& section : sections) Enqueue(std::move(section));
    if (!turn_posted_) Turn();
  };
  if (here && options_.executor->RunIfIdle(task)) return;
  options_.executor->Post(std::move(task));
}

void ShardExecutor::Enqueue(RequestSection section) {
  const ShardKey key = section.key();
  HostedShard* const hosted = shards_.FindNext(key);
  if (hosted == nullptr) return runner_.AnswerUnheld(section);
  hosted->queue.push_back(std::move(section));
  if (!std::exchange(hosted->waiting, true)) ready_.push_back(key);
}

void ShardExecutor::Turn() {
  std::uint64_t spent = 0;
  while (!ready_.empty() && spent < kTurnBytes) {
    const ShardKey key = ready_.front();
    ready_.pop_front();
    HostedShard* const hosted = shards_.FindNext(key);
    if (hosted == nullptr) continue;  // the shard was dropped, and its sections have been answered
    hosted->waiting = false;
    // The shard was dropped and assigned again meanwhile, so no section waits.
    if (hosted->queue.empty() && !hosted->applying) continue;
    spent += Run(key, hosted);
    if ((!hosted->queue.empty() || hosted->applying) && !hosted->waiting) {
      hosted->waiting = true;
      ready_.push_back(key);
    }
  }
  copies_.Finish();
  copies_.ReleaseMemory();
  if (!ready_.empty()) PostTurn();
}

void ShardExecutor::PostTurn() {
  turn_posted_ = options_.executor->Post([this] {
    turn_posted_ = false;
    Turn();
  });
}

std::uint64_t ShardExecutor::Run(const ShardKey& key, HostedShard* hosted) {
  if (hosted->applying || hosted->queue.front().is_push ||
      !copies_.HasRowsOf(hosted->queue.front().call))
    copies_.Finish();
  if (hosted->applying) return ContinuePush(key, hosted);
  RequestSection section = std::move(hosted->queue.front());
  hosted->queue.pop_front();
  if (!section.is_push) return kSectionCost + runner_.RunPull(hosted, std::move(section));
  if (!section.delayed && options_.failpoints != nullptr && options_.failpoints->AnyArmed()) {
    const fault::Hit hit = options_.failpoints->At("server.before_apply");
    if (hit.action == fault::Action::kDelay) {
      // The queue of this shard waits, in order; other shards continue.
      section.delayed = true;
      hosted->queue.push_front(std::move(section));
      hosted->waiting = true;
      options_.executor->PostAfter(std::chrono::milliseconds(hit.delay_ms), [this, key] {
        if (shards_.Find(key) == nullptr) return;
        ready_.push_back(key);
        if (!turn_posted_) Turn();
      });
      return kSectionCost;
    }
    if (LosesAnswer(hit)) {  // the failpoint acts as if the push had never arrived
      section.call->LoseAnswer();
      section.call->FinishSection();
      return kSectionCost;
    }
  }
  runner_.BeginPush(hosted, std::move(section));
  return kSectionCost + (hosted->applying ? ContinuePush(key, hosted) : 0);
}

std::uint64_t ShardExecutor::ContinuePush(const ShardKey& key, HostedShard* hosted) {
  const std::uint64_t bytes = runner_.ContinuePush(hosted);
  if (hosted->applying) return bytes;
  // Callbacks that wait for the end of an apply run before the next apply begins, so that a
  // continuous series of pushes does not delay reports.
  const bool awaited = !hosted->after_apply.empty();
  cuts_.ApplyEnded(key, *hosted->shard);
  PostWaiting(hosted);
  return awaited ? std::max(bytes, kTurnBytes) : bytes;
}

void ShardExecutor::PostWaiting(HostedShard* hosted) {
  for (std::function<void()>& waiting : std::exchange(hosted->after_apply, {}))
    options_.executor->Post(std::move(waiting));
}

void ShardExecutor::Assign(ShardSettings settings, ShardEpoch epoch, MapVersion start,
                           IntervalSet refused, std::function<void(Loaded)> done) {
  options_.executor->Post([this, settings = std::move(settings), epoch, start,
                           refused = std::move(refused), done = std::move(done)]() mutable {
    const ShardKey key{settings.job, settings.shard};
    // The replaced shard is freed first, because both shards may not fit into memory. The sections
    // of the replaced shard are stale by now.
    Remove(key);
    auto shard = Shard::FromSeed(settings, epoch, start, refused, options_.pool,
                                 options_.jobs->TablesOf(key.job));
    if (!shard.ok()) return done({shard.status(), 0, 0, 0, {}, {}});
    Loaded loaded = LoadedOf(**shard);
    Hold(*std::move(shard));
    done(std::move(loaded));
  });
}

void ShardExecutor::Adopt(std::unique_ptr<Shard> shard, std::function<void(Loaded)> done) {
  // The shard is in a shared_ptr, because a posted task must be copyable.
  auto given = std::make_shared<std::unique_ptr<Shard>>(std::move(shard));
  options_.executor->Post([this, given, done = std::move(done)] {
    const ShardKey key{(*given)->settings().job, (*given)->settings().shard};
    Remove(key);
    Loaded loaded = LoadedOf(**given);
    Hold(std::move(*given));
    done(std::move(loaded));
  });
}

void ShardExecutor::Hold(std::unique_ptr<Shard> shard) {
  std::shared_ptr<grants::GrantGuard> grants = options_.jobs->Find(shard->settings().job).grants;
  shards_.Add(std::move(shard), std::move(grants));
}

void ShardExecutor::Vacate(ShardKey key, std::function<void()> vacated) {
  options_.executor->Post([this, key, vacated = std::move(vacated)] {
    Remove(key);
    vacated();
  });
}

void ShardExecutor::Remove(const ShardKey& key) {
  HostedShard* const hosted = shards_.Find(key);
  if (hosted == nullptr) return;
  cuts_.Removed(key, hosted->shard->epoch());
  PostWaiting(hosted);
  std::deque<RequestSection> queue = std::move(hosted->queue);
  // A half-applied update is lost together with the state. The section of the update is answered as
  // STALE.
  if (hosted->applying) queue.push_front(*std::move(hosted->applying));
  shards_.Remove(key);
  for (const RequestSection& section : queue) runner_.AnswerUnheld(section);
}

void ShardExecutor::Drop(ShardKey key, ShardEpoch epoch) {
  options_.executor->Post([this, key, epoch] {
    if (shards_.Find(key, epoch) != nullptr) Remove(key);
  });
}

void ShardExecutor::DropJob(JobUid job) {
  options_.executor->Post([this, job] {
    for (const ShardKey& key : shards_.KeysOf(job)) Remove(key);
  });
}

void ShardExecutor::Close(ShardKey key, ShardEpoch epoch, MapVersion version, IntervalSet done,
                          IntervalSet refused, std::function<void(bool)> answer) {
  options_.executor->Post([this, key, epoch, version, done = std::move(done),
                           refused = std::move(refused), answer = std::move(answer)] {
    HostedShard* const hosted = shards_.Find(key);
    answer(hosted != nullptr && hosted->shard->Close(epoch, version, done, refused));
  });
}

void ShardExecutor::Seal(ShardKey key, ShardEpoch epoch, std::function<void()> sealed) {
  options_.executor->Post([this, key, epoch, sealed = std::move(sealed)] {
    // Pushes to a shard that is not held at this epoch are answered STALE, which has the effect of
    // a seal.
    HostedShard* const hosted = shards_.Find(key, epoch);
    if (hosted == nullptr) return sealed();
    hosted->shard->Seal();
    if (!hosted->applying) return sealed();
    // The update was admitted before, so the cut contains it.
    hosted->after_apply.push_back(sealed);
  });
}

void ShardExecutor::Cut(ShardKey key, ShardEpoch epoch, CutReady ready) {
  options_.executor->Post([this, key, epoch, ready = std::move(ready)] {
    cuts_.Take(key, epoch, /*stop=*/false, ready);
  });
}

void ShardExecutor::Stop(ShardKey key, ShardEpoch epoch, CutReady ready) {
  options_.executor->Post([this, key, epoch, ready = std::move(ready)] {
    cuts_.Take(key, epoch, /*stop=*/true, ready);
  });
}

void ShardExecutor::Report(JobUid job, bool digests, ShardReports::Done done) {
  options_.executor->Post([this, job, digests, done = std::move(done)]() mutable {
    reports_.Begin(job, digests, std::move(done));
  });
}

}  // namespace evergrad::ps_server
