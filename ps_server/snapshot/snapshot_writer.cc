#include "ps_server/snapshot/snapshot_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/background.h"

namespace evergrad::ps_server {
namespace {

// Errors that a retry may repair: memory, disk space, a slow or failing disk, and a name that a
// failed commit has left.
bool IsWorthARetry(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kAborted:  // of a file system; the writer's own Aborted never
                                      // comes here
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kDataLoss: return BlameOf(status) != Blame::kUser;
    default: return false;
  }
}

}  // namespace

SnapshotWriter::SnapshotWriter(Options options)
    : options_(std::move(options)),
      bytes_written_(options_.registry->GetCounter("evergrad_ps_server_snapshot_bytes_total",
                                                   "Bytes of shard files that became durable")),
      durable_(options_.registry->GetCounter("evergrad_ps_server_snapshots_total",
                                             "Cuts of shards, by outcome",
                                             {{"result", "durable"}})),
      unchanged_(options_.registry->GetCounter("evergrad_ps_server_snapshots_total",
                                               "Cuts of shards, by outcome",
                                               {{"result", "unchanged"}})),
      dropped_(options_.registry->GetCounter("evergrad_ps_server_snapshots_total",
                                             "Cuts of shards, by outcome",
                                             {{"result", "dropped"}})),
      failed_(options_.registry->GetCounter("evergrad_ps_server_snapshots_total",
                                            "Cuts of shards, by outcome", {{"result", "failed"}})),
      seconds_(
          options_.registry->GetHistogram("evergrad_ps_server_snapshot_seconds",
                                          "Duration from the cut of a shard to its durable file",
                                          {0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100})),
      orders_limit_(*options_.registry, "evergrad_ps_server_snapshot_orders",
                    "Shards waiting for their cut", static_cast<double>(options_.orders_max)),
      held_limit_(*options_.registry, "evergrad_ps_server_snapshot_bytes",
                  "Bytes of the current cut", static_cast<double>(options_.bytes_max)) {
  thread_.emplace("snapshots", [this] { Run(); });
}

SnapshotWriter::~SnapshotWriter() {
  std::shared_ptr<Arrival> awaited;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    awaited = arrival_;
    changed_.NotifyAll();
  }
  if (awaited != nullptr) awaited->Set(absl::CancelledError("the server ends"));
  thread_.reset();
  std::map<Key, Waiting> left;
  {
    MutexLock lock(&mu_);
    left.swap(waiting_);
    queue_.clear();
  }
  for (auto& [key, entry] : left) entry.order.done(absl::CancelledError("the server ends"));
}

absl::Status SnapshotWriter::Submit(Order order) {
  const Key key{order.job, order.shard};
  std::optional<Order> replaced;
  {
    MutexLock lock(&mu_);
    const auto found = waiting_.find(key);
    if (found != waiting_.end()) {
      replaced = std::move(found->second.order);
      found->second.order = std::move(order);  // The order keeps its place and its backoff.
    } else {
      if (waiting_.size() >= options_.orders_max) {
        orders_limit_.refused.Add();
        return absl::ResourceExhaustedError(absl::StrCat(
            "too many shards are waiting for their snapshot: max=", options_.orders_max));
      }
      waiting_.emplace(key, Waiting{std::move(order), MonoTime{0}, std::chrono::milliseconds{0}});
      queue_.push_back(key);
      orders_limit_.current.Set(static_cast<double>(waiting_.size()));
    }
    changed_.NotifyAll();
  }
  if (replaced) replaced->done(absl::AbortedError("a newer order for the shard replaced this one"));
  return absl::OkStatus();
}

void SnapshotWriter::ForgetLast(JobUid job, std::optional<ShardId> shard) {
  std::erase_if(last_, [&](const auto& entry) {
    return entry.first.first == job && (!shard || entry.first.second == *shard);
  });
}

void SnapshotWriter::Cancel(JobUid job, std::optional<ShardId> shard) {
  std::deque<Order> ended;
  std::shared_ptr<Arrival> awaited;
  {
    MutexLock lock(&mu_);
    const auto meant = [&](const Key& key) {
      return key.first == job && (!shard || key.second == *shard);
    };
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!meant(it->first)) {
        ++it;
        continue;
      }
      ended.push_back(std::move(it->second.order));
      it = waiting_.erase(it);
    }
    std::erase_if(queue_, meant);
    if (current_ && meant(*current_)) {
      current_cancelled_ = true;
      awaited = arrival_;
    }
    ForgetLast(job, shard);
    orders_limit_.current.Set(static_cast<double>(waiting_.size()));
  }
  if (awaited != nullptr) awaited->Set(absl::CancelledError("the shard is not held any more"));
  for (Order& order : ended) order.done(absl::CancelledError("the shard is not held any more"));
}

std::size_t SnapshotWriter::waiting() const {
  MutexLock lock(&mu_);
  return waiting_.size();
}

bool SnapshotWriter::Unwanted() const {
  MutexLock lock(&mu_);
  return stopping_ || current_cancelled_;
}

