// The limits that a server states in its endpoint, and the sizes that clients derive from them.
// Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

struct RequestLimits {
  // Limit of requests and answers in flight, for all clients together; 0 if unknown.
  std::uint64_t budget_bytes_max = 0;
  std::uint64_t frame_bytes_max = 0;  // limit of one request, or of one answer; 0 if unknown

  static RequestLimits Of(const v1::Endpoint& endpoint) {
    return {endpoint.budget_bytes_max(), endpoint.frame_bytes_max()};
  }

  // Returns whether the server can ever grant a request of `request_bytes` whose answer carries
  // `response_bytes`.
  bool Fits(std::uint64_t request_bytes, std::uint64_t response_bytes) const;
  // Returns the share of the budget that one client may hold while others wait: half of the budget.
  std::uint64_t share_bytes() const;
  // Returns the target size of a part, which is one of the requests into which a client divides its
  // work for a server. The size includes the answer, and is an eighth of the budget. A client has
  // four parts in flight, which fill its share.
  std::uint64_t part_bytes() const;
  // Returns the largest payload that a section may have if it is the only section of its request.
  // If the limits are unknown, returns the largest number of the return type.
  std::uint64_t section_bytes_max() const;
  // Returns the server's flag that determines section_bytes_max(), with its value, for messages:
  // "--budget-bytes-max 16 MiB".
  std::string section_flag() const;
};

// Largest number of parts (part_bytes) that a client has in flight at one server.
inline constexpr std::uint32_t kPartsUnderWayMax = 4;

}  // namespace evergrad::client
