#include "common/optimizers/registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace evergrad::optimizers {
namespace {

// ---------------------------------------------------------------- members

constexpr Member kLearningRate{"learning_rate", &Settings::learning_rate};
constexpr Member kMomentum{"momentum", &Settings::momentum};
constexpr Member kNesterov{"nesterov", nullptr, &Settings::nesterov};
constexpr Member kBeta1{"beta_1", &Settings::beta_1};
constexpr Member kBeta2{"beta_2", &Settings::beta_2};
constexpr Member kEpsilon{"epsilon", &Settings::epsilon};
constexpr Member kInitialAccumulator{"initial_accumulator_value",
                                     &Settings::initial_accumulator_value};
constexpr Member kWeightDecay{"weight_decay", &Settings::weight_decay};
constexpr Member kRho{"rho", &Settings::rho};
constexpr Member kPower{"learning_rate_power", &Settings::learning_rate_power};
constexpr Member kL1{"l1_regularization_strength", &Settings::l1_regularization_strength};
constexpr Member kL2{"l2_regularization_strength", &Settings::l2_regularization_strength};
constexpr Member kBeta{"beta", &Settings::beta};

constexpr Member kMembers[] = {
    kLearningRate, kMomentum, kNesterov, kBeta1, kBeta2, kEpsilon, kInitialAccumulator,
    kWeightDecay,  kRho,      kPower,    kL1,    kL2,    kBeta};

// ---------------------------------------------------------------- parameters that types share

// Servers compute in float32. The conversion from double gives infinity from kRoundsToInfinity on,
// and 0 up to kRoundsToZero.
constexpr double kRoundsToInfinity = 0x1.ffffffp127, kRoundsToZero = 0x1p-150;

constexpr Accepted kPositive{{kRoundsToZero, kRoundsToInfinity, true, true}, "a finite number > 0"};
constexpr Accepted kNotNegative{{0, kRoundsToInfinity, false, true}, "a finite number >= 0"};
constexpr Accepted kUpToOne{{0, 1, false, false}, "0 to 1"};
constexpr Accepted kBelowOne{{0, 1, false, true}, "0 to below 1"};

constexpr config::RealBounds kStrength{0, 1e6, false, false};

constexpr Parameter kRate{kLearningRate, {0, 1e6, true, false}, kNotNegative, "learning rate"};
constexpr Parameter kFirstDecay{
    kBeta1, {0, 1, false, true}, kBelowOne, "decay of the first moment"};
constexpr Parameter kSecondDecay{
    kBeta2, {0, 1, false, true}, kBelowOne, "decay of the second moment"};
constexpr Parameter kDivisor{kEpsilon,
                             {0, 1, true, false},
                             kPositive,
                             "number added to the divisor, so that the divisor is never zero"};
constexpr Parameter kAccumulator{kInitialAccumulator, kStrength, kNotNegative,
                                 "initial value of the sum of squares"};

// ---------------------------------------------------------------- descriptors

std::vector<Descriptor> OfJobFiles() {
  return {
      {.defaults = {.type = "adam", .learning_rate = 0.001},
       .parameters = {kRate, kFirstDecay, kSecondDecay, kDivisor},
       .states = {{}, {}},
       .counts_gradients = true},
      {.defaults = {.type = "sgd", .learning_rate = 0.01},
       .parameters = {kRate,
                      {kMomentum,
                       {0, 1, false, false},
                       kUpToOne,
                       "factor of the momentum; 0 means no momentum"},
                      {kNesterov,
                       {},
                       {},
                       "whether to use Nesterov's momentum, which requires a momentum above 0"}},
       .states = {{.only_with = &Settings::momentum}},
       .rules = {{"nesterov", [](const Settings& s) { return s.nesterov && s.momentum == 0; },
                  "`nesterov: true` needs a momentum above 0"}}},
      {.defaults = {.type = "adamw", .learning_rate = 0.001},
       .parameters = {kRate,
                      kFirstDecay,
                      kSecondDecay,
                      kDivisor,
                      {kWeightDecay, kStrength, kNotNegative,
                       "each step subtracts learning_rate * weight_decay * w from each weight w"}},
       .states = {{}, {}},
       .counts_gradients = true},
      {.defaults = {.type = "nadam", .learning_rate = 0.001},
       .parameters = {kRate, kFirstDecay, kSecondDecay, kDivisor},
       .states = {{}, {}},
       .counts_gradients = true},
      {.defaults = {.type = "adagrad", .learning_rate = 0.001},
       .parameters = {kRate, kAccumulator, kDivisor},
       .states = {{.initial = &Settings::initial_accumulator_value}}},
      {.defaults = {.type = "rowwise_adagrad", .learning_rate = 0.001},
       .parameters = {kRate, kAccumulator, kDivisor},
       .states = {{.initial = &Settings::initial_accumulator_value, .one_per_row = true}},
       .use = Use::kTablesOnly},
      {.defaults = {.type = "rmsprop", .learning_rate = 0.001},
       .parameters = {kRate,
                      {kRho, {0, 1, false, true}, kBelowOne, "decay of the mean square"},
                      {kMomentum,
                       {0, 1, false, true},
                       kUpToOne,
                       "factor of the momentum; 0 means no momentum"},
                      kDivisor},
       .states = {{}, {.only_with = &Settings::momentum}}},
      {.defaults = {.type = "ftrl", .learning_rate = 0.001},
       .parameters = {{kLearningRate, kRate.bounds, kPositive, kRate.help},
                      {kPower,
                       {-10, 0, false, false},
                       {{-64, 0, false, false}, "-64 to 0"},
                       "exponent of the decay of the learning rate; 0 means a fixed rate"},
                      kAccumulator,
                      {kL1, kStrength, kNotNegative,
                       "strength of the L1 penalty, which makes small weights zero"},
                      {kL2, kStrength, kNotNegative,
                       "strength of the L2 penalty, which shrinks weights"},
                      {kBeta, kStrength, kNotNegative,
                       "number added to the square root of the accumulator"}},
       .states = {{.initial = &Settings::initial_accumulator_value}, {}}},
  };
}

std::vector<Descriptor> Internal() {
  return {
      // This type is for the statistics of batch normalization. The layer selects the type and sets
      // the momentum.
      {.defaults = {.type = "moving_average", .momentum = 0.99},
       .parameters = {{kMomentum, {0, 1, false, true}, kBelowOne, ""}},
       .use = Use::kDenseOnly,
       .internal = true,
       .is_moving_average = true},
      // This type is for counting jobs only.
      {.defaults = {.type = "counting"}, .states = {{}}, .internal = true},
  };
}

std::string NamesOfAll() {
  std::vector<std::string> names;
  for (const Descriptor& descriptor : All()) names.push_back(descriptor.defaults.type);
  return config::JoinWithOr(names);
}

}  // namespace

