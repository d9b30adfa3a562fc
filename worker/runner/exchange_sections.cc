#include "worker/runner/exchange_sections.h"

#include <algorithm>
#include <set>

#include "common/base/check.h"

namespace evergrad::worker {

ExchangeSections::ExchangeSections(std::shared_ptr<const Layout> layout)
    : layout_(std::move(layout)) {
  for (std::uint32_t shard = 0; shard < layout_->dense_shards(); ++shard) pulls_[{0, shard}];
}

void ExchangeSections::HavePulls(std::uint64_t count) {
  WantPulls(count);
  for (auto& [key, pull] : pulls_) {
    if (key.rows == 0) pull.have = std::max(pull.have, count);
  }
}

bool ExchangeSections::PullsDone(std::uint64_t count) const {
  return std::all_of(pulls_.begin(), pulls_.end(), [count](const auto& entry) {
    return entry.first.rows != 0 || entry.second.have >= count;
  });
}

void ExchangeSections::WantRows(std::uint64_t count, const std::shared_ptr<const SlotRows>& rows,
                                std::uint64_t after) {
  EG_CHECK(count > 0);
  for (const SlotRows::OfShard& part : rows->parts()) {
    PullItem& pull = pulls_[{count, part.shard.value()}];
    pull.after = after;
    pull.rows = {rows, &part};
  }
}

void ExchangeSections::AddPush(UpdateIndex update, Push push) {
  pushes_[{update.value(), push.gradient.shard.value()}].push = std::move(push);
}

const ShardPlace* ExchangeSections::PlaceFor(std::uint32_t shard, const ShardMap& map,
                                             const Endpoints& endpoints, Item& item) {
  if (shard < map.shards.size()) {
    const ShardPlace& place = map.shards[shard];
    if (!place.server.empty() && endpoints.contains(place.server)) return &place;
  }
  item.state = State::kWaitMap;
  item.serial = ++serial_;
  item.wait_for = {};
  item.wait_newer = true;
  item.sent_version = map.version;
  return nullptr;
}

std::map<std::string, ExchangeSections::Group> ExchangeSections::ReadyByOwner(
    const ShardMap& map, const Endpoints& endpoints) {
  std::map<std::string, Group> groups;
  // Shards with a push that is not sent now; their pull waits for the push.
  std::set<std::uint32_t> held_back;
  for (auto& [key, item] : pushes_) {
    const ShardPlace* place =
        item.state == State::kReady ? PlaceFor(key.shard, map, endpoints, item) : nullptr;
    if (place == nullptr) {
      held_back.insert(key.shard);
    } else {
      groups[place->server].pushes.push_back(key);
    }
  }
  for (auto& [key, pull] : pulls_) {
    const bool wanted = key.rows != 0 ? pulls_wanted_ >= pull.after : pull.have < pulls_wanted_;
    if (!wanted || pull.state != State::kReady || held_back.contains(key.shard)) continue;
    if (const ShardPlace* place = PlaceFor(key.shard, map, endpoints, pull))
      groups[place->server].pulls.push_back(key);
  }
  return groups;
}

std::chrono::milliseconds ExchangeSections::Retry::Delay(std::chrono::milliseconds min,
                                                         std::chrono::milliseconds max) const {
  return std::max(std::min<std::chrono::milliseconds>(min * (1 << std::min(tries, 16u)), max),
                  std::chrono::milliseconds(busy_after_ms));
}

bool ExchangeSections::AnyPushReady() const {
  return std::any_of(pushes_.begin(), pushes_.end(),
                     [](const auto& entry) { return entry.second.state == State::kReady; });
}

SectionSize ExchangeSections::Size(const PushKey& key) const {
  const Gradient& gradient = push(key).gradient;
  if (gradient.part == nullptr) return PushSize(key.shard, gradient.bytes.bytes.size());
  return PushSize(key.shard, gradient.bytes.bytes.size(),
                  gradient.part->rows * sizeof(std::int64_t), gradient.part->tables);
}

SectionSize ExchangeSections::Size(const PullKey& key) const {
  const SlotRows::OfShard* const part = rows(key).part;
  if (part == nullptr) return PullSize(key.shard, layout_->slice(ShardId(key.shard)).wire_bytes());
  return PullSize(key.shard, part->bytes, part->rows * sizeof(std::int64_t), part->tables);
}

bool ExchangeSections::IsCurrent(const PushKey& key, std::uint64_t serial) const {
  const auto it = pushes_.find(key);
  return it != pushes_.end() && it->second.serial == serial;
}

bool ExchangeSections::IsCurrent(const PullKey& key, std::uint64_t serial) const {
  const auto it = pulls_.find(key);
  return it != pulls_.end() && it->second.serial == serial;
}

void ExchangeSections::Delay(Item& item, Retry* retry) {
  item.state = State::kBackoff;
  item.serial = ++serial_;
  retry->tries = std::max(retry->tries, item.tries++);
}

void ExchangeSections::BackOff(const PushKey& key, Retry* retry) {
  Delay(pushes_.at(key), retry);
  retry->pushes.emplace_back(key, serial_);
}

void ExchangeSections::BackOff(const PullKey& key, Retry* retry) {
  Delay(pulls_.at(key), retry);
  retry->pulls.emplace_back(key, serial_);
}

bool ExchangeSections::Wait(Item& item, MapVersion version, MapVersion held) {
  if (version <= held) return false;
  item.state = State::kWaitMap;
  item.serial = ++serial_;
  item.wait_for = version;
  item.wait_newer = false;
  return true;
}

void ExchangeSections::WaitOrBackOff(const PushKey& key, MapVersion version, MapVersion held,
                                     Retry* retry) {
  if (!Wait(pushes_.at(key), version, held)) BackOff(key, retry);
}

void ExchangeSections::WaitOrBackOff(const PullKey& key, MapVersion version, MapVersion held,
                                     Retry* retry) {
  if (!Wait(pulls_.at(key), version, held)) BackOff(key, retry);
}

void ExchangeSections::MakeReady(const PullKey& key) {
  Item& item = pulls_.at(key);
  item.state = State::kReady;
  item.serial = ++serial_;
}

void ExchangeSections::AcceptDense(const PullKey& key, std::uint64_t count) {
  PullItem& pull = pulls_.at(key);
  pull.have = std::max(pull.have, count);
  pull.tries = 0;
}

void ExchangeSections::Resume(const Retry& retry) {
  for (const auto& [key, serial] : retry.pushes) {
    if (IsCurrent(key, serial)) pushes_.at(key).state = State::kReady;
  }
  for (const auto& [key, serial] : retry.pulls) {
    if (IsCurrent(key, serial)) pulls_.at(key).state = State::kReady;
  }
}

void ExchangeSections::ReviveAfterMap(std::uint32_t shard, const ShardMap& map,
                                      const Endpoints& endpoints, Item& item) {
  bool again = false;
  switch (item.state) {
    case State::kReady: return;
    case State::kWaitMap:
      again = item.wait_newer
                  ? map.version > item.sent_version ||
                        (shard < map.shards.size() && endpoints.contains(map.shards[shard].server))
                  : map.version >= item.wait_for;
      break;
    // The former owner may be lost permanently. The section therefore goes to the new owner at
    // once, without waiting for an answer of the former owner.
    case State::kInFlight:
    case State::kBackoff:
      again = shard < map.shards.size() && (map.shards[shard].epoch != item.sent_to.epoch ||
                                            map.shards[shard].server != item.sent_to.server);
      break;
  }
  if (!again) return;
  item.state = State::kReady;
  item.serial = ++serial_;
  item.tries = 0;
}

void ExchangeSections::OnMap(const ShardMap& map, const Endpoints& endpoints) {
  for (auto& [key, item] : pushes_) ReviveAfterMap(key.shard, map, endpoints, item);
  for (auto& [key, item] : pulls_) ReviveAfterMap(key.shard, map, endpoints, item);
}

bool ExchangeSections::WaitsForMap() const {
  const auto waits = [](const auto& entry) { return entry.second.state == State::kWaitMap; };
  return std::any_of(pushes_.begin(), pushes_.end(), waits) ||
         std::any_of(pulls_.begin(), pulls_.end(), waits);
}

std::string ExchangeSections::OverBudget() const {
  for (const auto& [key, item] : pushes_) {
    if (!item.over_budget_reason.empty()) return item.over_budget_reason;
  }
  return "";
}

}  // namespace evergrad::worker
