// Prints a hash for each update rule, which covers the bits of the values after 200 updates.
// CMakeLists.txt compiles this file and the kernels once for each instruction set that a host may
// have. kernel_bits_test.cc compares the outputs of these programs.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "ps_server/optimizer/optimizer.h"
#include "tests/unit/ps_server/optimizer/reference_fixture.h"

namespace evergrad::ps_server::optimizer {
namespace {

constexpr std::size_t kElements = 1031;  // not a multiple of any vector length

// Numbers are made with integer arithmetic, because library functions might give other results with
// another instruction set.
float Number(std::uint64_t i) {
  std::uint64_t z = i * 0x9e3779b97f4a7c15ull + 0x1234567;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  const float unit =
      static_cast<float>(static_cast<std::int32_t>(z) >> 7) * 0x1p-24f;  // in (-1, 1)
  // Gives the numbers many different magnitudes.
  return unit * (1.0f / static_cast<float>(1u << (z >> 60)));
}

std::uint64_t Hash(std::uint64_t hash, const std::vector<float>& values) {
  for (const float v : values) hash = (hash ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ull;
  return hash;
}

std::uint64_t Dense(const Optimizer& rule) {
  std::vector<float> value(kElements), gradient(kElements), states[kStatesMax];
  for (std::size_t i = 0; i < kElements; ++i) value[i] = Number(i);
  for (int k = 0; k < rule.states(); ++k) states[k].assign(kElements, rule.state_initial(k));
  for (std::uint64_t t = 1; t <= 200; ++t) {
    for (std::size_t i = 0; i < kElements; ++i) gradient[i] = Number(t * kElements + i);
    ElementSpan span{kElements, gradient.data(), value.data(), value.data(), {}, {}};
    for (int k = 0; k < rule.states(); ++k)
      span.state_from[k] = span.state_to[k] = states[k].data();
    rule.Apply(rule.Begin(t), span);
  }
  std::uint64_t hash = Hash(0xcbf29ce484222325ull, value);
  for (int k = 0; k < rule.states(); ++k) hash = Hash(hash, states[k]);
  return hash;
}

std::uint64_t Rows(const Optimizer& rule, std::size_t dimension) {
  constexpr std::size_t kRows = 7;
  std::vector<std::vector<float>> rows(kRows);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t i = 0; i < dimension; ++i) rows[r].push_back(Number(r * dimension + i));
    rows[r].resize(dimension + rule.state_per_row(dimension));
    rule.FillRowState(dimension, rows[r].data() + dimension);
  }
  std::vector<float> gradient(kRows * dimension);
  for (std::uint32_t t = 1; t <= 200; ++t) {
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = Number(t * gradient.size() + i);
    std::vector<float*> at;
    std::vector<const float*> gradients;
    for (std::size_t r = 0; r < kRows; ++r)
      at.push_back(rows[r].data()), gradients.push_back(gradient.data() + r * dimension);
    const std::vector<std::uint32_t> counts(kRows, t);
    optimizer::Rows all;
    all.count = kRows, all.dimension = dimension, all.rows = at.data(),
    all.gradients = gradients.data(), all.t = counts.data();
    rule.ApplyRows(all);
  }
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const auto& row : rows) hash = Hash(hash, row);
  return hash;
}

int Main() {
  for (const auto& [name, settings, update] : ReferenceCases()) {
    const auto rule = Optimizer::Create(settings);
    if (!rule.ok()) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), rule.status().ToString().c_str());
      return 1;
    }
    if (!rule->for_tables_only())
      std::printf("%s: %016llx\n", name.c_str(), static_cast<unsigned long long>(Dense(*rule)));
    if (rule->is_moving_average()) continue;
    for (const std::size_t dimension : {1, 8, 16, 21, 64}) {
      std::printf("%s, rows of %zu: %016llx\n", name.c_str(), dimension,
                  static_cast<unsigned long long>(Rows(*rule, dimension)));
    }
  }
  return 0;
}

}  // namespace
}  // namespace evergrad::ps_server::optimizer

int main() { return evergrad::ps_server::optimizer::Main(); }
