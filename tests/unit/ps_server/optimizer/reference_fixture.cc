#include "tests/unit/ps_server/optimizer/reference_fixture.h"

#include <cmath>

namespace evergrad::ps_server::optimizer {
namespace {

using optimizers::Settings;

void Sgd(const Settings& s, int, double g, Element* e) {
  e->states[0] = s.momentum * e->states[0] - s.learning_rate * g;
  e->value += s.nesterov ? s.momentum * e->states[0] - s.learning_rate * g : e->states[0];
}

void Adam(const Settings& s, int t, double g, Element* e) {
  double &m = e->states[0], &v = e->states[1];
  m = s.beta_1 * m + (1 - s.beta_1) * g;
  v = s.beta_2 * v + (1 - s.beta_2) * g * g;
  const double rate =
      s.learning_rate * std::sqrt(1 - std::pow(s.beta_2, t)) / (1 - std::pow(s.beta_1, t));
  e->value -= rate * m / (std::sqrt(v) + s.epsilon);
}

void AdamW(const Settings& s, int t, double g, Element* e) {
  e->value -= e->value * s.weight_decay * s.learning_rate;
  Adam(s, t, g, e);
}

double NadamMu(const Settings& s, int t) {
  return s.beta_1 * (1 - 0.5 * std::pow(0.96, 0.004 * t));
}

void Nadam(const Settings& s, int t, double g, Element* e) {
  double product = 1;
  for (int i = 1; i <= t; ++i) product *= NadamMu(s, i);
  double &m = e->states[0], &v = e->states[1];
  m = s.beta_1 * m + (1 - s.beta_1) * g;
  v = s.beta_2 * v + (1 - s.beta_2) * g * g;
  const double next = NadamMu(s, t + 1), gradient = g / (1 - product),
               moment = m / (1 - product * next),
               bar = (1 - NadamMu(s, t)) * gradient + next * moment;
  e->value -= s.learning_rate * bar / (std::sqrt(v / (1 - std::pow(s.beta_2, t))) + s.epsilon);
}

void Adagrad(const Settings& s, int, double g, Element* e) {
  e->states[0] += g * g;
  e->value -= s.learning_rate * g / (std::sqrt(e->states[0]) + s.epsilon);
}

void Rmsprop(const Settings& s, int, double g, Element* e) {
  double &rms = e->states[0], &v = e->states[1];
  rms = s.rho * rms + (1 - s.rho) * g * g;
  if (s.momentum == 0) {
    e->value -= s.learning_rate * g / (std::sqrt(rms) + s.epsilon);
  } else {
    v = s.momentum * v + s.learning_rate * g / std::sqrt(rms + s.epsilon);
    e->value -= v;
  }
}

void Ftrl(const Settings& s, int, double g, Element* e) {
  double &n = e->states[0], &z = e->states[1];
  const double next = n + g * g, power = -s.learning_rate_power, l1 = s.l1_regularization_strength;
  z += g - (std::pow(next, power) - std::pow(n, power)) / s.learning_rate * e->value;
  n = next;
  const double quadratic = std::pow(n, power) / s.learning_rate +
                           2 * (s.l2_regularization_strength + s.beta / (2 * s.learning_rate));
  e->value = std::abs(z) > l1 ? ((z > 0 ? l1 : -l1) - z) / quadratic : 0;
}

void MovingAverage(const Settings& s, int, double g, Element* e) {
  e->value = s.momentum * e->value + (1 - s.momentum) * g;
}

void Counting(const Settings&, int, double g, Element* e) {
  e->value += g;
  e->states[0] += 2 * g;
}

}  // namespace

const std::vector<ReferenceCase>& ReferenceCases() {
  static const std::vector<ReferenceCase> cases = {
      {"sgd", {.type = "sgd", .learning_rate = 0.01}, Sgd},
      {"sgd with momentum", {.type = "sgd", .learning_rate = 0.05, .momentum = 0.9}, Sgd},
      {"sgd with Nesterov momentum",
       {.type = "sgd", .learning_rate = 0.05, .momentum = 0.9, .nesterov = true},
       Sgd},
      {"sgd, Nesterov without momentum",
       {.type = "sgd", .learning_rate = 0.02, .nesterov = true},
       Sgd},
      {"adam", {.type = "adam", .learning_rate = 0.001}, Adam},
      {"adam with other numbers",
       {.type = "adam", .learning_rate = 0.02, .beta_1 = 0.8, .beta_2 = 0.95, .epsilon = 1e-3},
       Adam},
      {"adamw", {.type = "adamw", .learning_rate = 0.01}, AdamW},
      {"adamw with other numbers",
       {.type = "adamw", .learning_rate = 0.02, .beta_1 = 0.8, .weight_decay = 0.1},
       AdamW},
      {"nadam", {.type = "nadam", .learning_rate = 0.001}, Nadam},
      {"nadam with other numbers",
       {.type = "nadam", .learning_rate = 0.02, .beta_1 = 0.8, .beta_2 = 0.95, .epsilon = 1e-3},
       Nadam},
      {"nadam whose momentum is almost 1",
       {.type = "nadam", .learning_rate = 0.001, .beta_1 = 0.9999},
       Nadam},
      {"adagrad", {.type = "adagrad", .learning_rate = 0.05}, Adagrad},
      {"adagrad with another beginning",
       {.type = "adagrad",
        .learning_rate = 0.05,
        .epsilon = 1e-3,
        .initial_accumulator_value = 1.5},
       Adagrad},
      {"rowwise_adagrad", {.type = "rowwise_adagrad", .learning_rate = 0.05}, nullptr},
      {"rmsprop", {.type = "rmsprop", .learning_rate = 0.01}, Rmsprop},
      {"rmsprop with momentum",
       {.type = "rmsprop", .learning_rate = 0.01, .momentum = 0.8, .rho = 0.95},
       Rmsprop},
      {"ftrl", {.type = "ftrl", .learning_rate = 0.05}, Ftrl},
      {"ftrl with l1, l2 and beta",
       {.type = "ftrl",
        .learning_rate = 0.1,
        .l1_regularization_strength = 0.4,
        .l2_regularization_strength = 0.2,
        .beta = 0.3},
       Ftrl},
      {"ftrl with another power",
       {.type = "ftrl",
        .learning_rate = 0.05,
        .learning_rate_power = -0.7,
        .l1_regularization_strength = 0.1},
       Ftrl},
      {"ftrl with power 0",
       {.type = "ftrl", .learning_rate = 0.05, .learning_rate_power = 0},
       Ftrl},
      {"moving average", {.type = "moving_average", .momentum = 0.9}, MovingAverage},
      {"moving average without memory", {.type = "moving_average", .momentum = 0}, MovingAverage},
      {"counting", {.type = "counting"}, Counting},
  };
  return cases;
}

}  // namespace evergrad::ps_server::optimizer
