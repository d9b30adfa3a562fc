// Which sections for one server go in which request. Pure.
//
// All of them go in one request if that is within the client's share of the server's budget.
// Otherwise they are divided into parts, and the push and the pull of a shard stay in the same
// part: a pull shows the worker's own update only if the server deals with it behind the push.
// Where a shard's push and pull do not fit into one request, the push goes alone and the pull is
// left for later, when the push has been answered.
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
  std::uint64_t request_bytes =
      0;  // what it adds to the request at most, its part of the header included
  std::uint64_t response_bytes = 0;  // payload of its answer
};

// What a section adds to a request: `ids_bytes` and `tables` of rows of embedding tables.
SectionSize PushSize(std::uint32_t shard, std::uint64_t payload_bytes, std::uint64_t ids_bytes = 0,
                     std::size_t tables = 0);
SectionSize PullSize(std::uint32_t shard, std::uint64_t values_bytes, std::uint64_t ids_bytes = 0,
                     std::size_t tables = 0);

struct RequestSize {
  std::uint64_t request_bytes = 0, response_bytes = 0;
};
// A request with these sections is at most so large.
RequestSize SizeOf(std::span<const SectionSize> sections);

struct SplitPlan {
  std::vector<std::vector<std::size_t>>
      requests;  // indices of the sections, in the order in which they are to be sent
  bool in_parts =
      false;  // they are more than one request may take: at most kPartsUnderWayMax at once
  std::optional<std::size_t>
      never_fits;  // this section is larger than any request may be, and `requests` lacks it
};

// `in_parts`: parts of an earlier plan are still under way, so that what is left is sent in parts,
// too.
SplitPlan SplitRequests(const client::RequestLimits& limits, std::span<const SectionSize> sections,
                        bool in_parts = false);

}  // namespace evergrad::worker
