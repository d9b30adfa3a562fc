// A server's queue of orders to write snapshots [27]. First a cut of the shard is taken, and then
// its file becomes durable; each is an event of its own. Pushes may come between the two, and
// between the slices of a slot's cut.
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
    // A slot's cut whose moment is fixed, and whose rows are being copied, slice by slice.
    struct Slicing {
      ps_server::ShardCut cut;
      std::unique_ptr<HeldState> facts;  // the true history of that moment
    };
    std::optional<Slicing> slicing = std::nullopt;
  };
  // The report of a file to the coordinator. It may be sent only in the session of the order.
  struct Report {
    TaskId session;
    JobUid job;
    std::uint32_t p = 0;
    Snapshot snapshot;
  };

  // All three references outlive the writer.
  SnapshotWriter(WalkContext& walk, SnapshotFolder& folder, InvariantChecker& checker)
      : walk_(walk), folder_(folder), checker_(checker) {}

  // Adds an order. If an order for this shard is waiting already, its report goes to `session`
  // instead.
  void Add(JobUid job, std::uint32_t p, ShardEpoch epoch, TaskId session);
  void DropJob(JobUid job);
  // Called when the server gets the shard again, so that its newest file is not of the present
  // state.
  void ForgetFile(std::uint32_t p) { durable_file_[p].reset(); }
  // Returns the first order, or nullptr.
  const Order* next() const { return orders_.empty() ? nullptr : &orders_.front(); }
  // Advances the first order by one step. `held` is the state that it names; nullptr if the server
  // does not hold that state.
  std::optional<Report> Advance(const HeldState* held);

 private:
  // Returns whether the shard's newest file has the state that the server holds now.
  bool IsUnchanged(const HeldState& held, const Order& order);
  // Captures the cut of the order. One call captures only a few slices of a shard of embedding
  // tables, so such a cut needs several calls.
  void Cut(const HeldState& held, Order& order);
  // Copies a few slices of a slot's cut. The cut is whole after the last slice.
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
