#include "ps_server/snapshot/snapshot_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace evergrad::ps_server {
namespace {

constexpr char kReplacedText[] = "a newer snapshot order for the shard replaced this one";

// Returns true for errors that a retry may repair: lack of memory or disk space, a slow or failing
// disk, and a file that a failed commit has left.
bool IsWorthARetry(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    // Aborted is an error of a file system, because the writer's own Aborted is never passed to
    // this function.
    case absl::StatusCode::kAborted:
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
      durable_(options_.registry->GetCounter(
          "evergrad_ps_server_snapshots_total",
          "Attempts to save a shard to a snapshot file, by outcome", {{"result", "durable"}})),
      unchanged_(options_.registry->GetCounter(
          "evergrad_ps_server_snapshots_total",
          "Attempts to save a shard to a snapshot file, by outcome", {{"result", "unchanged"}})),
      dropped_(options_.registry->GetCounter(
          "evergrad_ps_server_snapshots_total",
          "Attempts to save a shard to a snapshot file, by outcome", {{"result", "dropped"}})),
      failed_(options_.registry->GetCounter(
          "evergrad_ps_server_snapshots_total",
          "Attempts to save a shard to a snapshot file, by outcome", {{"result", "failed"}})),
      seconds_(
          options_.registry->GetHistogram("evergrad_ps_server_snapshot_seconds",
                                          "Duration from the cut of a shard to its durable file",
                                          {0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100})),
      orders_limit_(*options_.registry, "evergrad_ps_server_snapshot_orders",
                    "Shards waiting for their cut", static_cast<double>(options_.orders_max)),
      held_limit_(*options_.registry, "evergrad_ps_server_snapshot_bytes",
                  "Bytes of the current cut", static_cast<double>(options_.bytes_max)),
      orders_({.name = "snapshots",
               .background = true,  // so that pushes do not wait for a checksum
               .earlier = Orders::Earlier::kReplacedWhereWaiting,
               .orders_max = options_.orders_max,
               .too_many = "too many shards are waiting for their snapshot",
               .limit = &orders_limit_,
               .clock = options_.clock,
               .perform = [this](Orders::Entry entry) { Perform(std::move(entry)); }}) {}

SnapshotWriter::~SnapshotWriter() {
  orders_.Stop();
  {
    MutexLock lock(&mu_);
    EndUnwantedCut();
  }
  for (Order& order : orders_.End()) order.done(absl::CancelledError("the server is ending"));
}

absl::Status SnapshotWriter::Submit(Order order) {
  const Orders::Key key{order.job, order.shard};
  EG_ASSIGN_OR_RETURN(const std::optional<Order> replaced, orders_.Submit(key, std::move(order)));
  if (replaced) replaced->done(absl::AbortedError(kReplacedText));
  return absl::OkStatus();
}

void SnapshotWriter::EndUnwantedCut() {
  // arrival_ belongs to the order that is being performed, because Take sets and resets it.
  if (arrival_ != nullptr && orders_.Unwanted())
    arrival_->Set(absl::CancelledError("the snapshot was cancelled"));
}

void SnapshotWriter::Cancel(JobUid job, std::optional<ShardId> shard) {
  std::vector<Order> ended = orders_.Cancel(job, shard);
  {
    MutexLock lock(&mu_);
    EndUnwantedCut();
    std::erase_if(last_, [&](const auto& entry) {
      return entry.first.first == job && (!shard || entry.first.second == *shard);
    });
  }
  for (Order& order : ended) order.done(absl::CancelledError("the shard is no longer held"));
}

void SnapshotWriter::Perform(Orders::Entry entry) {
  using Again = Orders::Again;
  absl::StatusOr<DurableCut> result = TakeAndWrite(entry.order);
  held_bytes_.store(0, std::memory_order_relaxed);
  held_limit_.current.Set(0);
  const absl::Status cause = result.status();
  const auto on_dropped = entry.order.dropped;
  std::optional<Again> again;
  if (result.ok()) {
    MutexLock lock(&mu_);  // Cancel ends the order first, and then removes its entry here.
    if (!orders_.Unwanted())
      last_[entry.key] = {entry.order.folder, entry.order.plan_fingerprint, *result};
  } else if (IsWorthARetry(cause)) {
    entry.backoff = std::clamp(entry.backoff * 2, options_.retry_first, options_.retry_max);
    entry.due = options_.clock->Now() + entry.backoff;
    again = orders_.PerformAgain(entry);
  }
  if (again == Again::kQueued || again == Again::kReplaced) dropped_.Add();
  if (again == Again::kQueued) {
    if (on_dropped) on_dropped(cause);
    return;
  }
  if (again == Again::kReplaced) {
    result = absl::AbortedError(kReplacedText);
  } else if (!result.ok() && orders_.Unwanted()) {
    result = absl::CancelledError(orders_.stopping() ? "the server is ending"
                                                     : "the shard is no longer held");
  } else if (!result.ok() && !absl::IsCancelled(cause)) {
    failed_.Add();
  }
  entry.order.done(std::move(result));
}

absl::StatusOr<ShardCut> SnapshotWriter::Take(const Order& order) {
  const auto arrival = std::make_shared<Arrival>();
  {
    MutexLock lock(&mu_);
    if (orders_.Unwanted()) return absl::CancelledError("the snapshot was cancelled");
    arrival_ = arrival;
  }
  order.take(Arrival::Answerer(arrival, "no cut was made: the shard's executor has ended"));
  // The shard's executor soon calls or destroys the function that it was given. Cancel and the
  // destructor end the wait earlier.
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
    // A ledger can shrink before a retry. Values and optimizer state do not shrink, so a retry
    // cannot succeed if they alone exceed the limit.
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
    // The state has not changed, so the file of the shard exists already, unless the file was
    // removed.
    const auto there = options_.files->Open(fs::JoinUri(order.folder, last->cut.file));
    if (there.ok() && (*there)->size() == last->cut.digest.bytes) {
      unchanged_.Add();
      return last->cut;
    }
  }
  const MonoTime begin = options_.clock->Now();
  EG_ASSIGN_OR_RETURN(DurableCut durable,
                      WriteCut(cut, {options_.files, order.folder, order.plan_fingerprint,
                                     options_.failpoints, [this] { return orders_.Unwanted(); }}));
  seconds_.Observe(std::chrono::duration<double>(options_.clock->Now() - begin).count());
  bytes_written_.Add(durable.digest.bytes);
  durable_.Add();
  if (options_.failpoints != nullptr)
    EG_RETURN_IF_ERROR(options_.failpoints->ErrorAt("snapshot.report"));
  return durable;
}

}  // namespace evergrad::ps_server