void SnapshotWriter::Run() {
  runtime::RunInBackground();  // so that pushes do not wait for a checksum
  for (;;) {
    std::optional<Waiting> next;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !next) {
        // Takes the first order that is due, in order of submission.
        const MonoTime now = options_.clock->Now();
        std::optional<MonoTime> soonest;
        auto found = queue_.end();
        for (auto it = queue_.begin(); it != queue_.end() && found == queue_.end(); ++it) {
          const MonoTime due = waiting_.at(*it).due;
          if (due <= now)
            found = it;
          else
            soonest = std::min(soonest.value_or(due), due);
        }
        if (found != queue_.end()) {
          const auto entry = waiting_.find(*found);
          next = std::move(entry->second);
          current_ = entry->first;
          current_cancelled_ = false;
          waiting_.erase(entry);
          queue_.erase(found);
          orders_limit_.current.Set(static_cast<double>(waiting_.size()));
        } else if (soonest) {
          changed_.WaitFor(&mu_, *soonest - now);
        } else {
          changed_.Wait(&mu_);
        }
      }
      if (!next) return;
    }
    Perform(*std::move(next));
  }
}

void SnapshotWriter::Perform(Waiting entry) {
  absl::StatusOr<DurableCut> result = TakeAndWrite(entry.order);
  held_bytes_.store(0, std::memory_order_relaxed);
  held_limit_.current.Set(0);
  bool again = false, replaced = false;
  const absl::Status cause = result.status();
  const auto on_dropped = entry.order.dropped;
  {
    MutexLock lock(&mu_);
    const Key key = *current_;
    const bool unwanted = stopping_ || current_cancelled_;
    if (unwanted && !result.ok())
      result =
          absl::CancelledError(stopping_ ? "the server ends" : "the shard is not held any more");
    if (result.ok() && !current_cancelled_)
      last_[key] = {entry.order.folder, entry.order.plan_fingerprint, *result};
    if (!result.ok() && !unwanted && IsWorthARetry(result.status())) {
      replaced = waiting_.contains(key);
      again = !replaced;
      if (again) {
        entry.backoff = std::clamp(entry.backoff * 2, options_.retry_first, options_.retry_max);
        entry.due = options_.clock->Now() + entry.backoff;
        waiting_.emplace(key, std::move(entry));
        queue_.push_back(key);
        orders_limit_.current.Set(static_cast<double>(waiting_.size()));
      }
    }
    current_.reset();
  }
  if (again || replaced) dropped_.Add();
  if (again) {
    if (on_dropped) on_dropped(cause);
    return;
  }
  if (replaced)
    result = absl::AbortedError("a newer order for the shard replaced this one");
  else if (!result.ok() && !absl::IsCancelled(result.status()))
    failed_.Add();
  entry.order.done(std::move(result));
}

absl::StatusOr<ShardCut> SnapshotWriter::Take(const Order& order) {
  const auto arrival = std::make_shared<Arrival>();
  {
    MutexLock lock(&mu_);
    if (stopping_ || current_cancelled_) return absl::CancelledError("the snapshot was cancelled");
    arrival_ = arrival;
  }
  order.take(Arrival::Answerer(arrival, "no cut was made: the shard's executor has ended"));
  // The executor calls the function within a few turns or destroys it; Cancel and the destructor
  // answer instead of it.
  absl::StatusOr<ShardCut> cut = arrival->Wait();
  MutexLock lock(&mu_);
  arrival_ = nullptr;
  return cut;
}

absl::StatusOr<DurableCut> SnapshotWriter::TakeAndWrite(const Order& order) {
  if (options_.failpoints != nullptr)
    EG_RETURN_IF_ERROR(options_.failpoints->ErrorAt("snapshot.before_cut"));
  if (options_.pool != nullptr) options_.pool->Warm(order.bytes);
  EG_ASSIGN_OR_RETURN(const ShardCut cut, Take(order));
  EG_CHECK(cut.settings->job == order.job && cut.settings->shard == order.shard);
  const std::uint64_t bytes = cut.bytes();
  if (bytes > options_.bytes_max) {
    held_limit_.refused.Add();
    const absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
        "a cut is larger than --snapshot-bytes-max: variable=", cut.settings->variable,
        " shard=", order.shard.ToString(), " bytes=", bytes, " max=", options_.bytes_max));
    // A ledger shrinks again; values and optimizer state do not.
    return bytes - cut.ledger.MemoryBytes() > options_.bytes_max ? UserError(status) : status;
  }
  held_bytes_.store(bytes, std::memory_order_relaxed);
  held_limit_.current.Set(static_cast<double>(bytes));
  std::optional<Last> last;
  {
    MutexLock lock(&mu_);
    if (const auto found = last_.find({order.job, order.shard}); found != last_.end())
      last = found->second;
  }
  if (last && last->folder == order.folder && last->plan_fingerprint == order.plan_fingerprint &&
      last->cut.epoch == cut.epoch && last->cut.lsn == cut.lsn) {
    // The state has not changed: its file exists already, unless it was removed.
    const auto there = options_.files->Open(fs::JoinUri(order.folder, last->cut.file));
    if (there.ok() && (*there)->size() == last->cut.digest.bytes) {
      unchanged_.Add();
      return last->cut;
    }
  }
  const MonoTime begin = options_.clock->Now();
  EG_ASSIGN_OR_RETURN(DurableCut durable,
                      WriteCut(cut, {options_.files, order.folder, order.plan_fingerprint,
                                     options_.failpoints, [this] { return Unwanted(); }}));
  seconds_.Observe(std::chrono::duration<double>(options_.clock->Now() - begin).count());
  bytes_written_.Add(durable.digest.bytes);
  durable_.Add();
  if (options_.failpoints != nullptr)
    EG_RETURN_IF_ERROR(options_.failpoints->ErrorAt("snapshot.report"));
  return durable;
}

}  // namespace evergrad::ps_server
