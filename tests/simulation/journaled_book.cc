#include "tests/simulation/journaled_book.h"

#include "common/base/check.h"

namespace evergrad::simulation {
namespace {

constexpr std::uint64_t kUndurableMax = 48;  // the most commits that may be not durable

}  // namespace

void JournaledBook::Open(DurableState state) {
  book_ = std::make_unique<ClosureBook>(
      ClosureBook::Options{kClosures, kShards, walk_.options.open_max}, std::move(state));
}

void JournaledBook::Close() {
  journal_.LoseUndurable();
  actions_.clear();
  book_.reset();
}

void JournaledBook::Commit(const coordinator::Record& record) {
  if (record.empty()) return;
  EG_CHECK(journal_.store().Commit(job_, record).ok());
  checker_.OnCommit(state());
  if (!walk_.options.gated || journal_.undurable() >= kUndurableMax) Settle();
  TellCancelled();
}

void JournaledBook::Settle() {
  journal_.MakeDurable();
  checker_.OnDurable();
  while (!actions_.empty()) {
    auto action = std::move(actions_.front());
    actions_.pop_front();
    action();
  }
}

void JournaledBook::Send(const Task& t, Down m) {
  if (m.job == JobUid{}) m.job = job_;
  Tell([this, registration = t.task, m = std::move(m)]() mutable {
    tasks_.Deliver(registration, std::move(m));
  });
}

void JournaledBook::SendCloses(const SimulatedServer& s) {
  for (ClosureBook::CloseOrder& order : book_->MakeCloses(s.task, s.identity())) {
    Down m = Down::AboutShard(Down::kClose, order.shard.value(), order.epoch);
    m.version = order.version;
    m.done = std::move(order.done);
    m.refused = std::move(order.refused);
    Send(s, std::move(m));
  }
}

void JournaledBook::EndSession(Task& t) {
  if (open() && t.connected) book_->EndServerSession(t.task);
  t.EndSession();
}

bool JournaledBook::Cancel(std::uint64_t c) {
  const coordinator::Record record = book_->Cancel(ClosureId(c));
  if (record.empty()) return false;
  walk_.Count("closure cancelled");
  walk_.Trace("cancel c=", c);
  cancelled_.Add(c);
  Commit(record);
  return true;
}

void JournaledBook::TellCancelled() {
  for (const IntervalSet::Interval& i : cancelled_.Intervals()) {
    for (std::uint64_t c = i.begin; c < i.end; ++c) {
      if (checker_.CancelTold(c) || !state().dead.Contains(c) ||
          !book_->RefusedEverywhere(ClosureId(c)))
        continue;
      Tell([this, c] { checker_.OnCancelTold(c); });
    }
  }
}

}  // namespace evergrad::simulation
