// Each optimizer against a plain float64 implementation of the formulas in ps_server/optimizer/README.md, over 100 updates,
// and bit-equal however the elements are cut and whether it writes in place or not.
#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "ps_server/optimizer/optimizer.h"

namespace evergrad::ps_server {
namespace {

using optimizer::Optimizer;
using optimizer::Run;

constexpr std::size_t kElements = 97;  // odd, so that every kernel has a remainder
constexpr int kUpdates = 100;

struct Named {
  const char* name;
  OptimizerSettings settings;
};

std::vector<Named> Cases() {
  std::vector<Named> cases;
  cases.push_back({"sgd", {.type = "sgd", .learning_rate = 0.01}});
  cases.push_back({"sgd with momentum", {.type = "sgd", .learning_rate = 0.05, .momentum = 0.9}});
  cases.push_back({"sgd with Nesterov momentum", {.type = "sgd", .learning_rate = 0.05, .momentum = 0.9, .nesterov = true}});
  cases.push_back({"sgd, Nesterov without momentum", {.type = "sgd", .learning_rate = 0.02, .nesterov = true}});
  cases.push_back({"adam", {.type = "adam", .learning_rate = 0.001}});
  cases.push_back({"adam with other numbers", {.type = "adam", .learning_rate = 0.02, .beta_1 = 0.8, .beta_2 = 0.95, .epsilon = 1e-3}});
  cases.push_back({"counting", {.type = "counting"}});
  return cases;
}

std::vector<std::vector<float>> Gradients() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> gradients(kUpdates, std::vector<float>(kElements));
  for (auto& gradient : gradients) {
    for (float& g : gradient) g = normal(random);
  }
  return gradients;
}

struct State {
  std::vector<float> value = std::vector<float>(kElements);
  std::vector<float> slot[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
};

State Initial() {
  State state;
  for (std::size_t i = 0; i < kElements; ++i) state.value[i] = static_cast<float>(i) * 0.01f - 0.3f;
  return state;
}

// All updates, in runs of `cut` elements; out of place when asked.
State Train(const OptimizerSettings& settings, std::size_t cut, bool in_place) {
  const auto made = Optimizer::Create(settings);
  REQUIRE(made.ok());
  State state = Initial();
  std::uint64_t t = 0;
  for (const auto& gradient : Gradients()) {
    const auto step = made->Begin(++t);
    State next = state;
    State& to = in_place ? state : next;
    for (std::size_t at = 0; at < kElements; at += cut) {
      Run run{std::min(cut, kElements - at), gradient.data() + at, state.value.data() + at, to.value.data() + at, {}, {}};
      for (int k = 0; k < made->slots(); ++k) {
        run.slot_from[k] = state.slot[k].data() + at;
        run.slot_to[k] = to.slot[k].data() + at;
      }
      made->Apply(step, run);
    }
    if (!in_place) state = next;
  }
  return state;
}

struct Reference {
  std::vector<double> value, slot[2];
};

Reference TrainInFloat64(const OptimizerSettings& s) {
  const State start = Initial();
  Reference r{{start.value.begin(), start.value.end()}, {std::vector<double>(kElements), std::vector<double>(kElements)}};
  int t = 0;
  for (const auto& gradient : Gradients()) {
    ++t;
    for (std::size_t i = 0; i < kElements; ++i) {
      const double g = gradient[i];
      if (s.type == "counting") {
        r.value[i] += g;
        r.slot[0][i] += 2 * g;
      } else if (s.type == "sgd") {
        const double velocity = s.momentum * r.slot[0][i] - s.learning_rate * g;
        r.slot[0][i] = velocity;
        r.value[i] += s.nesterov ? s.momentum * velocity - s.learning_rate * g : velocity;
      } else {
        double& m = r.slot[0][i];
        double& v = r.slot[1][i];
        m = s.beta_1 * m + (1 - s.beta_1) * g;
        v = s.beta_2 * v + (1 - s.beta_2) * g * g;
        const double rate = s.learning_rate * std::sqrt(1 - std::pow(s.beta_2, t)) / (1 - std::pow(s.beta_1, t));
        r.value[i] -= rate * m / (std::sqrt(v) + s.epsilon);
      }
    }
  }
  return r;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

TEST_CASE("every optimizer follows its float64 reference over 100 updates") {
  for (const Named& c : Cases()) {
    INFO(c.name);
    const State got = Train(c.settings, kElements, true);
    const Reference want = TrainInFloat64(c.settings);
    const int slots = Optimizer::Create(c.settings)->slots();
    for (std::size_t i = 0; i < kElements; ++i) {
      CHECK(got.value[i] == Approx(want.value[i]).epsilon(1e-5).margin(2e-5));
      for (int k = 0; k < slots; ++k) CHECK(got.slot[k][i] == Approx(want.slot[k][i]).epsilon(1e-5).margin(2e-5));
    }
  }
}

TEST_CASE("every optimizer gives the same bits however the elements are cut, in place or out of place") {
  for (const Named& c : Cases()) {
    INFO(c.name);
    const State whole = Train(c.settings, kElements, true);
    for (const std::size_t cut : {1u, 3u, 8u, 50u, 96u}) {
      for (const bool in_place : {true, false}) {
        const State other = Train(c.settings, cut, in_place);
        CHECK(SameBits(whole.value, other.value));
        CHECK(SameBits(whole.slot[0], other.slot[0]));
        CHECK(SameBits(whole.slot[1], other.slot[1]));
      }
    }
  }
}

TEST_CASE("counting counts exactly in values and twice in its slot") {
  const auto made = Optimizer::Create({.type = "counting"});
  REQUIRE(made.ok());
  std::vector<float> value(3), slot(3);
  const std::vector<float> ones(3, 1.0f);
  for (std::uint64_t t = 1; t <= 1000; ++t) {
    made->Apply(made->Begin(t), {3, ones.data(), value.data(), value.data(), {slot.data()}, {slot.data()}});
  }
  CHECK(value == std::vector<float>(3, 1000.0f));
  CHECK(slot == std::vector<float>(3, 2000.0f));
}

TEST_CASE("numbers out of range are refused and named") {
  const auto message = [](const OptimizerSettings& s) { return std::string(Optimizer::Create(s).status().message()); };
  CHECK(message({.type = "lamb"}) == "unknown optimizer, expected sgd, adam, adamw, adagrad, rowwise_adagrad, rmsprop, ftrl or counting: type=lamb");
  CHECK(message({.type = "sgd", .learning_rate = -1}).find("learning_rate=-1") != std::string::npos);
  CHECK(message({.type = "sgd", .learning_rate = std::nan("")}).find("learning_rate=nan") != std::string::npos);
  CHECK(message({.type = "sgd", .momentum = 1.5}).find("momentum=1.5") != std::string::npos);
  CHECK(message({.type = "adam", .beta_1 = 1}).find("beta_1=1") != std::string::npos);
  CHECK(message({.type = "adam", .beta_2 = -0.1}).find("beta_2=-0.1") != std::string::npos);
  CHECK(message({.type = "adam", .epsilon = 0}).find("epsilon=0") != std::string::npos);
  CHECK(Optimizer::Create({.type = "sgd", .learning_rate = 0}).ok());
}

}  // namespace
}  // namespace evergrad::ps_server
