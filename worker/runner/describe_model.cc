#include "worker/runner/describe_model.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/describe.h"
#include "common/client/protocol.h"
#include "common/client/wire_type.h"
#include "common/optimizers/registry.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

absl::Status DescribeTables(const config::JobSpec& spec, std::uint64_t seed, const Graph& graph,
                            v1::DescribeResult* result) {
  for (const config::TableSpec& table : graph.tables()) {
    const optimizers::Settings* const optimizer = config::OptimizerFor(spec, table.name);
    if (optimizer == nullptr)
      return ErrorAt(spec.optimizers_where,
                     absl::StrCat("no entry of `optimizers` matches: table=", table.name));
    v1::TableSpec& described = *result->add_tables();
    described.set_index(static_cast<std::uint32_t>(result->tables_size() - 1));
    described.set_name(table.name);
    described.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(spec, table.name, &described);
    described.set_dimension(table.dimension);
    client::FillInitializer(table.initializer, 1, table.dimension, seed,
                            described.mutable_initializer());
    client::FillOptimizer(*optimizer, described.mutable_optimizer());
    described.set_admit_after(table.admit_after);
    described.set_default_row(table.default_row);
    described.set_ttl_steps(table.ttl_steps);
    described.set_bytes_max(table.bytes_max);
    described.set_evict_lru(table.evict == "lru");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::DescribeResult> DescribeModel(const config::JobSpec& spec, std::uint64_t seed,
                                                 const Graph& graph, const Dataset& train,
                                                 const Dataset* eval) {
  v1::DescribeResult result;
  result.set_train_examples(train.examples());
  result.set_data_fingerprint(train.Fingerprint());  // evaluation data is not part of the plan
  if (eval != nullptr) result.set_eval_examples(eval->examples());
  std::set<std::string> warnings;  // a set, because both sources may be the same file
  for (const Dataset* data : {&train, eval})
    if (data != nullptr)
      for (std::string& warning : data->Warnings())
        warnings.insert(client::CleanText(warning, 1024));
  for (const std::string& warning : warnings) result.add_warnings(warning);
  std::uint64_t parameters = 0;
  for (const Variable& variable : graph.variables()) {
    const optimizers::Settings moving{
        .type = "moving_average", .learning_rate = 0, .momentum = variable.momentum};
    const optimizers::Settings* const optimizer =
        variable.is_moving_average() ? &moving : config::OptimizerFor(spec, variable.name);
    if (optimizer == nullptr)
      return ErrorAt(spec.optimizers_where,
                     absl::StrCat("no entry of `optimizers` matches: variable=", variable.name));
    if (optimizers::IsForTablesOnly(optimizer->type))
      return ErrorAt(spec.optimizers_where,
                     absl::StrCat("optimizer ", optimizer->type,
                                  " supports only embedding tables: variable=", variable.name));
    v1::VariableSpec& described = *result.add_variables();
    described.set_index(static_cast<std::uint32_t>(result.variables_size() - 1));
    described.set_name(variable.name);
    for (const std::uint64_t d : variable.shape.dims()) described.add_shape(d);
    described.set_dtype(v1::DTYPE_FLOAT32);
    client::FillWireType(spec, variable.name, &described);
    client::FillInitializer({variable.initializer, variable.initial_value, variable.stddev},
                            variable.fan_in, variable.fan_out, seed,
                            described.mutable_initializer());
    client::FillOptimizer(*optimizer, described.mutable_optimizer());
    parameters += variable.shape.elements();
  }
  EG_RETURN_IF_ERROR(DescribeTables(spec, seed, graph, &result));
  result.set_parameters(parameters);
  result.set_model_summary(graph.Summary());
  return result;
}

}  // namespace evergrad::worker
