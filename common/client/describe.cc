#include "common/client/describe.h"

namespace evergrad::client {

void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in, std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to) {
  to->set_type(from.type);
  to->set_value(from.value);
  to->set_stddev(from.stddev);
  to->set_fan_in(fan_in);
  to->set_fan_out(fan_out);
  to->set_seed(seed);
}

void FillOptimizer(const config::OptimizerSpec& from, v1::Optimizer* to) {
  to->set_type(from.type);
  to->set_learning_rate(from.learning_rate);
  to->set_momentum(from.momentum);
  to->set_nesterov(from.nesterov);
  to->set_beta_1(from.beta_1);
  to->set_beta_2(from.beta_2);
  to->set_epsilon(from.epsilon);
  to->set_initial_accumulator_value(from.initial_accumulator_value);
  to->set_weight_decay(from.weight_decay);
  to->set_rho(from.rho);
  to->set_learning_rate_power(from.learning_rate_power);
  to->set_l1_regularization_strength(from.l1_regularization_strength);
  to->set_l2_regularization_strength(from.l2_regularization_strength);
  to->set_beta(from.beta);
}

}  // namespace evergrad::client
