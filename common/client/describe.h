// What a plan says of a variable (v1::VariableSpec), filled from what a job file says of it: by a
// worker that describes a model, and by the coordinator where the job file names the variables
// itself.
#pragma once

#include <cstdint>
#include <string>

#include "common/config/job_spec.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

// Fans are Keras' compute_fans.
void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in,
                     std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to);
// From a job file's numbers, or from a server's settings: the fields have the same names.
template <class Numbers>
void FillOptimizer(const Numbers& from, v1::Optimizer* to) {
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