absl::Span<const Member> Members() { return kMembers; }

const std::vector<Descriptor>& All() {
  static const std::vector<Descriptor> all = [] {
    std::vector<Descriptor> list = OfJobFiles();
    for (Descriptor& descriptor : Internal()) list.push_back(std::move(descriptor));
    return list;
  }();
  return all;
}

const Descriptor* Find(absl::string_view type) {
  for (const Descriptor& descriptor : All())
    if (descriptor.defaults.type == type) return &descriptor;
  return nullptr;
}

bool IsForTablesOnly(absl::string_view type) {
  const Descriptor* const descriptor = Find(type);
  return descriptor != nullptr && descriptor->use == Use::kTablesOnly;
}

absl::Status Check(const Settings& settings) {
  const Descriptor* const descriptor = Find(settings.type);
  if (descriptor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown optimizer, expected ", NamesOfAll(),
                                                   ": type=", settings.type.substr(0, 64)));
  }
  for (const Parameter& parameter : descriptor->parameters) {
    if (parameter.member.number == nullptr) continue;
    const double value = settings.*parameter.member.number;
    if (!parameter.accepted.bounds.Holds(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer setting out of range: type=", settings.type, " ",
                       parameter.member.name, "=", value, " want=", parameter.accepted.want));
    }
  }
  return absl::OkStatus();
}

std::vector<State> StatesOf(const Settings& settings) {
  std::vector<State> states;
  if (const Descriptor* const descriptor = Find(settings.type)) {
    for (const State& state : descriptor->states)
      if (state.only_with == nullptr || settings.*state.only_with != 0) states.push_back(state);
  }
  return states;
}

std::uint32_t StatesPerValue(const Settings& settings) {
  const std::vector<State> states = StatesOf(settings);
  return static_cast<std::uint32_t>(std::count_if(
      states.begin(), states.end(), [](const State& state) { return !state.one_per_row; }));
}

std::uint64_t RowFloats(const Settings& settings, std::uint64_t dimension) {
  std::uint64_t floats = dimension;
  for (const State& state : StatesOf(settings)) floats += state.one_per_row ? 1 : dimension;
  return floats;
}

std::uint64_t CounterBytesPerRow(absl::string_view type) {
  const Descriptor* const descriptor = Find(type);
  return descriptor != nullptr && descriptor->counts_gradients ? kCounterBytesPerRow : 0;
}

const std::vector<std::string>& TypesNotBuilt() {
  static const std::vector<std::string> types = {"adadelta", "adamax", "lamb", "lars", "lion"};
  return types;
}

const std::vector<std::string>& KeysNotBuilt() {
  static const std::vector<std::string> keys = {
      "clipnorm",        "clipvalue",
      "global_clipnorm", "weight_decay",
      "decay",           "amsgrad",
      "schedule",        "use_ema",
      "centered",        "l2_shrinkage_regularization_strength"};
  return keys;
}

}  // namespace evergrad::optimizers
