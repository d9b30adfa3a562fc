// The type of job with which the fault scenarios test the cluster (`spec.type: counting`). The
// final values of the job show exactly how often each update and each sample was applied. Workers
// accept such a job only if the daemon was started with --failpoints. All functions here are pure.
//
//   counting/samples [examples, 1]
//       +1 at the rows of the batch's examples; pushed only to the shards that hold such rows
//   counting/updates [shards, 1]
//       +1 at every row; pushed to every shard
//   counting/table0, counting/table1, …
//       `counting.tables` embedding tables; table t has dimension 1 + t % 4. A step pushes integers
//       to up to seven rows of each table. Ids and integers are a function of (closure, step,
//       table) (common/plan/counting_rows.h), so the final value of each id is known
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/plan/counting_rows.h"
#include "evergrad/v1/session.pb.h"
#include "worker/params/layout.h"
#include "worker/params/slot_rows.h"
#include "worker/params/weights.h"

namespace evergrad::worker {

using plan::kCountingSamples;
inline constexpr char kCountingUpdates[] = "counting/updates";
inline constexpr char kCountingTable[] = "counting/table";  // followed by its number

v1::DescribeResult DescribeCounting(const config::JobSpec& spec, std::uint64_t seed);

// Returns the shards that update u of closure c touches (touch(c, u) in LEDGER), computed from the
// examples of the batch. The result depends only on the plan, c and u. Returns InvalidArgument for
// a layout that is not a counting job's, or for an example without a row.
absl::StatusOr<std::vector<ShardId>> CountingTouch(const Layout& layout,
                                                   const std::vector<std::uint64_t>& examples);
// The values that update (closure, update) pushes, in wire types: +1 to dense shards, and integers
// to rows of tables. CountingTouch must have checked the layout (EG_CHECK).
struct CountedStep {
  std::shared_ptr<GradientBuffer> gradients;
  std::shared_ptr<const SlotRows> slots;  // nullptr if the update has no rows
  std::vector<tensor::AlignedBuffer> row_gradients;
};
CountedStep CountStepOf(const std::shared_ptr<const Layout>& layout,
                        const std::vector<std::uint64_t>& examples, std::uint64_t closure,
                        std::uint32_t update, std::uint64_t table_ids);
// Returns the sum over rows [begin, end) of counting/samples, or InvalidArgument for rows that do
// not exist.
absl::StatusOr<std::int64_t> CountingSum(const Layout& layout,
                                         const std::vector<std::span<const float>>& weights,
                                         std::uint64_t begin, std::uint64_t end);

}  // namespace evergrad::worker
