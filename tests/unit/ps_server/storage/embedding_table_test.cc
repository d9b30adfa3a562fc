// Compares a table with a simple second implementation, which is a std::map in float64. Both are
// pushed, read, evicted, cut and restored in the same way. Rows, stamps and counts must be equal,
// and values must be close. Further tests cover properties that the map does not have: refusals
// that change nothing, the memory of a row, and slices that are taken in pieces.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/job_spec.h"
#include "common/optimizers/registry.h"
#include "common/random/philox.h"
#include "common/sharding/row_digest.h"
#include "common/sharding/slots.h"
#include "ps_server/storage/embedding_table.h"

namespace evergrad::ps_server::storage {
namespace {

using Ids = std::vector<std::int64_t>;

TableSettings Settings(std::uint32_t dimension = 4, const std::string& optimizer = "adagrad") {
  TableSettings s;
  s.name = "user/embedding";
  s.dimension = dimension;
  s.initializer = {.type = "glorot_uniform", .fan_in = 1, .fan_out = dimension, .seed = 7};
  s.optimizer = {.type = optimizer, .learning_rate = 0.1};
  return s;
}

std::unique_ptr<EmbeddingTable> Make(const TableSettings& s,
                                     std::shared_ptr<MemoryBudget> budget = nullptr) {
  auto table = EmbeddingTable::Create(s, std::move(budget));
  REQUIRE(table.ok());
  return *std::move(table);
}

std::vector<float> Read(const EmbeddingTable& table, const Ids& ids) {
  std::vector<float> values(ids.size() * table.dimension());
  table.Read(ids, values.data());
  return values;
}

absl::StatusOr<PushOutcome> Push(EmbeddingTable* table, const Ids& ids, std::uint64_t step,
                                 const std::vector<float>& gradient,
                                 std::uint64_t bytes_max = ~0ull) {
  auto outcome = table->Prepare(ids, step);
  if (!outcome.ok()) return outcome;
  while (table->applying()) table->Apply(gradient.data(), bytes_max);
  return outcome;
}

absl::StatusOr<PushOutcome> PushOnes(EmbeddingTable* table, const Ids& ids,
                                     std::uint64_t step = 0) {
  return Push(table, ids, step, std::vector<float>(ids.size() * table->dimension(), 1.0f));
}

Ids Rising(std::int64_t begin, std::int64_t end) {
  Ids ids;
  for (std::int64_t id = begin; id < end; ++id) ids.push_back(id * 1000003 - 17);
  return ids;
}

// ---------------------------------------------------------------- the simple second implementation

struct ModelRow {
  std::vector<double> values, numbers;
  std::uint32_t stamp = 0;
  std::uint64_t t = 0;
};
struct ModelWaiting {
  std::uint32_t stamp = 0, count = 0;
};

class Model {
 public:
  explicit Model(const TableSettings& settings)
      : s(settings), key(random::KeyOf(s.initializer.seed, s.name)) {}

  std::uint64_t Mixed(std::int64_t id) const {
    return sharding::Mix64(static_cast<std::uint64_t>(id) ^ key);
  }
  std::vector<double> Initial(std::int64_t id) const {
    std::vector<double> row(s.dimension);
    const auto limit = static_cast<float>(std::sqrt(6.0 / (1.0 + s.dimension)));
    for (std::uint32_t j = 0; j < s.dimension; ++j)
      row[j] = (2.0f * random::Uniform(Mixed(id), j) - 1.0f) * limit;
    return row;
  }
  std::vector<double> Read(std::int64_t id) const {
    const auto it = rows.find(id);
    return it != rows.end()    ? it->second.values
           : s.admit_after > 1 ? std::vector<double>(s.dimension, s.default_row)
                               : Initial(id);
  }
  bool Stamped() const { return s.ttl_steps != 0 || s.evict_lru; }
  std::uint64_t Bytes(std::size_t r, std::size_t w) const {
    const std::size_t numbers = s.optimizer.type == "adam"  ? 2 * s.dimension + 1
                                : s.optimizer.type == "sgd" ? 0
                                                            : s.dimension;
    return r * ((s.dimension + numbers) * 4 + 24) + w * 24;
  }

