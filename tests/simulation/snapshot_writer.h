// A server's queue of orders to write snapshots [27]. For each order a cut of the shard is taken,
// and later the cut's file becomes durable. These are two events. Pushes may come between the two,
// and between the slices of a slot's cut.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/simulation/invariant_checker.h"
#include "tests/simulation/snapshot_folder.h"

namespace evergrad::simulation {

class SnapshotWriter {
 public:
  // An order to cut a shard.
  struct Order {
    JobUid job;
    std::uint32_t p = 0;
    ShardEpoch epoch;
    TaskId session;                  // the session that gets the report
    std::unique_ptr<HeldState> cut;  // taken and not durable yet
    // For a slot: a cut whose moment is fixed, and whose rows are being copied slice by slice.
    struct Slicing {
      ps_server::ShardCut cut;
      std::unique_ptr<HeldState> facts;  // the true history at that moment
    };
    std::optional<Slicing> slicing = std::nullopt;
  };
  // The report to the coordinator that a file is durable. It may be sent only in the session that
  // gave the order.
  struct Report {
    TaskId session;
    JobUid job;
    std::uint32_t p = 0;
    Snapshot snapshot;
  };

  // All three referenced objects must outlive the writer.
  SnapshotWriter(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker)
      : walk_(walk), folder_(folder), checker_(checker) {}

  // Adds an order. If an order for this shard is already waiting, only the session that gets its
  // report is replaced by `session`.
  void Add(JobUid job, std::uint32_t p, ShardEpoch epoch, TaskId session);
  void DropJob(JobUid job);
  // Called when the server gets the shard once more. Its newest file then does not have the present
  // state.
  void ForgetFile(std::uint32_t p) { durable_file_[p].reset(); }
  // Returns the first order, or nullptr.
  const Order* next() const { return orders_.empty() ? nullptr : &orders_.front(); }
  // Advances the first order by one step. `held` is the state that the order names, or nullptr if
  // the server does not hold that state.
  std::optional<Report> Advance(const HeldState* held);

 private:
  // Returns whether the shard's newest file contains the state that the server holds now.
  bool IsUnchanged(const HeldState& held, const Order& order);
  // Takes the cut of the order. One call copies only a few slices of a slot, so the cut of a slot
  // needs several calls.
  void Cut(const HeldState& held, Order& order);
  // Copies a few slices of a slot's cut. The cut is complete after the last slice.
  void CutSlices(const HeldState& held, Order& order);
  Snapshot MakeDurable(const HeldState* held, Order& order);

  WalkContext& walk_;
  SnapshotFolder& folder_;
  InvariantChecker& checker_;
  std::vector<Order> orders_;
  // The newest file of each shard that the server holds.
  std::array<std::optional<Snapshot>, kShards> durable_file_;
};

}  // namespace evergrad::simulation
