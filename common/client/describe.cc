#include "common/client/describe.h"

namespace evergrad::client {
namespace {

constexpr double kTruncatedNormalStddev = 0.05;  // Keras' default

}  // namespace

void FillInitializer(const std::string& type, double value, std::uint64_t fan_in, std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to) {
  to->set_type(type);
  to->set_value(value);
  to->set_stddev(kTruncatedNormalStddev);
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
}

}  // namespace evergrad::client
