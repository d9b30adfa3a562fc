#include "ps_server/storage/hot_ids.h"

#include <algorithm>

#include "common/sharding/slots.h"

namespace evergrad::ps_server::storage {

void HotIds::AddOne(std::int64_t id) {
  if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
  Kept& k = *kept_;
  // Tags of 16 bits are compared first, because a few vector registers hold all tags of a block.
  const auto tag = static_cast<std::uint16_t>(sharding::Mix64(static_cast<std::uint64_t>(id)));
  std::size_t found = kIds;
  for (std::size_t block = 0; block < size_ && found == kIds; block += kBlock) {
    std::uint16_t equal = 0;
    for (std::size_t i = block; i < block + kBlock; ++i)
      equal = static_cast<std::uint16_t>(equal | (k.tags[i] == tag));
    if (equal == 0) continue;
    for (std::size_t i = block; i < std::min(block + kBlock, size_); ++i)
      found = k.ids[i] == id ? i : found;
  }
  if (found == kIds) {
    if (size_ < kIds) {
      found = size_++;
    } else {
      // Replaces the first id with the lowest count. Counts only increase, so this id is after the
      // id that was replaced last, or no id has the count least_ any more.
      while (next_least_ < kIds && k.counts[next_least_] != least_) ++next_least_;
      if (next_least_ == kIds) {
        least_ = *std::min_element(k.counts, k.counts + kIds);
        next_least_ =
            static_cast<std::size_t>(std::find(k.counts, k.counts + kIds, least_) - k.counts);
      }
      found = next_least_;
      k.errors[found] = least_;
    }
    k.ids[found] = id;
    k.tags[found] = tag;
  }
  k.counts[found] += k.counts[found] != ~0u;
}

}  // namespace evergrad::ps_server::storage
