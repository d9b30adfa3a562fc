// Pure functions that divide the sections for one server into requests.
//
// The sections form one request if it fits into the client's share of the server's budget.
// Otherwise the sections are divided into parts. The push and the pull of a shard stay in the same
// part, because a pull shows the worker's own update only if the server handles it after the push.
// If a shard's push and pull together exceed one request, the push is sent alone, and the pull is
// sent after the answer to the push.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/client/request_limits.h"

namespace evergrad::worker {

struct SectionSize {
  std::uint32_t shard = 0;
  bool push = false;
  std::uint64_t request_bytes = 0;   // largest contribution to the request, including the header
  std::uint64_t response_bytes = 0;  // payload of the answer
};

// Returns the contribution of a section to a request. `ids_bytes` and `tables` are for rows of
// embedding tables.
SectionSize PushSize(std::uint32_t shard, std::uint64_t payload_bytes, std::uint64_t ids_bytes = 0,
                     std::size_t tables = 0);
SectionSize PullSize(std::uint32_t shard, std::uint64_t values_bytes, std::uint64_t ids_bytes = 0,
                     std::size_t tables = 0);

struct RequestSize {
  std::uint64_t request_bytes = 0, response_bytes = 0;
};
// Returns the largest size of a request with these sections.
RequestSize SizeOf(std::span<const SectionSize> sections);

struct SplitPlan {
  // Indices of the sections, in the order of sending.
  std::vector<std::vector<std::size_t>> requests;
  // The sections are divided into parts, of which at most kPartsUnderWayMax are in flight.
  bool in_parts = false;
  // A section that does not fit into any request; `requests` lacks it.
  std::optional<std::size_t> never_fits;
};

// If parts of an earlier plan are still in flight (`in_parts`), the sections are sent in parts,
// too.
SplitPlan SplitRequests(const client::RequestLimits& limits, std::span<const SectionSize> sections,
                        bool in_parts = false);

}  // namespace evergrad::worker
