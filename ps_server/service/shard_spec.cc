#include "ps_server/service/shard_spec.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::ps_server {
namespace {

constexpr std::size_t kNameBytesMax = 512;

}  // namespace

absl::StatusOr<ShardSettings> ShardSettingsOf(JobUid job, const v1::ShardSpec& spec) {
  const v1::VariableSpec& variable = spec.variable();
  if (variable.name().empty() || variable.name().size() > kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("variable name of no or too many bytes: shard=", spec.shard(), " bytes=", variable.name().size(), " max=", kNameBytesMax));
  }
  if (variable.dtype() != v1::DTYPE_FLOAT32) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype is not built, expected DTYPE_FLOAT32: variable=", variable.name(), " got=", static_cast<int>(variable.dtype())));
  }
  ShardSettings settings;
  settings.job = job;
  settings.shard = ShardId(spec.shard());
  settings.variable = variable.name();
  settings.variable_index = variable.index();
  EG_ASSIGN_OR_RETURN(settings.variable_shape, tensor::Shape::Checked({variable.shape().begin(), variable.shape().end()}));
  settings.row_begin = spec.row_begin();
  settings.row_end = spec.row_end();
  const v1::Initializer& initializer = variable.initializer();
  settings.initializer = {initializer.type(),   initializer.value(),   initializer.mean(), initializer.stddev(),
                          initializer.fan_in(), initializer.fan_out(), initializer.seed()};
  const v1::Optimizer& optimizer = variable.optimizer();
  settings.optimizer.type = optimizer.type();
  settings.optimizer.learning_rate = optimizer.learning_rate();
  settings.optimizer.momentum = optimizer.momentum();
  settings.optimizer.nesterov = optimizer.nesterov();
  settings.optimizer.beta_1 = optimizer.beta_1();
  settings.optimizer.beta_2 = optimizer.beta_2();
  settings.optimizer.epsilon = optimizer.epsilon();
  settings.optimizer.initial_accumulator_value = optimizer.initial_accumulator_value();
  settings.optimizer.weight_decay = optimizer.weight_decay();
  settings.optimizer.rho = optimizer.rho();
  settings.optimizer.learning_rate_power = optimizer.learning_rate_power();
  settings.optimizer.l1_regularization_strength = optimizer.l1_regularization_strength();
  settings.optimizer.l2_regularization_strength = optimizer.l2_regularization_strength();
  settings.optimizer.beta = optimizer.beta();
  return settings;
}

}  // namespace evergrad::ps_server
