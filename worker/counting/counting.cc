#include "worker/counting/counting.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/client/wire_type.h"

namespace evergrad::worker {

v1::DescribeResult DescribeCounting(const config::JobSpec& spec, std::uint64_t seed) {
  v1::DescribeResult result;
  result.set_train_examples(spec.counting.examples);
  result.set_eval_examples(spec.counting.examples);
  const auto add = [&](const char* name, std::uint64_t rows) {
    v1::VariableSpec& variable = *result.add_variables();
    variable.set_index(static_cast<std::uint32_t>(result.variables_size() - 1));
    variable.set_name(name);
    variable.add_shape(rows);
    variable.add_shape(1);
    variable.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(spec, name, &variable);
    variable.mutable_initializer()->set_type("zeros");
    variable.mutable_initializer()->set_seed(seed);
    variable.mutable_optimizer()->set_type(spec.counting.optimizer);
  };
  add(kCountingSamples, spec.counting.examples);
  add(kCountingUpdates, spec.counting.shards);
  for (std::uint32_t t = 0; t < spec.counting.tables; ++t) {
    v1::TableSpec& table = *result.add_tables();
    table.set_index(t);
    table.set_name(absl::StrCat(kCountingTable, t));
    table.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(spec, table.name(), &table);
    table.set_dimension(1 + t % 4);
    table.mutable_initializer()->set_type("zeros");
    table.mutable_initializer()->set_seed(seed);
    table.mutable_optimizer()->set_type(spec.counting.optimizer);
    table.set_admit_after(1);
    if (t + 1 == spec.counting.tables) table.set_bytes_max(spec.counting.table_bytes_max);
  }
  result.set_parameters(spec.counting.examples + spec.counting.shards);
  result.set_data_fingerprint(absl::StrCat("counting examples=", spec.counting.examples));
  result.set_model_summary(absl::StrCat("counting job: ", spec.counting.examples, " samples, ",
                                        spec.counting.shards, " counts of updates\n"));
  return result;
}

absl::StatusOr<std::vector<ShardId>> CountingTouch(const Layout& layout,
                                                   const std::vector<std::uint64_t>& examples) {
  const int samples = layout.Find(kCountingSamples), updates = layout.Find(kCountingUpdates);
  if (samples < 0 || updates < 0)
    return absl::InvalidArgumentError("the plan of a counting job lacks its variables");
  const LaidVariable& rows = layout.variables()[static_cast<std::size_t>(samples)];
  std::set<ShardId> touched(layout.variables()[static_cast<std::size_t>(updates)].shards.begin(),
                            layout.variables()[static_cast<std::size_t>(updates)].shards.end());
  for (const std::uint64_t example : examples) {
    if (example >= rows.shape.rows())
      return absl::InvalidArgumentError(
          absl::StrCat("example without a row: rows=", rows.shape.rows(), " got=", example));
    const auto after =
        std::upper_bound(rows.shards.begin(), rows.shards.end(), example,
                         [&](std::uint64_t e, ShardId s) { return e < layout.slice(s).row_begin; });
    touched.insert(*std::prev(after));
  }
  return std::vector<ShardId>(touched.begin(), touched.end());
}

namespace {

std::shared_ptr<GradientBuffer> CountingGradient(const std::shared_ptr<const Layout>& layout,
                                                 const std::vector<std::uint64_t>& examples) {
  const int samples = layout->Find(kCountingSamples), updates = layout->Find(kCountingUpdates);
  EG_CHECK(samples >= 0 && updates >= 0);
  auto gradient = std::make_shared<GradientBuffer>(layout, /*zeroed=*/true);
  const std::span<float> rows = gradient->variable(static_cast<std::uint32_t>(samples));
  for (const std::uint64_t example : examples) {
    EG_CHECK(example < rows.size());
    rows[example] += 1.0f;
  }
  for (float& count : gradient->variable(static_cast<std::uint32_t>(updates))) count = 1.0f;
  return gradient;
}

// Adds the rows of the update. `slots` stays nullptr if the update has no rows.
void CountRows(const std::shared_ptr<const Layout>& layout, std::uint64_t closure,
               std::uint32_t update, std::uint64_t table_ids, CountedStep* step) {
  std::vector<plan::CountingRows> drawn;
  std::vector<std::span<const std::int64_t>> ids;
  for (std::uint32_t t = 0; t < layout->tables().size(); ++t)
    drawn.push_back(
        plan::CountingRowsOf(closure, update, t, layout->tables()[t].dimension, table_ids));
  ids.reserve(drawn.size());
  for (const plan::CountingRows& table : drawn) ids.emplace_back(table.ids);
  auto slots = std::make_shared<const SlotRows>(layout, ids);
  if (slots->parts().empty()) return;
  step->row_gradients = slots->MakeRows();
  for (std::size_t t = 0; t < drawn.size(); ++t)
    std::copy(drawn[t].values.begin(), drawn[t].values.end(),
              step->row_gradients[t].floats().begin());
  slots->ToWire(&step->row_gradients);
  step->slots = std::move(slots);
}

}  // namespace

CountedStep CountStepOf(const std::shared_ptr<const Layout>& layout,
                        const std::vector<std::uint64_t>& examples, std::uint64_t closure,
                        std::uint32_t update, std::uint64_t table_ids) {
  CountedStep step;
  step.gradients = CountingGradient(layout, examples);
  step.gradients->ToWire();
  if (layout->slots() > 0) CountRows(layout, closure, update, table_ids, &step);
  return step;
}

absl::StatusOr<std::int64_t> CountingSum(const Layout& layout,
                                         const std::vector<std::span<const float>>& weights,
                                         std::uint64_t begin, std::uint64_t end) {
  const int samples = layout.Find(kCountingSamples);
  if (samples < 0)
    return absl::InvalidArgumentError("the plan of a counting job lacks its variables");
  const std::span<const float> rows = weights[static_cast<std::size_t>(samples)];
  if (begin > end || end > rows.size())
    return absl::InvalidArgumentError(
        absl::StrCat("rows out of range: rows=", rows.size(), " got=", begin, "-", end));
  std::int64_t sum = 0;
  for (std::uint64_t i = begin; i < end; ++i) sum += std::llround(rows[i]);
  return sum;
}

}  // namespace evergrad::worker
