// Describes one variable for people and programs: its properties and its traffic. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/strings/string_view.h"
#include "common/optimizers/settings.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

struct Flow {
  double pulls = 0, pushes = 0, bytes_in = 0, bytes_out = 0;  // bytes into and out of the server
  double bytes() const { return bytes_in + bytes_out; }
};
// The largest value among shards or servers, divided by the median; NaN if the median is 0.
struct Skew {
  double pulls = 0, pushes = 0, bytes = 0;
};
struct ShardFlow {
  std::uint32_t shard = 0;
  std::string server;
  Flow flow;
};
struct ServerFlow {
  std::string server;
  std::size_t shards = 0;
  Flow flow;
};
struct HotFlow {
  std::int64_t id = 0;
  std::uint64_t pushes = 0, error = 0;
  double pushes_per_second = 0;  // NaN if not known
};
// Holds totals since each server got its shards, or the increase per second between two samples. If
// a shard moved or its server restarted between the samples, the counters of the shard began again
// at 0, so the present totals are the increase.
struct VariableView {
  double seconds = 0;               // time between the samples; 0 for totals
  std::vector<ShardFlow> shards;    // most bytes first
  std::vector<ServerFlow> servers;  // by name
  Skew shard_skew, server_skew;
  std::vector<HotFlow> hottest;  // in the order of the newer sample
};
VariableView ViewOf(const v1::VariableRow& row);
VariableView ViewOf(const v1::VariableRow& row, const v1::VariableRow& before, double seconds);

// Returns the hyper-parameters of this type in the order in which they are shown. For a type that
// this program does not know, it returns only the learning rate.
std::vector<optimizers::Member> ShownMembers(const std::string& type);

// `job` is shown in the first line. At most `count` shards and ids are listed.
std::vector<std::string> VariableDescription(const v1::VariableRow& row, absl::string_view job,
                                             std::size_t count);
std::vector<std::string> VariableTop(const v1::VariableRow& row, const VariableView& view,
                                     absl::string_view job, std::size_t count);
nlohmann::json JsonOf(const VariableView& view, std::size_t count);

}  // namespace evergrad::psctl
