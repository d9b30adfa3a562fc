// Calls Shard::Read for callers that take the whole answer at once, without a memory limit.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/tensor/tensor.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

inline PullResult ReadShard(const Shard& shard, const Pull& pull) {
  PullPlan plan = shard.Read(pull);
  if (plan.rows_bytes == 0) return std::move(plan.result);
  const auto memory = std::make_shared<tensor::AlignedBuffer>(plan.rows_bytes);
  std::vector<storage::RowReading> readings;
  plan.ReadTo(memory->data(), &readings);
  storage::ReadRows(readings);
  plan.result.chunks = {tensor::SharedBytes{memory, {memory->data(), memory->size()}}};
  return std::move(plan.result);
}

}  // namespace evergrad::ps_server
