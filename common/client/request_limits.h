// What one server takes at once, as its endpoint says it, and what follows for whoever sends to it.
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

struct RequestLimits {
  std::uint64_t budget_bytes_max =
      0;  // requests and their answers in flight, all clients together; 0: unknown
  std::uint64_t frame_bytes_max = 0;  // one request, or one answer; 0: unknown

  static RequestLimits Of(const v1::Endpoint& endpoint) {
    return {endpoint.budget_bytes_max(), endpoint.frame_bytes_max()};
  }

  // Whether the server can ever grant a request of `request_bytes` whose answer carries
  // `response_bytes`.
  bool Fits(std::uint64_t request_bytes, std::uint64_t response_bytes) const;
  // What one client may hold of the budget while others wait: half of it.
  std::uint64_t share_bytes() const;
  // A request that is one of several takes about so much, its answer included: an eighth of the
  // budget, so that four of them, which a client has under way at once, fill the half of the budget
  // that is one client's share.
  std::uint64_t part_bytes() const;
  // The largest payload of one section that the server can take, in a request of its own; the
  // largest number when the limits are unknown.
  std::uint64_t section_bytes_max() const;
  // "--budget-bytes-max 16 MiB", the flag that limits a section, with its value: for messages.
  std::string section_flag() const;
};

// Of these a client has as many under way at one server, when it sends in parts.
inline constexpr std::uint32_t kPartsUnderWayMax = 4;

}  // namespace evergrad::client
