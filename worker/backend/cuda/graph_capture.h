// Decides when a step is captured into a CUDA graph, and when the graph is replayed. Records why a
// step was captured again.
//
//   run eagerly `warm_up` times ──▶ capture ──▶ replay, replay, … ──(addresses changed)──▶ capture
//      a failed or useless capture ──▶ capture again; after `failures_max` in a row: always eager
//
// A capture was useless if the addresses changed before its first replay.
//
// Graphs take memory, so their number and the number of calls in them are bounded. At the limit,
// the least recently used graphs are evicted, provided that they have been unused for much longer
// than the time between two uses of the new shape. Otherwise the new shape runs eagerly. Therefore,
// if too many shapes are used in turn, they do not evict each other in every step, and the shapes
// whose graphs fit are replayed.
//
// A graph contains the addresses and numbers that were current at its capture; the caller passes a
// fingerprint of them. This class only decides. Its owner makes the captures, keeps the graphs
// under their keys, and destroys a graph when a Decision requests this. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace evergrad::worker {

class GraphCapture {
 public:
  using Key = std::uint64_t;  // key of a shape (batch size, and training or evaluation)

  struct Options {
    // The number of eager runs before the first capture. During a capture no plan can be made or
    // measured.
    std::uint32_t warm_up = 2;
    std::uint32_t failures_max = 3;  // limit of failures in a row
    std::uint32_t graphs_max = 256;
    bool enabled = true;                  // if false, steps always run eagerly
    std::uint64_t calls_max = 64 * 1024;  // limit of calls in all graphs; a call takes some KB, so
                                          // about sixty shapes of a ResNet-50 fit
  };
  enum class Action { kEager, kCapture, kReplay };
  struct Decision {
    Action action = Action::kEager;
    bool drop = false;         // the graph kept under the key must be destroyed
    std::vector<Key> evicted;  // keys of other graphs to be destroyed
  };
  struct Stats {
    std::uint64_t eager = 0, captures = 0, replays = 0, failures = 0, evictions = 0;
    std::uint64_t crowded = 0;  // number of steps that ran eagerly because of the graph limit
    std::uint64_t graphs = 0, calls = 0;  // numbers for the graphs that are kept now
    // The number of repeated captures by reason: "addresses changed", "evicted", "capture failed".
    std::map<std::string, std::uint64_t> recaptures;
    std::uint64_t recaptures_total() const;
  };

  explicit GraphCapture(Options options) : options_(options) {}

  // Decides about the next step of this shape.
  Decision Next(Key key, std::uint64_t fingerprint);
  // Both functions report the result of the capture that Next requested. The class keeps the reason
  // for a failure.
  void Captured(Key key, std::uint64_t calls);
  void Failed(Key key, const std::string& reason);
  // Declares that the objects of the shape and its graph were destroyed. The next use of this key
  // means another shape.
  void Forget(Key key);
  const Stats& stats() const { return stats_; }
  // Returns the reason why `key` always runs eagerly, or "".
  std::string given_up(Key key) const;

 private:
  struct CapturedShape {
    std::uint32_t runs = 0, failures = 0;
    bool has_graph = false, capturing = false, evicted = false, replayed = false;
    std::uint64_t fingerprint = 0, used = 0, calls = 0;
    std::string reason;
  };
  void Drop(CapturedShape* entry);  // counts the removal of the entry's graph
  // Evicts graphs to make space for the graph of `entry`. The last call of Next for this entry was
  // at `before` (a value of clock_). The new graph is assumed to be as large as the entry's last
  // graph; the size of a first graph is unknown. Returns false, and changes nothing, if there is
  // not enough space.
  bool MakeRoom(const CapturedShape& entry, std::uint64_t before, Decision* decision);

  const Options options_;
  std::map<Key, CapturedShape> entries_;
  std::uint64_t clock_ = 0;  // number of calls of Next
  Stats stats_;
};

}  // namespace evergrad::worker
