// The true history of a shard's state. It is kept beside the state and copied with it. The checks
// compare the ledger and the values with this history, and not only with each other.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_server/optimizer/optimizer.h"
#include "ps_server/shard/shard.h"
#include "tests/simulation/cluster.h"

namespace evergrad::simulation {

// The rows of one push to a slot, in the form of a push section.
struct SlotSection {
  std::vector<std::int64_t> ids;
  // the number of rows of each table: rows[k] of tables[k]
  std::vector<std::uint32_t> tables, rows;
  std::vector<std::uint32_t> at;  // for each id: the position of its row among the elements
  std::vector<std::uint32_t> dimension;
  std::size_t floats = 0;
  ps_server::TableRows of() const { return {true, ids, tables, rows}; }
};

// What all states of a shard have in common: settings, initial values and gradients. A slot has two
// tables of six ids each. Its elements are the rows of both tables, in the order in which a pull of
// all ids returns them.
class ShardModel {
 public:
  ShardModel(const std::string& optimizer, std::uint32_t p, bool slot = false);
  bool slot() const { return settings_.slot.has_value(); }
  // Returns a new state with the initial values, which the job's seed determines.
  std::unique_ptr<ps_server::Shard> Seed(ShardEpoch epoch, MapVersion start,
                                         const IntervalSet& refused) const;
  std::uint32_t elements() const { return elements_; }
  const std::array<float, kElementsMax>& seed_values() const { return seed_values_; }
  const ps_server::optimizer::Optimizer& optimizer() const { return optimizer_; }
  const ps_server::ShardSettings& settings() const { return settings_; }
  // Returns whether the update (c, u) of this attempt is a SKIP (its gradient has a NaN or an
  // overflow). This depends on the computation: it may differ between two attempts, but not between
  // copies of one push.
  static bool Skips(std::uint64_t c, std::uint32_t u, Attempt attempt);
  // Computes the gradient of an update. For the optimizer `counting` it is 1 at element (c, u), so
  // that each value is the number of times that the update was applied. For other optimizers, its
  // numbers differ between attempts, as they do when a real closure is retried. For a slot it is
  // the gradient of the rows of SectionOf(c, u).
  void Gradient(std::uint64_t c, std::uint32_t u, Attempt attempt, float* out) const;
  // Returns the rows that the update (c, u) pushes, of one table or both, with some duplicates.
  // They depend on the plan only.
  const SlotSection& SectionOf(std::uint64_t c, std::uint32_t u) const {
    return sections_[c * kUpdates + u];
  }
  // Returns SectionOf(c, u) with additional rows of the last table, so many that the table's memory
  // budget does not suffice. Resizes `gradient` to the size of all rows.
  SlotSection BeyondBudget(std::uint64_t c, std::uint32_t u, std::vector<float>* gradient) const;
  // Sets the rows and the payload of a push.
  void FillPush(std::uint64_t c, std::uint32_t u, std::span<const float> gradient,
                ps_server::Push* push) const;
  std::size_t gradient_floats(std::uint64_t c, std::uint32_t u) const {
    return slot() ? SectionOf(c, u).floats : elements_;
  }
  // Returns a request that pulls all values.
  ps_server::Pull PullOf(ShardEpoch epoch, bool has = false, MapVersion have_start = {},
                         std::uint64_t have_vlsn = 0) const;
  // For a slot, returns empty tables for its cut, which TakeSlice fills. For a dense shard, returns
  // no tables.
  std::vector<std::shared_ptr<ps_server::storage::EmbeddingTable>> NewTables(
      const ps_server::ShardCut& cut) const;
  static void TakeSlice(
      const ps_server::SlotSlice& slice,
      const std::vector<std::shared_ptr<ps_server::storage::EmbeddingTable>>& tables);

 private:
  void MakeSections();

  ps_server::ShardSettings settings_;
  std::uint32_t elements_;
  bool counting_;
  ps_server::optimizer::Optimizer optimizer_;
  std::array<float, kElementsMax> seed_values_{};
  SlotSection all_;  // every id of every table
  std::vector<SlotSection> sections_;
};

struct Applied {
  std::uint8_t closure = 0, update = 0;
  bool skip = false;
  Attempt attempt;
};

// A shard's state and its true history.
struct HeldState {
  JobUid job{};
  std::unique_ptr<ps_server::Shard> shard;
  // [22] The term of the coordinator's life in which the shard was stopped for a move. It concerns
  // only the server that holds the shard.
  std::uint64_t stopped_in = 0;
  // How often (c, u) was applied. A SKIP counts like an application.
  std::array<std::uint8_t, kClosures * kUpdates> count{};
  std::uint64_t gradients = 0;               // number of entries of `log` that are not a SKIP
  std::array<Attempt, kClosures> seen{};     // highest attempt answered APPLIED or DUPLICATE [I9]
  std::vector<Applied> log;                  // the updates in the order in which they were applied
  std::array<float, kElementsMax> values{};  // the values after all updates of `log`
  std::array<std::array<float, kElementsMax>, ps_server::optimizer::kStatesMax> states{};
  std::array<std::uint32_t, kElementsMax>
      row_gradients{};  // for a slot: how many gradients the row that begins at this element got

  static std::unique_ptr<HeldState> FromSeed(const ShardModel& model, ShardEpoch epoch,
                                             MapVersion start, const IntervalSet& refused);
  std::unique_ptr<HeldState> Copy() const;
  // Returns the state after a cut and a restore, as if from a file [27, 21]. With `resumed` it is
  // the state that a new job gets [28].
  std::unique_ptr<HeldState> Restored(const ShardModel& model, ShardEpoch epoch, MapVersion start,
                                      const IntervalSet& refused, bool resumed,
                                      const ps_server::Ledger* other_ledger = nullptr) const;
  // Returns a copy of all members except the shard itself.
  std::unique_ptr<HeldState> Facts() const;
  // Like Restored, but from `cut`. This must be a cut of this state's shard that was taken when
  // these facts were copied. The tables of a slot must be filled.
  std::unique_ptr<HeldState> RestoredFrom(const ShardModel& model, ps_server::ShardCut cut,
                                          ShardEpoch epoch, MapVersion start,
                                          const IntervalSet& refused, bool resumed,
                                          const ps_server::Ledger* other_ledger = nullptr) const;
  // Adds one more applied update to the true history.
  void Fold(const ShardModel& model, std::uint64_t c, std::uint32_t u, Attempt attempt,
            const float* gradient);
  void FoldRows(const ShardModel& model, const SlotSection& section, const float* gradient);
  // Adds a SKIP, which the ledger records and which changes no value (line 13).
  void FoldSkip(std::uint64_t c, std::uint32_t u, Attempt attempt);
  // Compares the shard's values bit by bit with those of the true history. Returns "" or the
  // difference.
  std::string CheckValues(const ShardModel& model) const;
  // Checks that the ledger records exactly the updates of the log (I2), and that the log has all
  // updates of done closures (I3). touch[c] has a bit for each update that has rows in this shard.
  // Returns "" or the difference.
  std::string CheckLedger(const std::array<std::uint8_t, kClosures>& touch) const;
  // Applies all updates of `log` to a new shard, and compares its values and optimizer state with
  // those of the true history. Returns "" or the difference.
  std::string CheckReplay(const ShardModel& model) const;
};

}  // namespace evergrad::simulation