  // Returns nullopt if the push exceeds the limit of the table. The push then changes nothing.
  std::optional<PushOutcome> Push(const Ids& ids, std::uint32_t global_step,
                                  const std::vector<float>& gradient) {
    PushOutcome outcome;
    std::map<std::int64_t, std::vector<double>> sums;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto [it, first] = sums.try_emplace(ids[i], std::vector<double>(s.dimension));
      outcome.duplicates += !first;
      for (std::uint32_t j = 0; j < s.dimension; ++j)
        it->second[j] += gradient[i * s.dimension + j];
    }
    const std::uint32_t now = Stamped() && !ids.empty() ? std::max(step, global_step) : step,
                        stamp = Stamped() ? global_step : 0;
    std::set<std::int64_t> fresh, old, count_only;
    std::size_t new_waiting = 0, from_waiting = 0;
    for (const auto& [id, sum] : sums) {
      if (rows.contains(id)) {
        old.insert(id);
      } else if (const auto w = waiting.find(id);
                 (w != waiting.end() ? w->second.count : 0) + 1 >= std::max(1u, s.admit_after)) {
        fresh.insert(id), from_waiting += w != waiting.end();
      } else {
        count_only.insert(id), new_waiting += w == waiting.end();
      }
    }
    std::set<std::int64_t> drop_rows, drop_waiting;
    if (s.ttl_steps != 0 && now > step) {
      const std::uint64_t period = std::max<std::uint64_t>(1, s.ttl_steps / 8);
      std::set<std::uint64_t> parts;
      for (std::uint64_t tick = step * 64ull / period + 1; tick <= now * 64ull / period; ++tick)
        parts.insert(tick % 64);
      const auto expired = [&](std::int64_t id, std::uint32_t last) {
        return !sums.contains(id) && last + s.ttl_steps < now &&
               parts.contains((Mixed(id) & 0xffffffff) >> 26);
      };
      for (const auto& [id, row] : rows) {
        if (expired(id, row.stamp)) drop_rows.insert(id);
      }
      for (const auto& [id, w] : waiting) {
        if (expired(id, w.stamp)) drop_waiting.insert(id);
      }
    }
    outcome.evicted_ttl = drop_rows.size();
    const auto oldest = [&](const auto& all, std::set<std::int64_t>* dropped) {
      std::vector<std::pair<std::uint32_t, std::int64_t>> order;
      for (const auto& [id, what] : all) {
        if (!sums.contains(id) && !dropped->contains(id)) order.emplace_back(what.stamp, id);
      }
      std::sort(order.begin(), order.end());
      return order;
    };
    const std::size_t rows_after = rows.size() - drop_rows.size() + fresh.size();
    const std::size_t waiting_after =
        waiting.size() - drop_waiting.size() - from_waiting + new_waiting;
    const std::uint64_t bytes = Bytes(rows_after, waiting_after);
    if (s.bytes_max != 0 && bytes > s.bytes_max && fresh.size() + new_waiting > 0) {
      const std::uint64_t over = bytes - s.bytes_max;
      const auto waiting_order = oldest(waiting, &drop_waiting);
      const auto row_order = oldest(rows, &drop_rows);
      std::size_t w = std::min<std::size_t>((over + 23) / 24, waiting_order.size()), r = 0;
      if (w * 24 < over) r = (over - w * 24 + Bytes(1, 0) - 1) / Bytes(1, 0);
      if (r > 0 && (!s.evict_lru || r > row_order.size())) return std::nullopt;
      if (w > 0) w = std::min(std::max(w, waiting.size() / 64), waiting_order.size());
      if (r > 0) r = std::min(std::max(r, rows.size() / 64), row_order.size());
      for (std::size_t i = 0; i < w; ++i) drop_waiting.insert(waiting_order[i].second);
      for (std::size_t i = 0; i < r; ++i) drop_rows.insert(row_order[i].second);
      outcome.evicted_lru = r;
    }
    outcome.waiting_dropped = drop_waiting.size();
    outcome.rows_made = fresh.size();
    outcome.rows_updated = old.size();
    outcome.ids_waiting = count_only.size();
    step = now;
    for (const std::int64_t id : drop_rows) rows.erase(id);
    for (const std::int64_t id : drop_waiting) waiting.erase(id);
    for (const std::int64_t id : count_only) {
      ModelWaiting& w = waiting[id];
      ++w.count, w.stamp = std::max(w.stamp, stamp);
    }
    for (const std::int64_t id : fresh) {
      ModelRow& row = rows[id];
      if (waiting.contains(id)) row.stamp = waiting[id].stamp;
      waiting.erase(id);
      row.values = Initial(id);
      row.numbers.assign(
          s.optimizer.type == "adam"  ? 2 * s.dimension
          : s.optimizer.type == "sgd" ? 0
                                      : s.dimension,
          s.optimizer.type == "adagrad"
              ? static_cast<double>(static_cast<float>(s.optimizer.initial_accumulator_value))
              : 0.0);
    }
    for (const auto& [id, g] : sums) {
      if (const auto it = rows.find(id); it != rows.end()) {
        it->second.stamp = std::max(it->second.stamp, stamp);
        Update(g, &it->second);
      }
    }
    return outcome;
  }

  void Update(const std::vector<double>& g, ModelRow* row) const {
    ++row->t;
    const double lr = s.optimizer.learning_rate;
    for (std::uint32_t j = 0; j < s.dimension; ++j) {
      double& w = row->values[j];
      if (s.optimizer.type == "sgd") {
        w -= lr * g[j];
      } else if (s.optimizer.type == "counting") {
        w += g[j], row->numbers[j] += 2 * g[j];
      } else if (s.optimizer.type == "adagrad") {
        row->numbers[j] += g[j] * g[j];
        w -= lr * g[j] / (std::sqrt(row->numbers[j]) + 1e-7);
      } else {
        double &m = row->numbers[j], &v = row->numbers[s.dimension + j];
        const auto t = static_cast<double>(row->t);
        m = 0.9 * m + 0.1 * g[j], v = 0.999 * v + 0.001 * g[j] * g[j];
        w -= lr * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * m /
             (std::sqrt(v) + 1e-7);
      }
    }
  }

  TableSettings s;
  std::uint64_t key;
  std::map<std::int64_t, ModelRow> rows;
  std::map<std::int64_t, ModelWaiting> waiting;
  std::uint32_t step = 0;
};

// ---------------------------------------------------------------- cuts in the form of a file

struct Whole {
  TableSlice all;
  std::uint64_t step = 0;
  void Add(const TableSlice& slice) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.ids, slice.ids), append(all.stamps, slice.stamps), append(all.counts, slice.counts),
        append(all.values, slice.values);
    append(all.state, slice.state), append(all.waiting_ids, slice.waiting_ids),
        append(all.waiting_stamps, slice.waiting_stamps);
    append(all.waiting_counts, slice.waiting_counts);
  }
  absl::Status Into(EmbeddingTable* table) const {
    const auto wide = [](const std::vector<std::uint32_t>& v) {
      return std::vector<std::uint64_t>(v.begin(), v.end());
    };
    const auto stamps = wide(all.stamps), counts = wide(all.counts),
               waiting_stamps = wide(all.waiting_stamps), waiting_counts = wide(all.waiting_counts);
    absl::Status status =
        table->Restore(RestoredRows{all.ids, stamps, counts, all.values, all.state});
    if (status.ok() && !all.waiting_ids.empty())
      status = table->Restore(RestoredWaiting{all.waiting_ids, waiting_stamps, waiting_counts});
    if (status.ok()) status = table->RestoreStep(step);
    return status;
  }
};

Whole CutOf(EmbeddingTable* table, std::uint64_t slice_bytes = 1000) {
  Whole whole;
  whole.step = table->BeginCut(~0ull).step;
  for (bool more = true; more;) {
    TableSlice slice;
    more = table->NextSlice(slice_bytes, &slice);
    whole.Add(slice);
  }
  REQUIRE(table->cut_state() == EmbeddingTable::CutState::kOpen);
  table->EndCut();
  return whole;
}

// Compares every row and every waiting id of the table with those of the model.
void CheckEqual(EmbeddingTable* table, const Model& model) {
  REQUIRE(table->rows() == model.rows.size());
  REQUIRE(table->waiting() == model.waiting.size());
  const TableSlice all = CutOf(table).all;
  REQUIRE(all.ids.size() == model.rows.size());
  REQUIRE(all.waiting_ids.size() == model.waiting.size());
  bool close = true, exact = true;
  const auto near = [](float got, double want) {
    return std::abs(got - want) <= 2e-4 * (1 + std::abs(want));
  };
  const std::size_t numbers = table->state_per_row();
  for (std::size_t i = 0; i < all.ids.size(); ++i) {
    const auto it = model.rows.find(all.ids[i]);
    REQUIRE(it != model.rows.end());
    exact = exact && all.stamps[i] == it->second.stamp &&
            all.counts[i] == (table->counts_per_row() ? it->second.t : 0);
    for (std::uint32_t j = 0; j < table->dimension(); ++j)
      close = close && near(all.values[i * table->dimension() + j], it->second.values[j]);
    for (std::size_t j = 0; j < numbers; ++j)
      close = close && near(all.state[i * numbers + j], it->second.numbers[j]);
  }
  for (std::size_t i = 0; i < all.waiting_ids.size(); ++i) {
    const auto it = model.waiting.find(all.waiting_ids[i]);
    REQUIRE(it != model.waiting.end());
    exact = exact && all.waiting_stamps[i] == it->second.stamp &&
            all.waiting_counts[i] == it->second.count;
  }
  CHECK(close);
  CHECK(exact);
}

