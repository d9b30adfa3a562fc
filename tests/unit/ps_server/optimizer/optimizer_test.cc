// Compares each optimizer over 100 updates with a plain float64 implementation of the formulas in
// ps_server/optimizer/README.md. In addition, the bits of the results must not depend on the
// division of the elements into runs, nor on whether the optimizer writes in place.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <variant>
#include <vector>

#include "common/optimizers/registry.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/optimizer/portable_pow.h"
#include "ps_server/optimizer/rules.h"
#include "tests/unit/ps_server/optimizer/reference_fixture.h"

namespace evergrad::ps_server {
namespace {

using optimizer::Element;
using optimizer::ElementSpan;
using optimizer::Optimizer;
using optimizer::ReferenceCase;
using optimizer::ReferenceCases;

constexpr std::size_t kElements = 97;  // odd, so that every kernel has a remainder
constexpr int kUpdates = 100;

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
  std::vector<float> states[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
};

State Initial(const optimizers::Settings& settings) {
  State state;
  const auto made = Optimizer::Create(settings);
  for (int k = 0; k < made->states(); ++k)
    state.states[k].assign(kElements, made->state_initial(k));
  for (std::size_t i = 0; i < kElements; ++i) state.value[i] = static_cast<float>(i) * 0.01f - 0.3f;
  return state;
}

// Makes all updates. Each update is applied to runs of `cut` elements, either in place or to other
// memory.
State Train(const optimizers::Settings& settings, std::size_t cut, bool in_place) {
  const auto made = Optimizer::Create(settings);
  REQUIRE(made.ok());
  State state = Initial(settings);
  std::uint64_t t = 0;
  for (const auto& gradient : Gradients()) {
    const auto step = made->Begin(++t);
    State next = state;
    State& to = in_place ? state : next;
    for (std::size_t at = 0; at < kElements; at += cut) {
      ElementSpan span{std::min(cut, kElements - at),
                       gradient.data() + at,
                       state.value.data() + at,
                       to.value.data() + at,
                       {},
                       {}};
      for (int k = 0; k < made->states(); ++k) {
        span.state_from[k] = state.states[k].data() + at;
        span.state_to[k] = to.states[k].data() + at;
      }
      made->Apply(step, span);
    }
    if (!in_place) state = next;
  }
  return state;
}

// Returns the elements after the reference implementation has made all updates.
std::vector<Element> TrainInFloat64(const ReferenceCase& c) {
  const State start = Initial(c.settings);
  std::vector<Element> elements(kElements);
  for (std::size_t i = 0; i < kElements; ++i)
    elements[i] = {start.value[i], {start.states[0][i], start.states[1][i]}};
  int t = 0;
  for (const auto& gradient : Gradients()) {
    ++t;
    for (std::size_t i = 0; i < kElements; ++i) c.update(c.settings, t, gradient[i], &elements[i]);
  }
  return elements;
}

// Returns the cases whose rule works on single elements. Dense shards can use these rules.
std::vector<ReferenceCase> ElementCases() {
  std::vector<ReferenceCase> cases = ReferenceCases();
  std::erase_if(cases, [](const ReferenceCase& c) { return c.update == nullptr; });
  return cases;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

TEST_CASE("every registered optimizer has a reference case for each of its formulas") {
  for (const optimizers::Descriptor& descriptor : optimizers::All()) {
    INFO(descriptor.defaults.type);
    // The indices of the rules that the cases of this type use.
    std::set<std::size_t> rules;
    for (const ReferenceCase& c : ReferenceCases()) {
      if (c.settings.type != descriptor.defaults.type) continue;
      rules.insert(optimizer::RuleOf(c.settings).index());
      CHECK((c.update == nullptr) == (descriptor.use == optimizers::Use::kTablesOnly));
    }
    CHECK(rules.size() >= 1);
  }
  std::set<std::size_t> all;
  for (const ReferenceCase& c : ReferenceCases()) all.insert(optimizer::RuleOf(c.settings).index());
  CHECK(all.size() == std::variant_size_v<optimizer::Rule>);
}

TEST_CASE("the rule of every optimizer has the state that its descriptor lists") {
  for (const ReferenceCase& c : ReferenceCases()) {
    INFO(c.name);
    const auto made = Optimizer::Create(c.settings);
    REQUIRE(made.ok());
    const optimizers::Descriptor& descriptor = *optimizers::Find(c.settings.type);
    CHECK(static_cast<std::uint32_t>(made->states()) == optimizers::StatesPerValue(c.settings));
    CHECK(made->for_tables_only() == (descriptor.use == optimizers::Use::kTablesOnly));
    CHECK(made->is_moving_average() == descriptor.is_moving_average);
    CHECK(made->counts_per_row() == descriptor.counts_gradients);
    for (const std::size_t dimension : {1u, 8u, 21u}) {
      std::vector<float> numbers(made->state_per_row(dimension), -1);
      CHECK(dimension + numbers.size() == optimizers::RowFloats(c.settings, dimension));
      made->FillRowState(dimension, numbers.data());
      std::vector<float> want;
      for (const optimizers::State& state : optimizers::StatesOf(c.settings))
        want.insert(
            want.end(), state.one_per_row ? 1 : dimension,
            state.initial == nullptr ? 0.0f : static_cast<float>(c.settings.*state.initial));
      CHECK(numbers == want);
    }
  }
}

TEST_CASE("every optimizer follows its float64 reference over 100 updates") {
  for (const ReferenceCase& c : ElementCases()) {
    INFO(c.name);
    const State got = Train(c.settings, kElements, true);
    const std::vector<Element> want = TrainInFloat64(c);
    const int states = Optimizer::Create(c.settings)->states();
    for (std::size_t i = 0; i < kElements; ++i) {
      CHECK(got.value[i] == Approx(want[i].value).epsilon(2e-5).margin(3e-5));
      for (int k = 0; k < states; ++k)
        CHECK(got.states[k][i] == Approx(want[i].states[k]).epsilon(2e-5).margin(3e-5));
    }
  }
}

TEST_CASE(
    "every optimizer gives the same bits for any division of the elements, in place or out of "
    "place") {
  for (const ReferenceCase& c : ElementCases()) {
    INFO(c.name);
    const State whole = Train(c.settings, kElements, true);
    for (const std::size_t cut : {1u, 3u, 8u, 50u, 96u}) {
      for (const bool in_place : {true, false}) {
        const State other = Train(c.settings, cut, in_place);
        CHECK(SameBits(whole.value, other.value));
        CHECK(SameBits(whole.states[0], other.states[0]));
        CHECK(SameBits(whole.states[1], other.states[1]));
      }
    }
  }
}

// Returns the rows of a table after training. Each row has its values and then its states.
std::vector<std::vector<float>> TrainRows(const optimizers::Settings& settings,
                                          std::size_t dimension) {
  const auto made = Optimizer::Create(settings);
  REQUIRE(made.ok());
  const State start = Initial(settings);
  std::vector<std::vector<float>> rows;
  for (std::size_t at = 0; at + dimension <= kElements; at += dimension) {
    auto& row = rows.emplace_back(dimension + made->state_per_row(dimension));
    std::copy_n(start.value.begin() + static_cast<std::ptrdiff_t>(at), dimension, row.begin());
    made->FillRowState(dimension, row.data() + dimension);
  }
  std::uint32_t t = 0;
  for (const auto& gradient : Gradients()) {
    ++t;
    std::vector<float*> at;
    std::vector<const float*> gradients;
    for (std::size_t i = 0; i < rows.size(); ++i)
      at.push_back(rows[i].data()), gradients.push_back(gradient.data() + i * dimension);
    const std::vector<std::uint32_t> counts(rows.size(), t);
    made->ApplyRows({rows.size(), dimension, at.data(), gradients.data(), counts.data()});
  }
  return rows;
}

TEST_CASE("rows of every dimension get the bits of a dense shard's elements") {
  for (const ReferenceCase& c : ElementCases()) {
    INFO(c.name);
    const State whole = Train(c.settings, kElements, true);
    for (const std::size_t dimension : {1u, 3u, 8u, 16u, 32u, 64u, 97u}) {
      const auto rows = TrainRows(c.settings, dimension);
      const auto states = static_cast<std::size_t>(Optimizer::Create(c.settings)->states());
      bool same = true;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        REQUIRE(rows[i].size() == dimension * (1 + states));
        for (std::size_t k = 0; k <= states; ++k) {
          const std::vector<float>& of = k == 0 ? whole.value : whole.states[k - 1];
          const auto begin = of.begin() + static_cast<std::ptrdiff_t>(i * dimension);
          const auto from = rows[i].begin() + static_cast<std::ptrdiff_t>(k * dimension);
          same = same && SameBits({begin, begin + static_cast<std::ptrdiff_t>(dimension)},
                                  {from, from + static_cast<std::ptrdiff_t>(dimension)});
        }
      }
      CHECK(same);
    }
  }
}

TEST_CASE("row-wise Adagrad has one accumulator, the sum of the rows' mean squares") {
  const optimizers::Settings settings{.type = "rowwise_adagrad", .learning_rate = 0.05};
  for (const std::size_t dimension : {1u, 5u, 8u, 16u, 21u, 97u}) {
    const auto rows = TrainRows(settings, dimension);
    const State start = Initial({.type = "sgd"});
    for (std::size_t r = 0; r < rows.size(); ++r) {
      REQUIRE(rows[r].size() == dimension + 1);
      std::vector<double> want(
          start.value.begin() + static_cast<std::ptrdiff_t>(r * dimension),
          start.value.begin() + static_cast<std::ptrdiff_t>((r + 1) * dimension));
      double accumulator = settings.initial_accumulator_value;
      for (const auto& gradient : Gradients()) {
        double squares = 0;
        for (std::size_t j = 0; j < dimension; ++j)
          squares += static_cast<double>(gradient[r * dimension + j]) * gradient[r * dimension + j];
        accumulator += squares / static_cast<double>(dimension);
        for (std::size_t j = 0; j < dimension; ++j)
          want[j] -= settings.learning_rate * gradient[r * dimension + j] /
                     (std::sqrt(accumulator) + settings.epsilon);
      }
      CHECK(rows[r][dimension] == Approx(accumulator).epsilon(1e-5));
      for (std::size_t j = 0; j < dimension; ++j)
        CHECK(rows[r][j] == Approx(want[j]).epsilon(1e-5).margin(2e-5));
    }
  }
}

TEST_CASE("the step of a row's Adam is the row's own count") {
  const auto made = Optimizer::Create({.type = "adam", .learning_rate = 0.1});
  REQUIRE(made.ok());
  CHECK(made->counts_per_row());
  std::vector<float> first(3), late(3);  // a row of dimension 1 has: value, m, v
  const float g = 2;
  float* rows[] = {first.data(), late.data()};
  const float* gradients[] = {&g, &g};
  const std::uint32_t t[] = {1, 1000};
  made->ApplyRows({2, 1, rows, gradients, t});
  CHECK(first[0] == Approx(-0.1).epsilon(1e-5));
  CHECK(late[0] ==
        Approx(-0.1 * std::sqrt(1 - std::pow(0.999, 1000)) * 0.2 / std::sqrt(0.004)).epsilon(1e-5));
}

// The expected numbers were computed with nadam.py of Keras 2.9 in float64. In that file the
// momentum cache is a variable.
TEST_CASE("Nadam's updates equal those of Keras, and each row uses its own count") {
  const auto made = Optimizer::Create({.type = "nadam", .learning_rate = 0.01});
  REQUIRE(made.ok());
  struct {
    float gradient;
    double value, m, v;
  } const golden[] = {{0.5f, 0.989435484329, 0.05, 0.00025},
                      {-0.25f, 0.993546580582, 0.02, 0.00031225},
                      {1.0f, 0.983565560931, 0.118, 0.00131193775},
                      {0.125f, 0.981376871928, 0.1187, 0.00132625081225}};
  std::vector<float> row = {1, 0, 0};
  float value = 1, states[2] = {0, 0};
  float* rows[] = {row.data()};
  std::uint32_t t = 0;
  for (const auto& update : golden) {
    ++t;
    const float* gradients[] = {&update.gradient};
    made->ApplyRows({1, 1, rows, gradients, &t});
    made->Apply(
        made->Begin(t),
        {1, &update.gradient, &value, &value, {&states[0], &states[1]}, {&states[0], &states[1]}});
    CHECK(row[0] == Approx(update.value).epsilon(1e-6));
    CHECK(row[1] == Approx(update.m).epsilon(1e-6));
    CHECK(row[2] == Approx(update.v).epsilon(1e-6));
    CHECK(row == std::vector<float>{value, states[0], states[1]});
  }
  // The numbers are those of an example of Keras: the loss is w^2 / 2 at w = 10, and the learning
  // rate is 0.2.
  const auto keras = Optimizer::Create({.type = "nadam", .learning_rate = 0.2});
  std::vector<float> first = {10, 0, 0}, late = {10, 0, 0};
  float* both[] = {first.data(), late.data()};
  const float ten = 10;
  const float* gradients[] = {&ten, &ten};
  const std::uint32_t counts[] = {1, 100000};
  keras->ApplyRows({2, 1, both, gradients, counts});
  CHECK(std::round(first[0] * 10) == 98);
  // At t = 100,000 the schedule has ended: mu is beta_1 and every correction is 1.
  CHECK(late[0] == Approx(10 - 0.2 * (0.1 * 10 + 0.9 * 1) / std::sqrt(0.1)).epsilon(1e-5));
}

TEST_CASE("Nadam omits the product of its schedule only where that changes no bit") {
  const auto made = Optimizer::Create({.type = "nadam", .learning_rate = 0.01});
  REQUIRE(made.ok());
  for (const std::uint64_t t : {1ull, 2ull, 63ull, 64ull, 65ull, 1000ull, 1ull << 40}) {
    const auto step = std::get<optimizer::Nadam>(made->Begin(t).rule);
    double product = 1;
    for (std::uint64_t i = 1; i <= std::min<std::uint64_t>(t, 2000); ++i)
      product *= 0.9 * (1 - 0.5 * std::pow(0.96, 0.004 * static_cast<double>(i)));
    const double mu = 0.9 * (1 - 0.5 * std::pow(0.96, 0.004 * static_cast<double>(t)));
    CHECK(step.gradient_rate == Approx(0.01 * (1 - mu) / (1 - product)).epsilon(1e-6));
    if (t >= 63) CHECK(1 - product == 1);
  }
}

TEST_CASE("FTRL stays zero without an accumulated value and a gradient") {
  const auto made =
      Optimizer::Create({.type = "ftrl", .learning_rate = 0.1, .initial_accumulator_value = 0});
  std::vector<float> row = {0, 0, 0};
  float* rows[] = {row.data()};
  const float zero = 0;
  const float* gradients[] = {&zero};
  made->ApplyRows({1, 1, rows, gradients, nullptr});
  CHECK(row == std::vector<float>{0, 0, 0});
}

TEST_CASE("later rows are only prefetched, whether they are more or fewer than the updated ones") {
  for (const char* type : {"sgd", "adagrad", "rowwise_adagrad", "adam"}) {
    const auto made = Optimizer::Create({.type = type, .learning_rate = 0.1});
    REQUIRE(made.ok());
    const std::size_t floats = 16 + made->state_per_row(16);
    const std::vector<float> before(floats, 1.0f), gradient(16, 0.5f);
    std::vector<float> alone = before;
    float* const lonely[] = {alone.data()};
    const float* gradients[] = {gradient.data(), gradient.data()};
    const std::uint32_t t[] = {1, 1};
    made->ApplyRows({1, 16, lonely, gradients, t});
    CHECK(alone != before);
    for (const std::size_t count : {1, 2}) {
      std::vector<float> first = before, second = before, later = before;
      float *const rows[] = {first.data(), second.data()}, *const next[] = {later.data(),
                                                                            later.data(),
                                                                            later.data()};
      made->ApplyRows(
          {count, 16, rows, gradients, t, count == 1 ? std::size_t{3} : std::size_t{1}, next});
      CHECK(first == alone);
      CHECK((second == alone) == (count == 2));
      CHECK(later == before);
    }
  }
}

TEST_CASE("the portable power is within one unit in the last place of the exact power") {
  std::mt19937 random(5);
  int worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const float x = std::exp2(std::uniform_real_distribution<float>(-60, 60)(random));
    const double y = i % 3 == 0 ? 0.7 : std::uniform_real_distribution<double>(0, 2)(random);
    const double exact = std::pow(static_cast<double>(x), y);
    const auto got = std::bit_cast<std::int32_t>(optimizer::PortablePow(x, y)),
               want = std::bit_cast<std::int32_t>(static_cast<float>(exact));
    worst = std::max(worst, std::abs(got - want));
  }
  CHECK(worst <= 1);
  CHECK(optimizer::PortablePow(0, 0.5) == 0);
  CHECK(optimizer::PortablePow(0, 0) == 1);
  CHECK(optimizer::PortablePow(1, 0.3) == 1);
  // The base is a subnormal number.
  CHECK(optimizer::PortablePow(1e-42f, 0.5) == Approx(std::sqrt(1e-42)).epsilon(1e-2));
  CHECK(std::isinf(optimizer::PortablePow(3e38f, 40)));
}

TEST_CASE("counting is exact in the values, and doubled in the state") {
  const auto made = Optimizer::Create({.type = "counting"});
  REQUIRE(made.ok());
  std::vector<float> value(3), state(3);
  const std::vector<float> ones(3, 1.0f);
  for (std::uint64_t t = 1; t <= 1000; ++t) {
    made->Apply(made->Begin(t),
                {3, ones.data(), value.data(), value.data(), {state.data()}, {state.data()}});
  }
  CHECK(value == std::vector<float>(3, 1000.0f));
  CHECK(state == std::vector<float>(3, 2000.0f));
}

TEST_CASE("settings out of range are refused and named") {
  const auto message = [](const optimizers::Settings& s) {
    return std::string(Optimizer::Create(s).status().message());
  };
  CHECK(message({.type = "lamb"}) == optimizers::Check({.type = "lamb"}).message());
  CHECK(message({.type = "sgd", .learning_rate = -1}).find("learning_rate=-1") !=
        std::string::npos);
  CHECK(message({.type = "sgd", .learning_rate = std::nan("")}).find("learning_rate=nan") !=
        std::string::npos);
  CHECK(message({.type = "sgd", .momentum = 1.5}).find("momentum=1.5") != std::string::npos);
  CHECK(message({.type = "adam", .beta_1 = 1}).find("beta_1=1") != std::string::npos);
  CHECK(message({.type = "adam", .beta_2 = -0.1}).find("beta_2=-0.1") != std::string::npos);
  CHECK(message({.type = "adam", .epsilon = 0}).find("epsilon=0") != std::string::npos);
  CHECK(Optimizer::Create({.type = "sgd", .learning_rate = 0}).ok());
  CHECK(message({.type = "adagrad", .initial_accumulator_value = -1})
            .find("initial_accumulator_value=-1") != std::string::npos);
  CHECK(message({.type = "rowwise_adagrad", .epsilon = -1}).find("epsilon=-1") !=
        std::string::npos);
  CHECK(message({.type = "adamw", .weight_decay = -0.1}).find("weight_decay=-0.1") !=
        std::string::npos);
  CHECK(message({.type = "rmsprop", .rho = 1}).find("rho=1") != std::string::npos);
  CHECK(message({.type = "moving_average", .momentum = 1}).find("momentum=1 want=0 to below 1") !=
        std::string::npos);
  CHECK(message({.type = "ftrl", .learning_rate = 0}).find("learning_rate=0") != std::string::npos);
  CHECK(message({.type = "ftrl", .learning_rate_power = 0.5}).find("learning_rate_power=0.5") !=
        std::string::npos);
  CHECK(message({.type = "ftrl", .l1_regularization_strength = -1})
            .find("l1_regularization_strength=-1") != std::string::npos);
  CHECK(message({.type = "ftrl", .l2_regularization_strength = -1})
            .find("l2_regularization_strength=-1") != std::string::npos);
  CHECK(message({.type = "ftrl", .beta = -1}).find("beta=-1") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::ps_server
