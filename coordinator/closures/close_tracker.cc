#include "coordinator/closures/close_tracker.h"

#include <algorithm>

#include "coordinator/closures/closure_rules.h"

namespace evergrad::coordinator {
namespace {

IntervalSet DoneAt(const DurableState& state, std::uint32_t p) {
  return ClosureRules::DoneAt(state.succeeded, state.todo[p], state.lost[p]);
}

}  // namespace

void CloseTracker::BeginLife() {
  sent_.clear();
  std::fill(refusing_.begin(), refusing_.end(), Refusing{});
}

std::vector<CloseTracker::Order> CloseTracker::Make(TaskId session, const std::string& server,
                                                    const DurableBook& book) {
  const DurableState& state = book.state();
  std::vector<Order> orders;
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    const ShardOwner& owner = state.map[p];
    if (owner.server != server) continue;
    Sent& sent = sent_[{session, p}];
    if (sent.epoch != owner.epoch) {
      sent = Sent{};
      sent.epoch = owner.epoch;
    }
    if (sent.pending || (sent.revision == book.revision() && !sent.whole_next)) continue;
    IntervalSet done = DoneAt(state, p), refused = state.RefusedAt(p);
    Order order{ShardId(p), owner.epoch, state.version, {}, {}, sent.whole_next};
    order.done = sent.whole_next ? done : done.Minus(sent.done);
    order.refused = sent.whole_next ? refused : refused.Minus(sent.refused);
    sent.revision = book.revision();
    if (order.done.empty() && order.refused.empty()) continue;
    sent.done = std::move(done);
    sent.refused = std::move(refused);
    sent.whole_next = false;
    sent.pending = true;
    orders.push_back(std::move(order));
  }
  return orders;
}

void CloseTracker::OnClosed(TaskId session, ShardId shard, ShardEpoch epoch, bool taken,
                            const DurableState& state) {
  const auto it = sent_.find({session, shard.value()});
  if (it == sent_.end() || it->second.epoch != epoch || !it->second.pending) return;
  it->second.pending = false;
  if (!taken)
    it->second.whole_next = ClosureRules::WholeAfterIgnored();
  else if (state.map[shard.value()].epoch == epoch)
    refusing_[shard.value()] = {epoch, it->second.refused};
}

void CloseTracker::EndSession(TaskId session) {
  sent_.erase(sent_.lower_bound({session, 0}), sent_.upper_bound({session, ~0u}));
}

bool CloseTracker::Settled(const DurableBook& book) const {
  const DurableState& state = book.state();
  // This code runs for each answer of a server, so it allocates nothing for each shard.
  std::vector<bool> settled(state.map.size());
  for (const auto& [key, sent] : sent_) {
    const std::uint32_t p = key.second;
    if (sent.epoch == state.map[p].epoch && !sent.pending && !sent.whole_next &&
        sent.revision == book.revision())
      settled[p] = true;
  }
  for (std::uint32_t p = 0; p < settled.size(); ++p) {
    if (!settled[p] && !(DoneAt(state, p).empty() && state.RefusedAt(p).empty())) return false;
  }
  return true;
}

void CloseTracker::OnAssign(const DurableBook::AssignOrder& order) {
  Refusing& known = refusing_[order.shard.value()];
  known = {order.epoch, order.refused};
  if (order.snapshot) known.refused.UnionWith(order.snapshot->refused);
}

bool CloseTracker::RefusedEverywhere(const IntervalSet& closures, const DurableState& state) const {
  if (!ClosureRules::CancelAwaitsOwners()) return true;
  for (std::uint32_t p = 0; p < state.map.size(); ++p) {
    if (state.map[p].server.empty()) continue;
    if (refusing_[p].epoch != state.map[p].epoch || !refusing_[p].refused.ContainsAll(closures))
      return false;
  }
  return true;
}

}  // namespace evergrad::coordinator