// ---------------------------------------------------------------- random sequences

struct Walk {
  const char* name;
  const char* optimizer;
  std::uint32_t admit_after;
  std::uint64_t ttl_steps, rows_max;
  bool evict_lru;
};

void RunWalk(const Walk& walk, std::uint64_t seed) {
  INFO(walk.name << " seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  TableSettings s = Settings(1 + static_cast<std::uint32_t>(below(9)), walk.optimizer);
  s.admit_after = walk.admit_after;
  s.default_row = 0.25f;
  s.ttl_steps = walk.ttl_steps;
  s.evict_lru = walk.evict_lru;
  Model model(s);
  s.bytes_max = model.s.bytes_max = model.Bytes(walk.rows_max, 0);
  auto table = Make(s);
  const std::uint64_t universe = 300 + below(3000);
  std::uint32_t step = 0;
  std::uint64_t refusals = 0, evictions = 0, cuts_kept = 0, cuts_lost = 0, restores = 0;

  std::optional<Whole> cut;  // the cut that is in progress
  EmbeddingTable::CutInfo cut_info;
  EmbeddingTable::Digests cut_digest;
  std::optional<Model> cut_model;
  for (int event = 0; event < 400; ++event) {
    step += static_cast<std::uint32_t>(below(4));
    const std::uint64_t what = below(10);
    // Pushes skewed ids with some duplicates. The global step of the push may be a little lower
    // than that of the push before.
    if (what < 6) {
      Ids ids;
      for (std::uint64_t i = below(120); i > 0; --i) {
        const std::uint64_t r = below(universe);
        ids.push_back(
            static_cast<std::int64_t>(r * (below(3) == 0 ? below(universe) : 1) % universe) *
                0x123456789 -
            5);
      }
      std::vector<float> gradient(ids.size() * s.dimension);
      for (float& g : gradient) g = static_cast<float>(static_cast<int>(below(17)) - 8) * 0.25f;
      const std::uint32_t at =
          step - static_cast<std::uint32_t>(below(std::min<std::uint64_t>(step, 3) + 1));
      const auto digest = table->cut_state() == EmbeddingTable::CutState::kNone
                              ? table->Digest()
                              : EmbeddingTable::Digests{};
      if (below(8) == 0) {  // a push is prepared and then cancelled
        if (table->Prepare(ids, at).ok()) table->Cancel();
        if (!cut) REQUIRE(table->Digest() == digest);
      }
      const auto want = model.Push(ids, at, gradient);
      const auto got = Push(table.get(), ids, at, gradient, below(2) == 0 ? ~0ull : 1 + below(200));
      REQUIRE(got.ok() == want.has_value());
      if (!got.ok()) {
        ++refusals;
        REQUIRE(got.status().code() == absl::StatusCode::kResourceExhausted);
        if (!cut) REQUIRE(table->Digest() == digest);
      } else {
        evictions += got->evicted();
        REQUIRE(got->rows_updated == want->rows_updated);
        REQUIRE(got->rows_made == want->rows_made);
        REQUIRE(got->ids_waiting == want->ids_waiting);
        REQUIRE(got->evicted_ttl == want->evicted_ttl);
        REQUIRE(got->evicted_lru == want->evicted_lru);
        REQUIRE(got->waiting_dropped == want->waiting_dropped);
        REQUIRE(got->duplicates == want->duplicates);
      }
    } else if (what < 8) {  // a pull is compared
      Ids ids;
      for (int i = 0; i < 50; ++i)
        ids.push_back(static_cast<std::int64_t>(below(universe)) * 0x123456789 - 5);
      const std::vector<float> values = Read(*table, ids);
      bool close = true;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::vector<double> want = model.Read(ids[i]);
        for (std::uint32_t j = 0; j < s.dimension; ++j)
          close = close &&
                  std::abs(values[i * s.dimension + j] - want[j]) <= 2e-4 * (1 + std::abs(want[j]));
      }
      REQUIRE(close);
    } else if (!cut) {
      CheckEqual(table.get(), model);
      if (below(2) == 0) {
        cut_digest = table->Digest();
        cut_model = model;
        cut_info = table->BeginCut(below(4) == 0 ? 2000 : ~0ull);
        cut.emplace().step = cut_info.step;
      }
    } else {
      TableSlice slice;
      const bool more = table->NextSlice(1 + below(8000), &slice);
      cut->Add(slice);
      if (more) continue;
      if (table->cut_state() == EmbeddingTable::CutState::kLost) {
        ++cuts_lost;
      } else {
        ++cuts_kept;
        REQUIRE(cut->all.ids.size() == cut_info.rows);
        REQUIRE(cut->all.waiting_ids.size() == cut_info.waiting);
        TableSettings again = s;
        if (s.bytes_max != 0 && below(2) == 0)
          // The restored table may have a lower limit.
          again.bytes_max = model.Bytes(1 + below(walk.rows_max), 0);
        auto restored = Make(again);
        REQUIRE(cut->Into(restored.get()).ok());
        REQUIRE(restored->Digest() == cut_digest);
        table->EndCut();
        if (below(2) == 0) {  // the table is lost and is replaced by the restored cut
          ++restores;
          table = std::move(restored);
          model = *cut_model;
          s = again;
          model.s.bytes_max = s.bytes_max;
        }
      }
      table->EndCut();
      cut.reset();
    }
  }
  table->EndCut();
  CheckEqual(table.get(), model);
  CHECK(cuts_kept > 0);
  if (walk.rows_max != 0 && !walk.evict_lru) CHECK(refusals > 0);
  if (walk.evict_lru || walk.ttl_steps != 0) CHECK(evictions > 0);
  (void)cuts_lost, (void)restores;
}

TEST_CASE("random pushes, pulls, evictions, cuts and restores give the results of a float64 map") {
  for (const Walk& walk : std::vector<Walk>{{"plain", "adagrad", 1, 0, 0, false},
                                            {"counting", "counting", 0, 0, 0, false},
                                            {"admission", "adam", 3, 0, 0, false},
                                            {"ttl", "sgd", 1, 40, 0, false},
                                            {"short ttl and admission", "adagrad", 2, 5, 0, false},
                                            {"bytes_max", "adagrad", 1, 0, 200, false},
                                            {"lru", "adam", 1, 0, 250, true},
                                            {"everything", "counting", 2, 100, 150, true}}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) RunWalk(walk, seed);
  }
}

