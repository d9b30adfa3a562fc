// The largest part of a variable that a job's servers can take: what a plan is made for, and what
// is checked again when shards are placed. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::coordinator {

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

}  // namespace evergrad::coordinator
