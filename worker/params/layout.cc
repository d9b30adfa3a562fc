#include "worker/params/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/client/wire_type.h"
#include "common/sharding/slots.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::worker {
namespace {

absl::Status Bad(absl::string_view words, absl::string_view values) {
  return absl::InvalidArgumentError(absl::StrCat(words, ": ", values));
}

// Returns 1 + the largest position of a variable in the plan.
absl::StatusOr<std::uint32_t> CountVariables(const v1::Plan& plan) {
  std::uint32_t variable_count = 0;
  for (const v1::ShardSpec& spec : plan.shards()) {
    if (spec.has_slot()) continue;
    if (spec.variable().index() >= static_cast<std::uint32_t>(plan.shards_size())) {
      return Bad("variable index out of range",
                 absl::StrCat("shard=", spec.shard(), " variable=", spec.variable().name(),
                              " index=", spec.variable().index()));
    }
    variable_count = std::max(variable_count, spec.variable().index() + 1);
  }
  return variable_count;
}

}  // namespace

absl::StatusOr<Layout> Layout::FromPlan(const v1::Plan& plan) {
  Layout layout;
  const auto shard_count = static_cast<std::uint32_t>(plan.shards_size());
  if (shard_count == 0)
    return Bad("plan without shards", absl::StrCat("examples=", plan.train_examples()));

  EG_RETURN_IF_ERROR(layout.LayTables(plan));
  EG_ASSIGN_OR_RETURN(const std::uint32_t variable_count, CountVariables(plan));
  layout.variables_.resize(variable_count);
  layout.slices_.resize(shard_count);
  std::vector<bool> seen(layout.dense_shards(), false);
  for (const v1::ShardSpec& spec : plan.shards()) {
    if (spec.has_slot()) continue;
    if (spec.shard() >= seen.size() || seen[spec.shard()])
      return Bad("shard numbers must be 0,1,2,… without gap or duplicate",
                 absl::StrCat("shards=", shard_count, " got=", spec.shard()));
    seen[spec.shard()] = true;
    EG_RETURN_IF_ERROR(layout.LayShard(spec));
  }
  for (std::uint32_t i = 0; i < variable_count; ++i) EG_RETURN_IF_ERROR(layout.SortShards(i));
  return layout;
}

absl::Status Layout::LayShard(const v1::ShardSpec& spec) {
  const v1::VariableSpec& variable = spec.variable();
  if (variable.dtype() != v1::DTYPE_FLOAT32) {
    return Bad("unsupported element type", absl::StrCat("variable=", variable.name(),
                                                        " want=", v1::DType_Name(v1::DTYPE_FLOAT32),
                                                        " got=", v1::DType_Name(variable.dtype())));
  }
  EG_ASSIGN_OR_RETURN(tensor::Shape shape,
                      tensor::Shape::Checked({variable.shape().begin(), variable.shape().end()}));
  EG_ASSIGN_OR_RETURN(const tensor::WireType wire, client::WireTypeOf(variable));
  LaidVariable& laid = variables_[variable.index()];
  if (laid.shards.empty()) {
    laid.name = variable.name();
    laid.shape = shape;
    laid.moving_average = variable.optimizer().type() == "moving_average";
    laid.wire = wire;
  } else if (laid.name != variable.name() || !(laid.shape == shape) || laid.wire != wire) {
    return Bad("conflicting descriptions of a variable",
               absl::StrCat("index=", variable.index(), " first=", laid.name, laid.shape.ToString(),
                            " then=", variable.name(), shape.ToString()));
  }
  if (spec.row_begin() >= spec.row_end() || spec.row_end() > shape.rows()) {
    return Bad("rows outside the variable",
               absl::StrCat("variable=", laid.name, " shard=", spec.shard(), " rows=", shape.rows(),
                            " got=", spec.row_begin(), "-", spec.row_end()));
  }
  ShardSlice& slice = slices_[spec.shard()];
  slice.variable = variable.index();
  slice.wire = wire;
  slice.row_begin = spec.row_begin();
  slice.row_end = spec.row_end();
  const std::uint64_t row_elements = shape.row_elements();  // rows > 0 here
  slice.first_element = spec.row_begin() * row_elements;    // <= elements, which did not overflow
  slice.elements = slice.rows() * row_elements;
  if (!CheckedMul(slice.elements, sizeof(float)))
    return Bad("shard too large", absl::StrCat("variable=", laid.name, " shard=", spec.shard()));
  laid.shards.emplace_back(spec.shard());
  return absl::OkStatus();
}

absl::Status Layout::SortShards(std::uint32_t variable) {
  LaidVariable& laid = variables_[variable];
  if (laid.shards.empty()) return Bad("variable without shards", absl::StrCat("index=", variable));
  std::sort(laid.shards.begin(), laid.shards.end(),
            [this](ShardId a, ShardId b) { return slice(a).row_begin < slice(b).row_begin; });
  std::uint64_t next = 0;
  for (const ShardId shard : laid.shards) {
    const ShardSlice& rows = slice(shard);
    if (rows.row_begin != next) {
      return Bad("rows of a variable have a gap or overlap",
                 absl::StrCat("variable=", laid.name, " shard=", shard.value(), " want=", next,
                              " got=", rows.row_begin));
    }
    next = rows.row_end;
  }
  if (next != laid.shape.rows())
    return Bad("rows of a variable are not all covered",
               absl::StrCat("variable=", laid.name, " want=", laid.shape.rows(), " got=", next));
  return absl::OkStatus();
}

absl::Status Layout::LayTables(const v1::Plan& plan) {
  for (const v1::TableSpec& table : plan.tables()) {
    if (table.name().empty() || table.dimension() == 0 || table.dtype() != v1::DTYPE_FLOAT32)
      return Bad("table description is invalid",
                 absl::StrCat("table=", table.name(), " dimension=", table.dimension(),
                              " dtype=", v1::DType_Name(table.dtype())));
    EG_ASSIGN_OR_RETURN(const tensor::WireType wire, client::WireTypeOf(table));
    tables_.push_back({table.name(), table.dimension(), sharding::SlotKey(table.name()), wire});
  }
  for (const v1::ShardSpec& spec : plan.shards()) slots_ += spec.has_slot();
  if ((slots_ == 0) != tables_.empty() || slots_ > sharding::kSlotsMax)
    return Bad("slots and tables do not match",
               absl::StrCat("tables=", tables_.size(), " slots=", slots_));
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    const auto shard = static_cast<std::uint32_t>(plan.shards_size()) - slots_ + slot;
    const v1::ShardSpec& spec = plan.shards(static_cast<int>(shard));
    if (!spec.has_slot() || spec.shard() != shard || spec.slot().slot() != slot ||
        spec.slot().slots() != slots_) {
      return Bad("slots are not the last shards of the plan, in ascending order",
                 absl::StrCat("slots=", slots_, " want=", slot, " got_shard=", spec.shard(),
                              " got_slot=", spec.slot().slot(), "/", spec.slot().slots()));
    }
  }
  return absl::OkStatus();
}

int Layout::Find(absl::string_view variable) const {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (variables_[i].name == variable) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace evergrad::worker
