// Pure functions that make the errors of an exchange. The errors name keys of the job file and
// flags of the servers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/client/request_limits.h"
#include "evergrad/v1/data.pb.h"
#include "worker/params/layout.h"
#include "worker/runner/request_split.h"

namespace evergrad::worker {

// Describes the content of a section of `shard` for messages: "rows 0 to 64 of variable w".
std::string SectionName(const Layout& layout, ShardId shard);
// Returns the user error for a section that exceeds the limits of `server`.
absl::Status NeverFits(const Layout& layout, const SectionSize& section, const std::string& server,
                       const client::RequestLimits& limits);
// Returns the error for a push that `server` answered with INVALID or OVER_BUDGET.
absl::Status PushError(const std::string& server, ClosureId closure, std::uint32_t update,
                       ShardId shard, const v1::PushResult& result);
// Checks that the answer to a pull has values of the type `want`, or none.
absl::Status CheckPullAnswer(const v1::PullResult& result, ShardId shard, v1::DType want);

}  // namespace evergrad::worker