// ---------------------------------------------------------------- single properties

TEST_CASE("a pull creates no row, and reads the initial values of an absent row") {
  auto table = Make(Settings());
  const Ids ids = {5, -1, 5, std::int64_t{1} << 62};
  const std::vector<float> before = Read(*table, ids);
  CHECK(table->rows() == 0);
  CHECK(std::vector<float>(before.begin(), before.begin() + 4) ==
        std::vector<float>(before.begin() + 8, before.begin() + 12));
  CHECK(before[0] != before[4]);
  auto zero = Settings();
  zero.optimizer.learning_rate = 0;
  auto still = Make(zero);
  REQUIRE(PushOnes(still.get(), {5, -1}).ok());
  CHECK(still->rows() == 2);
  CHECK(Read(*still, ids) == before);
}

TEST_CASE("rows of several tables that are read together equal those that are read alone") {
  const std::uint32_t dimensions[] = {4, 16, 3, 64};
  const std::size_t counts[] = {0, 1, 15, 16, 17, 104, 300};
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (const std::uint32_t dimension : dimensions) {
    tables.push_back(Make(Settings(dimension)));
    Ids made;
    for (std::int64_t id = 0; id < 400; id += 2) made.push_back(id);  // odd ids have no row
    REQUIRE(PushOnes(tables.back().get(), made).ok());
  }
  std::mt19937 random(5);
  std::deque<Ids> ids;
  std::vector<RowReading> readings;
  std::deque<std::vector<std::byte>> alone, together;
  for (int i = 0; i < 60; ++i) {
    const EmbeddingTable& table = *tables[random() % tables.size()];
    const auto wire = random() % 2 == 0 ? tensor::WireType::kFloat32 : tensor::WireType::kBFloat16;
    ids.emplace_back(counts[random() % std::size(counts)]);
    for (std::int64_t& id : ids.back()) id = static_cast<std::int64_t>(random() % 400);
    const std::size_t bytes = ids.back().size() * table.dimension() * tensor::WireBytes(wire);
    ReadRows({{&table, ids.back(), wire, alone.emplace_back(bytes).data()}});
    readings.push_back({&table, ids.back(), wire, together.emplace_back(bytes).data()});
  }
  ReadRows(readings);
  CHECK(alone == together);
  ReadRows(std::span<const RowReading>());
}

TEST_CASE("the initial values of a row depend only on the seed, the table's name and the id") {
  const Ids ids = Rising(0, 50);
  const TableSettings s = Settings();
  TableSettings seed = s, name = s;
  seed.initializer.seed = 8;
  name.name = "item/embedding";
  const auto a = Read(*Make(s), ids), b = Read(*Make(seed), ids), c = Read(*Make(name), ids);
  CHECK(a == Read(*Make(s), ids));
  CHECK(a != b);
  CHECK(a != c);
  std::set<float> all(a.begin(), a.end());
  CHECK(all.size() >= a.size() - 1);  // the elements are almost all different
}

TEST_CASE("gradients of a duplicate id are summed in order, and the optimizer takes one step") {
  auto table = Make(Settings(2, "counting"));
  const auto outcome = Push(table.get(), {7, 8, 7, 7}, 0, {1, 2, 10, 20, 100, 200, 1000, 2000});
  REQUIRE(outcome.ok());
  CHECK(outcome->duplicates == 2);
  CHECK(outcome->rows_made == 2);
  auto twin = Make(Settings(2, "counting"));
  REQUIRE(Push(twin.get(), {7, 8}, 0, {1101, 2202, 10, 20}).ok());
  CHECK(table->Digest() == twin->Digest());
  // The sums must also be right for rows that exist. Adam's count of a row shows that the push was
  // one step.
  REQUIRE(Push(table.get(), {8, 7, 8}, 1, {1, 1, 2, 2, 4, 4}, 1).ok());
  REQUIRE(Push(twin.get(), {8, 7}, 1, {5, 5, 2, 2}).ok());
  CHECK(table->Digest() == twin->Digest());
  auto adam = Make(Settings(2, "adam"));
  REQUIRE(PushOnes(adam.get(), {3, 3, 3}).ok());
  CHECK(CutOf(adam.get()).all.counts == std::vector<std::uint32_t>{1});
}

// Duplicate ids are found with a filter, in which different ids can be equal. This happens in so
// large a push.
TEST_CASE(
    "all duplicates among many ids are found, whether their rows exist, are new, or await "
    "admission") {
  for (const std::uint32_t admit_after : {1u, 3u}) {
    TableSettings settings = Settings(1, "counting");
    settings.initializer = {};
    settings.admit_after = admit_after;
    settings.ttl_steps = 1000;
    const auto table = Make(settings);
    std::mt19937_64 random(5);
    std::map<std::int64_t, std::uint32_t> pushes;
    std::map<std::int64_t, float> sums;
    for (std::uint64_t push = 1; push <= 5; ++push) {
      Ids ids;
      for (std::int64_t i = 0; i < 20000; ++i)
        ids.push_back(static_cast<std::int64_t>(push) * 7000 + i);
      std::shuffle(ids.begin(), ids.end(), random);
      for (int again = 0; again < 60; ++again)
        ids.push_back(ids[random() % ids.size()]);  // some ids are in the push three times
      std::swap(ids[3], ids.back());
      std::map<std::int64_t, float> times;
      for (const std::int64_t id : ids) ++times[id];
      const auto before = table->Digest();
      REQUIRE(table->Prepare(ids, push).ok());
      table->Cancel();
      CHECK(table->Digest() == before);
      const auto outcome = PushOnes(table.get(), ids, push);
      REQUIRE(outcome.ok());
      CHECK(outcome->duplicates == ids.size() - times.size());
      std::uint64_t made = 0, updated = 0, waiting = 0;
      for (const auto& [id, count] : times) {
        const std::uint32_t pushed = ++pushes[id];
        made += pushed == admit_after, updated += pushed > admit_after,
            waiting += pushed < admit_after;
        if (pushed >= admit_after) sums[id] += count;
      }
      CHECK(outcome->rows_made == made);
      CHECK(outcome->rows_updated == updated);
      CHECK(outcome->ids_waiting == waiting);
    }
    Ids all;
    for (const auto& [id, sum] : sums) all.push_back(id);
    REQUIRE(table->rows() == all.size());
    const std::vector<float> values = Read(*table, all);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) wrong += values[i] != sums[all[i]];
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "the digest does not depend on the order of the rows, and covers values, optimizer state and "
    "counters") {
  auto one = Make(Settings(3, "adam")), other = Make(Settings(3, "adam"));
  Ids ids = Rising(0, 3000);
  REQUIRE(PushOnes(one.get(), ids).ok());
  std::reverse(ids.begin(), ids.end());
  for (const std::int64_t id : ids) REQUIRE(PushOnes(other.get(), {id}).ok());
  CHECK(one->Digest() == other->Digest());
  std::uint64_t values = 0, numbers = 0, counters = 0;
  const TableSlice all = CutOf(one.get()).all;
  for (std::size_t i = 0; i < all.ids.size(); ++i) {
    values += sharding::DigestOfRow(all.ids[i], 0, std::span(all.values).subspan(i * 3, 3));
    numbers += sharding::DigestOfRow(all.ids[i], 3, std::span(all.state).subspan(i * 6, 6));
    counters += sharding::DigestOfCounters(all.ids[i], all.stamps[i], all.counts[i], false);
  }
  CHECK(one->Digest() == EmbeddingTable::Digests{values, numbers, counters});
  REQUIRE(PushOnes(one.get(), {ids[0]}).ok());
  const auto was = other->Digest(), is = one->Digest();
  CHECK((is.values != was.values && is.state != was.state && is.counters != was.counters));
}

