// The sections of an attempt's requests. A push is kept until it is settled. A pull is kept with
// two counts: how many times it is wanted, and how many times it is done.
//
//   ready ── Sent ──▶ in flight ──▶ settled (push), or accepted and ready for the next pull
//     ▲                 │  ├── BackOff ────────▶ backoff ───── Resume ──┐
//     │                 │  └── WaitOrBackOff ──▶ waits for a map ─ OnMap ┤
//     └─────────────────┴─ OnMap, if the owner has changed ◀────────────┘
//
// Each state has a serial number. An answer or a timer that names another serial is late and has no
// effect. A key that is passed to a method must belong to an existing section unless stated. A pure
// state machine, not thread-safe (the exchange uses it on the control executor).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "evergrad/v1/types.pb.h"
#include "worker/params/layout.h"
#include "worker/params/slot_rows.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/request_split.h"

namespace evergrad::worker {

class ExchangeSections {
 public:
  using Endpoints = std::map<std::string, v1::Endpoint>;  // by server identity
  struct PushKey {
    std::uint32_t update = 0, shard = 0;
    auto operator<=>(const PushKey&) const = default;
  };
  struct PullKey {
    std::uint64_t rows = 0;  // 0 for dense values, otherwise the number of the step's pull of rows
    std::uint32_t shard = 0;
    auto operator<=>(const PullKey&) const = default;
  };
  struct Gradient {
    ShardId shard;
    tensor::SharedBytes bytes;  // empty for a SKIP
    // The rows of a slot's gradients; null for a dense shard or a SKIP. `part` is one of the parts
    // of `rows`.
    std::shared_ptr<const SlotRows> rows = nullptr;
    const SlotRows::OfShard* part = nullptr;
  };
  struct Push {
    Gradient gradient;
    std::uint64_t global_step = 0;
    std::string skip_reason;
  };
  // The rows that a pull of table rows requests.
  struct PulledRows {
    std::shared_ptr<const SlotRows> rows;
    const SlotRows::OfShard* part = nullptr;
  };
  // Sections that go to one server.
  struct Group {
    std::vector<PushKey> pushes;
    std::vector<PullKey> pulls;
  };
  // Sections to be sent again after a delay, with the serials of their states.
  struct Retry {
    std::vector<std::pair<PushKey, std::uint64_t>> pushes;
    std::vector<std::pair<PullKey, std::uint64_t>> pulls;
    std::uint32_t tries = 0;          // the largest number of earlier tries of a section
    std::uint32_t busy_after_ms = 0;  // the minimum delay that the server requests
    // Returns `min`, doubled for each try up to `max`, and at least `busy_after_ms`.
    std::chrono::milliseconds Delay(std::chrono::milliseconds min,
                                    std::chrono::milliseconds max) const;
    bool empty() const { return pushes.empty() && pulls.empty(); }
  };

  explicit ExchangeSections(std::shared_ptr<const Layout> layout);

  // These methods do the same as the methods of Exchange with the same names.
  void WantPulls(std::uint64_t count) { pulls_wanted_ = std::max(pulls_wanted_, count); }
  void HavePulls(std::uint64_t count);
  bool PullsDone(std::uint64_t count) const;
  void WantRows(std::uint64_t count, const std::shared_ptr<const SlotRows>& rows,
                std::uint64_t after);
  void AddPush(UpdateIndex update, Push push);

  // Returns the ready sections by owner. A section without an owner at a known endpoint now waits
  // for a newer map. A pull waits while its shard has a push that is not sent.
  std::map<std::string, Group> ReadyByOwner(const ShardMap& map, const Endpoints& endpoints);
  bool AnyPushReady() const;
  std::uint64_t pulls_wanted() const { return pulls_wanted_; }
  const Push& push(const PushKey& key) const { return pushes_.at(key).push; }
  // The reference is valid until Settle(key).
  const PulledRows& rows(const PullKey& key) const { return pulls_.at(key).rows; }
  SectionSize Size(const PushKey& key) const;
  SectionSize Size(const PullKey& key) const;

