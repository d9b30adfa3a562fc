// From a job's YAML and what a describe closure found to the plan: numbers of closures, the cut of
// every variable. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::coordinator {

// The largest part of a variable that a job's servers can take: what a plan is made for, and what
// is checked again when shards are placed.
struct SectionLimit {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string server;  // whose limit it is; "" when no server has said one
  std::string flag;    // of that server, with its value

  // Of the server that takes least. Servers that say nothing limit nothing.
  static SectionLimit Of(const std::map<std::string, v1::Endpoint>& servers);

  // The user's error where one row, which cannot be cut, is larger. `kind`: "variable" or "table".
  absl::Status CheckRow(absl::string_view kind, absl::string_view name,
                        std::uint64_t row_bytes) const;
  // Likewise where a shard of a variable is larger: the plan was made for other servers.
  absl::Status CheckShards(const v1::Plan& plan) const;
};

inline constexpr std::uint32_t kShardsMax = 8192;  // The map and the plan each fit one message.

struct BuiltPlan {
  plan::Plan plan;
  v1::Plan message;  // with shards and fingerprint
  std::vector<std::uint64_t>
      shard_bytes;  // values and slots, by shard; of a slot of tables what it is placed as
  std::uint64_t server_bytes = 0;  // values and slots of all variables, and what tables may take
                                   // where they have a limit (bytes_max)
};

// What the worker says is checked: names, ranks, sizes. Errors are the user's (a model too large,
// no examples) or name what is malformed. No part of a variable is larger than what the server of
// `limit` takes: it is cut further, or the plan is refused.
absl::StatusOr<BuiltPlan> BuildPlan(const config::JobSpec& spec,
                                    const v1::DescribeResult& described,
                                    const SectionLimit& limit = {});

// What a server needs of a shard: as the plan has it, a slot with all tables.
v1::ShardSpec ShardSpecOf(const v1::Plan& plan, ShardId shard);

// SHA-256, hex, over the plan and the model, without learning rate, epochs, evaluation, checkpoint
// policy, resources, the room of tables and the workers' pipeline, which are no part of it. Keys at
// their defaults are not hashed, so that a later version, with more keys, finds the same.
std::string Fingerprint(const config::JobSpec& spec, const v1::Plan& plan,
                        absl::string_view data_fingerprint);

}  // namespace evergrad::coordinator