TEST_CASE("a push above bytes_max is refused whole and changes nothing") {
  TableSettings s = Settings();
  auto probe = Make(s);
  s.bytes_max = probe->bytes_of(100, 0);
  auto table = Make(s);
  REQUIRE(PushOnes(table.get(), Rising(0, 90)).ok());
  const auto before = table->Digest();
  const auto refused = PushOnes(table.get(), Rising(80, 101));
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(refused.status().message().find("the table is above bytes_max: table=user/embedding") == 0);
  CHECK(table->Digest() == before);
  CHECK(table->rows() == 90);
  CHECK(table->stats().refused == 1);
  CHECK(PushOnes(table.get(), Rising(80, 100)).ok());  // a push that fits is applied
  CHECK(table->rows() == 100);
  CHECK(PushOnes(table.get(), Rising(0, 100)).ok());  // existing rows need no new memory
}

TEST_CASE("a refusal reports the number of new ids, with those that would only await admission") {
  TableSettings s = Settings();
  s.admit_after = 2;
  s.bytes_max = Make(s)->bytes_of(0, 10);
  auto table = Make(s);
  const auto refused = PushOnes(table.get(), Rising(0, 11));
  CHECK(refused.status().message().find(
            "the table is above bytes_max: table=user/embedding held=0 ") == 0);
  CHECK_THAT(std::string(refused.status().message()), Catch::EndsWith(" wanted=11"));
}

TEST_CASE(
    "at the server's limit a push is refused or evicts old rows, and a removed table frees its "
    "memory") {
  constexpr std::uint64_t kLimit = 1u << 20;
  const auto budget = std::make_shared<MemoryBudget>(kLimit);
  for (const bool lru : {false, true}) {
    TableSettings s = Settings(16);
    s.evict_lru = lru;
    auto table = Make(s, budget);
    bool refused = false;
    std::uint64_t evicted = 0;
    for (std::int64_t i = 0; i < 200; ++i) {
      const auto before = table->Digest();
      const auto outcome =
          PushOnes(table.get(), Rising(i * 100, i * 100 + 100), static_cast<std::uint64_t>(i));
      if (!outcome.ok()) {
        CHECK(outcome.status().message().find("the server's tables are above memory_bytes_max") ==
              0);
        CHECK(outcome.status().message().find(
                  absl::StrCat(" held=", budget->used(), " memory_bytes_max=", budget->limit())) !=
              absl::string_view::npos);
        CHECK(table->Digest() == before);
        refused = true;
      } else {
        evicted += outcome->evicted_lru;
      }
      REQUIRE(budget->used() <=
              kLimit + 64 * 1024);  // at the limit the index may still add one segment
    }
    CHECK(refused == !lru);
    CHECK((evicted > 0) == lru);
    CHECK(table->rows() > 5000);
    CHECK(budget->refusals() > 0);
    CHECK(table->stats().memory_bytes == budget->used());
    table.reset();
    CHECK(budget->used() == 0);
  }
}

TEST_CASE(
    "the tables of each job are counted, and all of them together against the server's limit") {
  constexpr std::uint64_t kLimit = 1u << 20;
  const auto whole = std::make_shared<MemoryBudget>(kLimit);
  const auto one = std::make_shared<MemoryBudget>(whole),
             other = std::make_shared<MemoryBudget>(whole);
  auto first = Make(Settings(16), one), second = Make(Settings(16), one),
       third = Make(Settings(16), other);
  REQUIRE(PushOnes(first.get(), Rising(0, 1000)).ok());
  REQUIRE(PushOnes(second.get(), Rising(0, 500)).ok());
  REQUIRE(PushOnes(third.get(), Rising(0, 2000)).ok());
  const auto parts_are_those_of_their_tables = [&] {
    CHECK(one->used_by_part() == first->stats().memory_bytes + second->stats().memory_bytes);
    CHECK(other->used_by_part() == third->stats().memory_bytes);
    CHECK(whole->used() == one->used_by_part() + other->used_by_part());
    CHECK((one->used() == whole->used() && one->limit() == kLimit));
  };
  parts_are_those_of_their_tables();
  // The memory of the one table must not be available to the other.
  absl::Status refused;
  for (std::int64_t i = 20; refused.ok() && i < 200; ++i)
    refused = PushOnes(third.get(), Rising(i * 100, i * 100 + 100)).status();
  CHECK(absl::StrContains(refused.message(),
                          absl::StrCat("held=", whole->used(), " memory_bytes_max=", kLimit)));
  CHECK(third->rows() < 5000);
  CHECK((whole->refusals() > 0 && one->refusals() == whole->refusals()));
  parts_are_those_of_their_tables();
  third.reset();
  CHECK(other->used_by_part() == 0);
  CHECK(whole->used() == one->used_by_part());
  CHECK(PushOnes(first.get(), Rising(0, 3000)).ok());
  first.reset(), second.reset();
  CHECK(whole->used() == 0);
}

TEST_CASE("the push that admit_after names creates a row, and earlier pushes only count the id") {
  TableSettings s = Settings(2, "counting");
  s.initializer.type = "zeros";
  s.admit_after = 3;
  s.default_row = 0.5f;
  auto table = Make(s);
  for (int k = 1; k <= 2; ++k) {
    const auto outcome =
        PushOnes(table.get(), {1, 1});  // a duplicate id in one push counts as one push
    REQUIRE(outcome.ok());
    CHECK(outcome->ids_waiting == 1);
    CHECK(table->rows() == 0);
    CHECK(table->waiting() == 1);
    CHECK(Read(*table, {1}) == std::vector<float>{0.5f, 0.5f});
  }
  CHECK(PushOnes(table.get(), {1})->rows_made == 1);
  CHECK(table->waiting() == 0);
  CHECK(Read(*table, {1}) == std::vector<float>{1, 1});
  CHECK(table->stats().gradients_dropped == 2);
}