  // Declares that the section is sent to its owner in `map`. Returns its new serial.
  template <class Key>
  std::uint64_t Sent(const Key& key, const ShardMap& map) {
    Item& item = ItemOf(key);
    item.state = State::kInFlight;
    item.sent_version = map.version;
    item.sent_to = map.shards[key.shard];
    return item.serial = ++serial_;
  }
  // Returns whether the section was sent before and failed.
  template <class Key>
  bool IsRetry(const Key& key) {
    return ItemOf(key).tries > 0;
  }

  bool HasPush(const PushKey& key) const { return pushes_.contains(key); }
  // Returns false if the section does not exist any more, or has another serial.
  bool IsCurrent(const PushKey& key, std::uint64_t serial) const;
  bool IsCurrent(const PullKey& key, std::uint64_t serial) const;
  void Settle(const PushKey& key) { pushes_.erase(key); }
  // Removes a pull of rows when the rows have arrived.
  void Settle(const PullKey& key) { pulls_.erase(key); }
  // Keeps the reason of an OVER_BUDGET answer, or "" after any other answer.
  void SetOverBudget(const PushKey& key, std::string reason) {
    pushes_.at(key).over_budget_reason = std::move(reason);
  }
  // Lets the section wait until Resume is called with `retry`.
  void BackOff(const PushKey& key, Retry* retry);
  void BackOff(const PullKey& key, Retry* retry);
  // If `held` is older than `version`, lets the section wait for a map of at least that version.
  // Otherwise does the same as BackOff.
  void WaitOrBackOff(const PushKey& key, MapVersion version, MapVersion held, Retry* retry);
  void WaitOrBackOff(const PullKey& key, MapVersion version, MapVersion held, Retry* retry);
  // Makes the pull ready again, because its answer did not count or is being accepted.
  void MakeReady(const PullKey& key);
  // Declares that the dense shard was pulled `count` times.
  void AcceptDense(const PullKey& key, std::uint64_t count);

  // Ends the delay of the sections whose state has not changed since `retry` was filled.
  void Resume(const Retry& retry);
  // Makes ready the sections that waited for this map, or that were sent to former owners.
  void OnMap(const ShardMap& map, const Endpoints& endpoints);

  bool WaitsForMap() const;
  // Returns the reason of a push whose last answer was OVER_BUDGET, or "".
  std::string OverBudget() const;

 private:
  enum class State { kReady, kInFlight, kBackoff, kWaitMap };
  struct Item {
    State state = State::kReady;
    std::uint64_t serial = 0;
    std::uint32_t tries = 0;
    // With wait_newer, an item in the state kWaitMap waits for a map newer than sent_version, or
    // for the endpoint of its owner. Otherwise the item waits for a map of at least the version
    // wait_for.
    MapVersion wait_for;
    bool wait_newer = false;
    MapVersion sent_version;
    ShardPlace sent_to;
  };
  struct PushItem : Item {
    Push push;
    std::string over_budget_reason;
  };
  struct PullItem : Item {
    std::uint64_t have = 0;   // for a dense shard, the number of completed pulls
    std::uint64_t after = 0;  // for rows, the number of the dense pull with which they are sent
    PulledRows rows;
  };

  Item& ItemOf(const PushKey& key) { return pushes_.at(key); }
  Item& ItemOf(const PullKey& key) { return pulls_.at(key); }
  // Returns the owner of the shard. If the shard has no owner, returns nullptr, and the item waits
  // for a map.
  const ShardPlace* PlaceFor(std::uint32_t shard, const ShardMap& map, const Endpoints& endpoints,
                             Item& item);
  bool Wait(Item& item, MapVersion version, MapVersion held);
  void Delay(Item& item, Retry* retry);
  void ReviveAfterMap(std::uint32_t shard, const ShardMap& map, const Endpoints& endpoints,
                      Item& item);

  const std::shared_ptr<const Layout> layout_;
  std::uint64_t pulls_wanted_ = 0, serial_ = 0;
  std::map<PushKey, PushItem> pushes_;
  // Pulls of dense shards are always kept, and pulls of rows until the rows have arrived.
  std::map<PullKey, PullItem> pulls_;
};

}  // namespace evergrad::worker
