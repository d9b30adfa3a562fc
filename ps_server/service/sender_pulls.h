// The last pull of one shard by each sender, to measure the staleness of the sender's gradients.
//
// A push does not state the values from which its gradient was computed. The server therefore takes
// the values of the sender's last pull of the shard before the push. With `pipeline` 1 a worker
// computes with the values of the second-last pull, so its gradients are older than the metric
// shows, by the updates between the two pulls. Not thread-safe: the shard's executor uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace evergrad::ps_server {

class SenderPulls {
 public:
  // In a cluster with more senders than this, a shard drops the entries of some senders, and their
  // next push has no staleness.
  static constexpr std::size_t kSendersMax = 4096;

  // Records that the sender has pulled the shard, which had applied `updates` updates at that time.
  void OnPull(absl::string_view sender, std::uint64_t updates) {
    const std::size_t key = absl::HashOf(sender);
    if (updates_.size() >= kSendersMax && !updates_.contains(key)) updates_.erase(updates_.begin());
    updates_[key] = updates;
  }
  // Returns how many updates the shard has applied between the sender's last pull and the present
  // push of the sender, which is update number `update` of the shard. Returns nullopt if the sender
  // has not pulled.
  std::optional<std::uint64_t> StalenessOf(absl::string_view sender, std::uint64_t update) const {
    const auto found = updates_.find(absl::HashOf(sender));
    if (found == updates_.end() || found->second >= update) return std::nullopt;
    return update - found->second - 1;
  }
  std::size_t size() const { return updates_.size(); }

 private:
  // The key is a hash of the sender's name. Two senders with one hash would only make the metric
  // wrong.
  absl::flat_hash_map<std::size_t, std::uint64_t> updates_;
};

}  // namespace evergrad::ps_server