TEST_CASE("a push to a row that was evicted after the pull creates it again") {
  TableSettings s = Settings();
  s.bytes_max = Make(s)->bytes_of(10, 0);
  s.evict_lru = true;
  auto table = Make(s);
  const std::vector<float> initial = Read(*table, {1});
  REQUIRE(PushOnes(table.get(), {1}, 0).ok());
  const std::vector<float> once = Read(*table, {1});
  for (std::int64_t id = 100; id < 110; ++id)
    REQUIRE(PushOnes(table.get(), {id}, static_cast<std::uint64_t>(id)).ok());
  CHECK(Read(*table, {1}) == initial);
  CHECK(PushOnes(table.get(), {1}, 200)->rows_made == 1);
  CHECK(Read(*table, {1}) == once);
}

TEST_CASE("a cut whose pre-images exceed the limit is lost, and the push is applied") {
  auto table = Make(Settings());
  REQUIRE(PushOnes(table.get(), Rising(0, 1000)).ok());
  table->BeginCut(1000);
  TableSlice slice;
  CHECK(table->NextSlice(1, &slice));
  CHECK(slice.ids.size() == 1);
  const auto outcome = PushOnes(table.get(), Rising(0, 1000));
  REQUIRE(outcome.ok());
  CHECK(table->cut_state() == EmbeddingTable::CutState::kLost);
  CHECK_FALSE(table->NextSlice(1u << 20, &slice));
  table->EndCut();
  CHECK(table->cut_state() == EmbeddingTable::CutState::kNone);
  CHECK(CutOf(table.get()).all.ids.size() == 1000);
}

TEST_CASE("a row has the memory cost that the header documents") {
  for (const char* optimizer : {"adagrad", "adam"}) {
    for (const bool stamped : {false, true}) {
      for (const std::int64_t rows : {20000, 100000, 131072}) {
        TableSettings s = Settings(16, optimizer);
        if (stamped) s.ttl_steps = 1000000;
        auto table = Make(s);
        for (std::int64_t at = 0; at < rows; at += 10000)
          REQUIRE(PushOnes(table.get(), Rising(at, std::min(rows, at + 10000))).ok());
        const TableStats stats = table->stats();
        const auto count = static_cast<double>(rows);
        const double per_row = static_cast<double>(stats.index_bytes) / count;
        const double counters =
            static_cast<double>(stats.counter_bytes) / count - (table->counts_per_row() ? 4 : 0);
        INFO(optimizer << " rows " << rows << " load " << stats.index_load()
                       << " index bytes a row " << per_row << " stamps " << counters);
        CHECK(stats.index_load() > 0.65);
        CHECK(per_row <= 20.5);
        CHECK(per_row * stats.index_load() / 0.8 <=
              // 16 bytes are for the entries. The rest is for the directory, the headers, the end
              // of each segment, and the rounding to whole pages.
              17);
        if (stamped) {
          CHECK(counters * stats.index_load() / 0.8 <= 4.3);
        } else {
          CHECK(counters == 0);
        }
        const std::uint64_t numbers = 16 * sizeof(float) * (table->counts_per_row() ? 3 : 2);
        CHECK(stats.memory_bytes <= stats.index_bytes + stats.counter_bytes +
                                        static_cast<std::uint64_t>(rows) * numbers + (256u << 10) +
                                        64);
      }
    }
  }
}

TEST_CASE("the job file's check of row sizes counts all parts of a row") {
  for (const optimizers::Descriptor& descriptor : optimizers::All()) {
    if (descriptor.use == optimizers::Use::kDenseOnly) continue;
    for (const double momentum : {0.0, 0.5}) {
      TableSettings settings = Settings(8, descriptor.defaults.type);
      settings.optimizer = descriptor.defaults;
      settings.optimizer.momentum = momentum;
      INFO(settings.optimizer.type << " " << momentum);
      const auto table = Make(settings);
      const std::uint64_t floats = optimizers::RowFloats(settings.optimizer, 8);
      CHECK(floats == 8 + table->state_per_row());
      CHECK(table->bytes_of(1, 0) == floats * sizeof(float) + optimizers::kIndexBytesPerRow +
                                         optimizers::CounterBytesPerRow(settings.optimizer.type));
      CHECK(table->bytes_of(0, 1) == optimizers::kIndexBytesPerRow);
    }
  }
}

