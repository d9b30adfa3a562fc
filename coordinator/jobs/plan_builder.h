// Builds a job's plan from its YAML and the result of a describe closure: the number of closures,
// and the partitions of every variable. Pure.
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

// The largest part of a variable that a job's servers can take in one request. A plan is made for
// this limit, and the limit is checked again when shards are placed.
struct SectionLimit {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string server;  // the server with this limit; "" if no server has reported a limit
  std::string flag;    // the server's flag for this limit, with its value

  // Returns the lowest limit of the servers. A server that reports none has no limit.
  static SectionLimit Of(const std::map<std::string, v1::Endpoint>& servers);

  // Returns a user's error if one row is larger than the limit, because a row cannot be
  // partitioned. `kind` is "variable" or "table".
  absl::Status CheckRow(absl::string_view kind, absl::string_view name,
                        std::uint64_t row_bytes) const;
  // Returns a user's error if a shard of a variable exceeds the limit. A shard can be too large if
  // the plan was made for other servers.
  absl::Status CheckShards(const v1::Plan& plan) const;
};

// Largest number of shards of a job. With this limit the map and the plan each fit in one message.
inline constexpr std::uint32_t kShardsMax = 8192;

struct BuiltPlan {
  plan::Plan plan;
  v1::Plan message;  // with shards and fingerprint
  // Bytes of values and optimizer state by shard. A slot of tables has no size yet, so its number
  // is an estimate for placement.
  std::vector<std::uint64_t> shard_bytes;
  // Bytes of values and optimizer state of all dense variables, plus the limits (bytes_max) of the
  // tables that have one.
  std::uint64_t server_bytes = 0;
};

// Builds the plan. The worker's description is checked: names, ranks, sizes. An error is a user's
// error (a model too large, no examples) or names the malformed part. No partition of a variable
// exceeds `limit`: the variable gets more partitions, or the plan is refused.
absl::StatusOr<BuiltPlan> BuildPlan(const config::JobSpec& spec,
                                    const v1::DescribeResult& described,
                                    const SectionLimit& limit = {});

// Returns the description of a shard for its server: the description in the plan, and for a slot
// also all tables.
v1::ShardSpec ShardSpecOf(const v1::Plan& plan, ShardId shard);

// Returns the SHA-256, in hex, of the plan and the model. The hash does not depend on learning
// rate, epochs, evaluation, checkpoint policy, resources, memory limits of tables and the workers'
// pipeline. Keys with default values are not hashed, so a later version with more keys computes the
// same value.
std::string Fingerprint(const config::JobSpec& spec, const v1::Plan& plan,
                        absl::string_view data_fingerprint);

}  // namespace evergrad::coordinator
