#include "tests/simulation/snapshot_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/mutants/mutant.h"

namespace evergrad::simulation {

using mutants::IsActive;
using mutants::Mutant;

void SnapshotWriter::Add(JobUid job, std::uint32_t p, ShardEpoch epoch, TaskId session) {
  for (Order& order : orders_) {
    if (order.p != p || order.job != job || order.epoch != epoch) continue;
    order.session = session;
    return;
  }
  orders_.push_back({job, p, epoch, session, nullptr});
}

void SnapshotWriter::DropJob(JobUid job) {
  std::erase_if(orders_, [&](const Order& order) { return order.job == job; });
}

std::optional<SnapshotWriter::Report> SnapshotWriter::Advance(const HeldState* held) {
  Order& order = orders_.front();
  const auto report = [&](Snapshot snapshot) {
    return Report{order.session, order.job, order.p, std::move(snapshot)};
  };
  std::optional<Report> reported;
  if (order.cut) {
    const Snapshot snapshot = MakeDurable(held, order);
    if (!IsActive(Mutant::kReportedBeforeDurable)) reported = report(snapshot);
  } else if (held != nullptr && IsUnchanged(*held, order)) {
    reported = report(*durable_file_[order.p]);
  } else if (held != nullptr) {
    Cut(*held, order);
    if (!order.cut) return std::nullopt;
    checker_.CheckState(*order.cut, order.p, walk_.random.Chance(0.25));
    if (!IsActive(Mutant::kReportedBeforeDurable)) return std::nullopt;
    return report(DescribeCut(*order.cut, order.p));
  }
  orders_.erase(orders_.begin());
  return reported;
}

bool SnapshotWriter::IsUnchanged(const HeldState& held, const Order& order) {
  const std::optional<Snapshot>& last = durable_file_[order.p];
  if (!last || last->epoch != order.epoch || last->lsn != held.shard->lsn()) return false;
  walk_.Count("snapshot of an unchanged shard");
  if (const File* file = folder_.Find(last->Uri());
      file != nullptr && !SameUpdates(*file->state, held))
    walk_.Fail(absl::StrCat("27 a shard changed and its lsn did not: p=", order.p));
  return true;
}

void SnapshotWriter::Cut(const HeldState& held, Order& order) {
  const ShardModel& model = walk_.models[order.p];
  if (!model.slot()) {
    order.cut = held.Restored(model, order.epoch, held.shard->start(), {}, false);
  } else if (order.slicing) {
    CutSlices(held, order);
  } else {
    // While a cut is copied in slices, the rows that pushes change are kept. Some cuts get too
    // little memory for these rows.
    order.slicing = Order::Slicing{
        held.shard->Cut(walk_.random.Chance(0.2) ? 100 : ps_server::kPreimageBytesMax),
        held.Facts()};
    order.slicing->cut.tables = model.NewTables(order.slicing->cut);
  }
}

// A cut is dropped if pushes changed too many rows, or if another cut was taken for a move or at
// the end. The order then begins once more.
void SnapshotWriter::CutSlices(const HeldState& held, Order& order) {
  Order::Slicing& slicing = *order.slicing;
  for (std::uint64_t n = 1 + walk_.random.Below(3); n > 0; --n) {
    const auto slice = held.shard->NextSlice(slicing.cut.serial, 1 + walk_.random.Below(200));
    if (!slice.ok()) {
      walk_.Count("cut of a slot overtaken");
      order.slicing.reset();
      return;
    }
    if (!slice->end) {
      ShardModel::TakeSlice(*slice, slicing.cut.tables);
      continue;
    }
    walk_.Count(held.shard->lsn() == slicing.cut.lsn ? "cut of a slot"
                                                     : "cut of a slot with pushes meanwhile");
    order.cut = slicing.facts->RestoredFrom(walk_.models[order.p], std::move(slicing.cut),
                                            order.epoch, held.shard->start(), {}, false);
    order.slicing.reset();
    return;
  }
}

Snapshot SnapshotWriter::MakeDurable(const HeldState* held, Order& order) {
  if (IsActive(Mutant::kCutInTwoTurns) && held != nullptr) {
    const ps_server::Ledger ledger = order.cut->shard->ledger();
    order.cut = held->Restored(walk_.models[order.p], order.epoch, held->shard->start(), {}, false,
                               &ledger);
    checker_.CheckState(*order.cut, order.p, false);
  }
  const Snapshot snapshot = folder_.Write(std::move(order.cut), order.p);
  if (held != nullptr) durable_file_[order.p] = snapshot;
  return snapshot;
}

}  // namespace evergrad::simulation