TEST_CASE("rows of a malformed file are refused") {
  const Ids ids = {1, 2};
  const std::vector<std::uint64_t> zeros = {0, 0}, large = {0, std::uint64_t{1} << 32},
                                   ones = {1, 1};
  const std::vector<float> values(8), three(7);
  const auto message = [&](const RestoredRows& rows) {
    auto table = Make(Settings());
    return std::string(table->Restore(rows).message());
  };
  CHECK(message({ids, zeros, zeros, values, values}).empty());
  CHECK(message({ids, zeros, zeros, three, values})
            .find("the arrays of restored rows differ in length") == 0);
  CHECK(message({ids, zeros, zeros, values, three})
            .find("the arrays of restored rows differ in length") == 0);
  CHECK(message({ids, std::span(zeros).first(1), zeros, values, values})
            .find("the arrays of restored rows differ in length") == 0);
  CHECK(message({ids, large, zeros, values, values})
            .find("stamp or count of a restored row does not fit 32 bits") == 0);
  CHECK(message({ids, zeros, large, values, values}).find("stamp or count") == 0);
  const Ids twice = {4, 4};
  CHECK(message({twice, zeros, zeros, values, values}) ==
        "duplicate restored row: table=user/embedding id=4");
  auto table = Make(Settings());
  REQUIRE(table->Restore(RestoredRows{ids, zeros, zeros, values, values}).ok());
  CHECK(table->Restore(RestoredRows{ids, zeros, zeros, values, values}).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(table->Restore(RestoredWaiting{ids, zeros, ones}).code() ==
        absl::StatusCode::kInvalidArgument);  // a table without admission has no waiting ids
  CHECK(table->RestoreStep(std::uint64_t{1} << 32).code() == absl::StatusCode::kInvalidArgument);
  TableSettings s = Settings();
  s.admit_after = 5;
  auto waits = Make(s);
  CHECK(waits->Restore(RestoredWaiting{ids, zeros, zeros}).code() ==
        absl::StatusCode::kInvalidArgument);  // a waiting id must have been pushed at least once
  CHECK(waits->Restore(RestoredWaiting{twice, zeros, ones}).code() ==
        absl::StatusCode::kInvalidArgument);
  const auto budget = std::make_shared<MemoryBudget>(1000);
  CHECK(Make(s, budget)->Restore(RestoredRows{ids, zeros, zeros, values, values}).code() ==
        absl::StatusCode::kResourceExhausted);
}

TEST_CASE(
    "a table restored above a lower bytes_max keeps its rows, and creates none before evictions") {
  const Ids ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<std::uint64_t> zeros(10), stamps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> values(40, 0.5f);
  TableSettings s = Settings();
  s.bytes_max = Make(s)->bytes_of(6, 0);
  auto table = Make(s);
  REQUIRE(table->Restore(RestoredRows{ids, zeros, zeros, values, values}).ok());
  CHECK(table->rows() == 10);
  CHECK(PushOnes(table.get(), ids)->rows_updated == 10);
  CHECK(PushOnes(table.get(), {3, 99})
            .status()
            .message()
            .find("the table is above bytes_max: table=user/embedding") == 0);
  CHECK(table->rows() == 10);
  s.evict_lru = true;
  s.bytes_max = Make(s)->bytes_of(6, 0);
  table = Make(s);
  REQUIRE(table->Restore(RestoredRows{ids, stamps, zeros, values, values}).ok());
  const auto outcome = PushOnes(table.get(), {3, 99}, 20);
  REQUIRE(outcome.ok());
  CHECK(outcome->evicted_lru == 5);
  CHECK(table->rows() == 6);
  CHECK(Read(*table, {8}) == std::vector<float>(4, 0.5f));
  CHECK(Read(*table, {2}) != std::vector<float>(4, 0.5f));
}

TEST_CASE("settings and steps out of range are refused by name") {
  const auto message = [](const TableSettings& s) {
    return std::string(EmbeddingTable::Create(s, nullptr).status().message());
  };
  TableSettings s = Settings();
  s.dimension = 0;
  CHECK(message(s) ==
        "a table's dimension is out of range: table=user/embedding want=1 to 4096 got=0");
  s = Settings(4096);
  CHECK(message(s).find("row with its optimizer state") != std::string::npos);
  s = Settings();
  s.optimizer.type = "lamb";
  CHECK(message(s).find("unknown optimizer") == 0);
  s = Settings();
  s.ttl_steps = std::uint64_t{1} << 32;
  CHECK(message(s).find("ttl_steps") != std::string::npos);
  s = Settings();
  s.default_row = std::nanf("");
  CHECK(message(s).find("default_row") != std::string::npos);
  auto table = Make(Settings());
  CHECK(table->Prepare(Ids{1}, std::uint64_t{1} << 32).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(table->applying());
}

TEST_CASE("the most frequent ids are known from a sample, in fixed memory") {
  auto table = Make(Settings(1, "sgd"));
  std::mt19937_64 random(3);
  Ids ids(1000);
  for (int push = 0; push < 1600; ++push) {
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] =
          i < 20 ? static_cast<std::int64_t>(i % 2) : static_cast<std::int64_t>(random() % 100000);
    std::shuffle(ids.begin(), ids.end(), random);
    REQUIRE(PushOnes(table.get(), ids).ok());
  }
  const std::vector<HotId> hottest = table->Hottest(2);
  REQUIRE(hottest.size() == 2);
  CHECK(std::set<std::int64_t>{hottest[0].id, hottest[1].id} == std::set<std::int64_t>{0, 1});
  CHECK(static_cast<double>(hottest[0].pushes) == Approx(16000).epsilon(0.5));
}

// An attacker might choose ids whose hashes share their upper bits. Such pushes may be slow, but
// they must end with the right result. A push looks up the next groups of ids before it inserts the
// current group. If the index grew at the insertion, the positions of the next groups were once
// read in memory that was freed. Under AddressSanitizer each segment is an allocation of its own,
// so such a read is detected.
TEST_CASE("an index that grows during a push is not read at its old positions") {
  for (const bool stamped : {false, true}) {
    TableSettings settings = Settings(1, "counting");
    settings.initializer = {};
    settings.evict_lru = stamped;
    const auto table = Make(settings);
    // Each push mixes new ids and known ids. The index grows dozens of times, each time in the
    // middle of a push.
    std::map<std::int64_t, float> times;
    for (std::int64_t push = 0; push < 40; ++push) {
      Ids ids;
      for (std::int64_t i = 0; i < 400; ++i)
        ids.push_back(i % 2 == 0 ? push * 200 + i / 2 : (push * 200 + i) / 3);
      for (const std::int64_t id : ids) ++times[id];
      REQUIRE(PushOnes(table.get(), ids, static_cast<std::uint64_t>(push)).ok());
    }
    CHECK(table->rows() == times.size());
    Ids all;
    for (const auto& [id, count] : times) all.push_back(id);
    const std::vector<float> values = Read(*table, all);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) wrong += values[i] != times[all[i]];
    CHECK(wrong == 0);
  }
}

// A table whose budget can refuse any single request for memory.
struct RefusedPieces {
  explicit RefusedPieces(const TableSettings& s) : table(Make(s, budget)) {}

  // Repeats the push, and refuses first its first request for memory, then its second one, and so
  // on, until the push is not refused. The index grows with several requests, and keeps the parts
  // that have grown. The number of requests therefore falls.
  void RefuseEachOf(const Ids& ids, std::uint64_t step) {
    const EmbeddingTable::Digests before = table->Digest();
    const TableStats stats = table->stats();
    const std::vector<float> values = Read(*table, ids);
    for (left = 0;; ++left) {
      asked = 0;
      const auto outcome = table->Prepare(ids, step);
      if (outcome.ok()) break;
      REQUIRE(left < 1000);
      CountRefusal(outcome.status());
      CHECK_FALSE(table->applying());
      CHECK(table->Digest() == before);
      CHECK(Read(*table, ids) == values);
      CheckUnchanged(stats);
    }
    table->Cancel();
    left = ~0ull;
  }
  void CountRefusal(const absl::Status& status) {
    INFO(status.message());
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    const bool rows = absl::StrContains(status.message(),
                                        "out of memory for a table's rows: table=user/embedding");
    CHECK(rows != absl::StrContains(status.message(),
                                    "out of memory for a table's index: table=user/embedding"));
    ++(rows ? of_rows : of_index);
  }
  void CheckUnchanged(const TableStats& stats) const {
    const TableStats after = table->stats();
    CHECK((after.rows == stats.rows && after.waiting == stats.waiting &&
           after.admitted == stats.admitted && after.duplicates == stats.duplicates));
    CHECK(after.refused == of_rows + of_index);
    // The memory of the rows must be as before. The memory of the index must be counted with its
    // new size.
    CHECK(budget->used() == after.memory_bytes);
    CHECK(RowBytes(after) == RowBytes(stats));
  }
  // Returns the memory that is counted for rows and spare rows. This is all memory except that of
  // the index and its stamps. Under Adam the counters have four bytes per row, which belong to the
  // rows.
  static std::uint64_t RowBytes(const TableStats& t) {
    return t.memory_bytes - t.index_bytes - (t.counter_bytes - 4 * t.rows);
  }

