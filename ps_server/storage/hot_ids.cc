#include "ps_server/storage/hot_ids.h"

#include <algorithm>

namespace evergrad::ps_server::storage {

void HotIds::AddOne(std::int64_t id) {
  if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
  Kept& k = *kept_;
  // All places, without a branch: vectorised. An unused one looks like id 0, but nothing has counted it.
  std::uint32_t found = kIds;
  for (std::uint32_t i = 0; i < kIds; ++i) found = k.ids[i] == id && k.counts[i] != 0 ? i : found;
  if (found == kIds) {
    if (size_ < kIds) {
      found = static_cast<std::uint32_t>(size_++);
    } else {
      std::uint32_t least = ~0u;
      for (std::uint32_t i = 0; i < kIds; ++i) least = std::min(least, k.counts[i]);
      found = static_cast<std::uint32_t>(std::find(k.counts, k.counts + kIds, least) - k.counts);
      k.errors[found] = least;
    }
    k.ids[found] = id;
  }
  k.counts[found] += k.counts[found] != ~0u;
}

}  // namespace evergrad::ps_server::storage
