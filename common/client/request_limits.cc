#include "common/client/request_limits.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace evergrad::client {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
// Bytes of a request with one section, in addition to the section's payload.
constexpr std::uint64_t kRequestOverheadBytes = 64u << 10;
// The smallest size of a part (RequestLimits::part_bytes). Smaller parts would need many messages
// and save little memory.
constexpr std::uint64_t kPartBytesMin = 64u << 10;

std::uint64_t OrUnlimited(std::uint64_t limit) { return limit == 0 ? kUnlimited : limit; }

}  // namespace

bool RequestLimits::Fits(std::uint64_t request_bytes, std::uint64_t response_bytes) const {
  const std::uint64_t budget = OrUnlimited(budget_bytes_max), frame = OrUnlimited(frame_bytes_max);
  return request_bytes <= frame && response_bytes <= frame && request_bytes <= budget &&
         response_bytes <= budget - request_bytes;
}

std::uint64_t RequestLimits::share_bytes() const { return OrUnlimited(budget_bytes_max) / 2; }

std::uint64_t RequestLimits::part_bytes() const {
  return std::max(kPartBytesMin,
                  std::min(OrUnlimited(budget_bytes_max) / 8, OrUnlimited(frame_bytes_max)));
}

std::uint64_t RequestLimits::section_bytes_max() const {
  const std::uint64_t least = std::min(OrUnlimited(budget_bytes_max), OrUnlimited(frame_bytes_max));
  return least == kUnlimited ? kUnlimited : least - std::min(least, kRequestOverheadBytes);
}

std::string RequestLimits::section_flag() const {
  return OrUnlimited(budget_bytes_max) <= OrUnlimited(frame_bytes_max)
             ? absl::StrCat("--budget-bytes-max ", budget_bytes_max)
             : absl::StrCat("--frame-bytes-max ", frame_bytes_max);
}

}  // namespace evergrad::client