  // The requests for memory are numbered from 0. Request `left` and all later ones are refused.
  std::uint64_t left = ~0ull, asked = 0;
  std::shared_ptr<MemoryBudget> budget =
      std::make_shared<MemoryBudget>(0, [this](std::size_t) { return asked++ >= left; });
  std::unique_ptr<EmbeddingTable> table;
  // These are the numbers of refused requests for memory of the index and of the rows.
  std::uint64_t of_index = 0, of_rows = 0;
};

// Takes all slices of the open cut and ends the cut. Returns the rows and the waiting ids.
auto HandedOut(EmbeddingTable* table) {
  std::map<std::int64_t, std::vector<float>> rows;
  std::map<std::int64_t, std::uint32_t> waiting;
  TableSlice slice;
  for (bool more = true; more;) {
    more = table->NextSlice(4096, &slice);
    for (std::size_t i = 0; i < slice.ids.size(); ++i)
      rows[slice.ids[i]] = {slice.values.begin() + static_cast<std::ptrdiff_t>(4 * i),
                            slice.values.begin() + static_cast<std::ptrdiff_t>(4 * i + 4)};
    for (std::size_t i = 0; i < slice.waiting_ids.size(); ++i)
      waiting[slice.waiting_ids[i]] = slice.waiting_counts[i];
  }
  CHECK(table->cut_state() == EmbeddingTable::CutState::kOpen);
  table->EndCut();
  return std::pair(rows, waiting);
}

TEST_CASE("an allocation failure refuses a push whole, and later pushes are unaffected") {
  struct Form {
    const char* name;
    std::uint32_t admit_after;
    std::uint64_t ttl_steps;
    bool lru, cut;
  };
  for (const Form& form : {Form{"plain", 1, 0, false, false}, Form{"admission", 3, 0, false, false},
                           Form{"ttl and lru", 1, 4, true, false},
                           Form{"a cut, ttl and admission", 2, 4, false, true}}) {
    INFO(form.name);
    TableSettings s = Settings(4, "adam");
    s.admit_after = form.admit_after, s.ttl_steps = form.ttl_steps, s.evict_lru = form.lru;
    RefusedPieces pieces(s);
    EmbeddingTable* const table = pieces.table.get();
    const auto calm = Make(s);
    std::uint64_t step = 0;
    for (std::int64_t round = 0; round < 12; ++round, ++step) {
      // The push has existing ids, waiting ids, and many new ids. Some ids are duplicates.
      Ids ids = Rising(round * 700, round * 700 + 1500);
      const Ids again = Rising(round * 350, round * 350 + 200);
      ids.insert(ids.end(), again.begin(), again.end());
      if (form.cut && round % 3 == 1) {
        table->BeginCut(1 << 20);
        calm->BeginCut(1 << 20);
      }
      pieces.RefuseEachOf(ids, step);
      const auto outcome = PushOnes(table, ids, step), expected = PushOnes(calm.get(), ids, step);
      REQUIRE((outcome.ok() && expected.ok()));
      CHECK((outcome->rows_made == expected->rows_made &&
             outcome->ids_waiting == expected->ids_waiting &&
             outcome->duplicates == expected->duplicates &&
             outcome->evicted() == expected->evicted()));
      REQUIRE(table->Digest() == calm->Digest());
      // A refused push must leave nothing in the index or in the cut, so both tables must give the
      // same rows.
      if (form.cut && round % 3 == 2) {
        const auto handed_out = HandedOut(table);
        CHECK(handed_out.first.size() + handed_out.second.size() > 100);
        CHECK(handed_out == HandedOut(calm.get()));
      }
    }
    CHECK(pieces.of_index > 10);
    CHECK(pieces.of_rows > 0);
    CHECK(table->stats().refused == pieces.of_index + pieces.of_rows);
  }
}

TEST_CASE("an allocation failure for rows of a file is an out-of-memory error") {
  for (std::uint64_t left = 0;; ++left) {
    std::uint64_t asked = 0;
    bool counting = false;
    const auto table = Make(Settings(), std::make_shared<MemoryBudget>(0, [&](std::size_t) {
                              return counting && asked++ >= left;
                            }));
    counting = true;
    const Ids ids = Rising(0, 3000);
    const std::vector<std::uint64_t> zeros(ids.size());
    const std::vector<float> values(ids.size() * 4, 1.0f);
    const absl::Status restored = table->Restore({ids, zeros, zeros, values, values});
    if (restored.ok()) {
      CHECK(left > 10);
      CHECK(table->rows() == ids.size());
      break;
    }
    INFO(restored.message());
    REQUIRE(left < 1000);
    CHECK(restored.code() == absl::StatusCode::kResourceExhausted);
    CHECK(absl::StrContains(restored.message(), "out of memory for"));
  }
}

TEST_CASE("ids that are chosen to collide in the index are kept like others") {
  const TableSettings s = Settings(1, "sgd");
  const std::uint64_t key = random::KeyOf(s.initializer.seed, s.name);
  // This function is the inverse of Mix64, because a search for suitable ids would be too slow. The
  // test checks below that it is the inverse.
  const auto unmix = [](std::uint64_t x) {
    x ^= x >> 31 ^ x >> 62, x *= 0x319642b2d24d8ec3ull;
    x ^= x >> 27 ^ x >> 54, x *= 0x96de1b173f119089ull;
    return x ^ x >> 30 ^ x >> 60;
  };
  auto table = Make(s);
  Ids ids;
  for (std::uint64_t i = 0; i < 9000; ++i) {
    ids.push_back(static_cast<std::int64_t>(unmix(std::rotl((0x123ull << 52) | i, 32)) ^ key));
    REQUIRE(std::rotl(sharding::Mix64(static_cast<std::uint64_t>(ids.back()) ^ key), 32) >> 52 ==
            0x123);
  }
  REQUIRE(PushOnes(table.get(), ids).ok());
  REQUIRE(PushOnes(table.get(), Rising(0, 5000)).ok());
  CHECK(table->rows() == 14000);
  CHECK(PushOnes(table.get(), ids)->rows_updated == 9000);
  CHECK(table->stats().memory_bytes < 4u << 20);
}

}  // namespace
}  // namespace evergrad::ps_server::storage
