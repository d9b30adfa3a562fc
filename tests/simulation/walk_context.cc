#include "tests/simulation/walk_context.h"

namespace evergrad::simulation {
namespace {

// Returns the models of the shards. All walks with the same optimizer share them. Thread-safe.
const std::array<ShardModel, kShards>& ModelsOf(const std::string& optimizer, bool tables) {
  using Models = std::array<ShardModel, kShards>;
  const auto make = [](const char* of, bool slot) {
    return Models{ShardModel(of, 0), ShardModel(of, 1), ShardModel(of, 2, slot)};
  };
  static const Models dense[] = {make("counting", false), make("sgd", false), make("adam", false)};
  static const Models slots[] = {make("counting", true), make("sgd", true), make("adam", true)};
  return (tables ? slots : dense)[optimizer == "adam" ? 2 : optimizer == "sgd" ? 1 : 0];
}

}  // namespace

WalkContext::WalkContext(const WalkOptions& walk_options)
    : options(walk_options),
      models(ModelsOf(walk_options.optimizer, walk_options.tables)),
      random(walk_options.seed) {
  for (auto& shard : touch) {
    for (std::uint8_t& bits : shard) {
      for (std::uint32_t u = 0; u < kUpdates; ++u)
        bits = static_cast<std::uint8_t>(bits | (random.Chance(options.touch) ? 1u << u : 0u));
    }
  }
}

}  // namespace evergrad::simulation
