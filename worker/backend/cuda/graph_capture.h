// When a step is captured into a CUDA graph, when it is replayed, and why it was captured again.
//
//   run eagerly `warm_up` times ──▶ capture ──▶ replay, replay, … ──(addresses changed)──▶ capture
//                                     └─ failed, or of no use ─▶ capture again; after
//                                     `failures_max` in a row run eagerly for good
//
// Of no use is a graph that was never replayed because the addresses had changed already.
//
// Graphs take memory, so they are bounded, by their number and by the calls in them. Where there is
// no room for another, the ones that were used longest ago go, if they have not been asked for in a
// good deal longer time than the new shape; else that one is run eagerly. So shapes that come in
// turn, and are too many, are not captured each time just to go again: as many as there is room for
// are replayed.
//
// A graph has the addresses and numbers in it that were current at its capture; whoever asks hands
// in a fingerprint of them. Decisions only: the owner captures, keeps the graphs under their keys,
// and drops what it is told to. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace evergrad::worker {

class GraphCapture {
 public:
  using Key = std::uint64_t;  // of a shape: batch size, training or evaluation

  struct Options {
    std::uint32_t warm_up =
        2;  // plans are made and algorithms measured meanwhile, which no capture may do
    std::uint32_t failures_max = 3;  // in a row
    std::uint32_t graphs_max = 256;
    bool enabled = true;  // false: always eagerly
    std::uint64_t calls_max =
        64 * 1024;  // of all graphs; some KB each, so a ResNet-50 has room for some sixty shapes
  };
  enum class Action { kEager, kCapture, kReplay };
  struct Decision {
    Action action = Action::kEager;
    bool drop = false;         // the graph that is kept under the key is of no use any more
    std::vector<Key> evicted;  // of others that have to go
  };
  struct Stats {
    std::uint64_t eager = 0, captures = 0, replays = 0, failures = 0, evictions = 0;
    std::uint64_t crowded = 0;            // of the eager ones: there was no room for their graph
    std::uint64_t graphs = 0, calls = 0;  // kept now
    std::map<std::string, std::uint64_t>
        recaptures;  // by reason: "addresses changed", "evicted", "capture failed"
    std::uint64_t recaptures_total() const;
  };

  explicit GraphCapture(Options options) : options_(options) {}

  // What to do with the next step of this shape.
  Decision Next(Key key, std::uint64_t fingerprint);
  // How the capture went that Next asked for. The reason of a failure is kept.
  void Captured(Key key, std::uint64_t calls);
  void Failed(Key key, const std::string& reason);
  // What the shape was made of is gone, its graph with it: the next of this key is another shape.
  void Forget(Key key);
  const Stats& stats() const { return stats_; }
  // Why `key` is run eagerly for good; "" when it is not.
  std::string given_up(Key key) const;

 private:
  struct Entry {
    std::uint32_t runs = 0, failures = 0;
    bool has_graph = false, capturing = false, evicted = false, replayed = false;
    std::uint64_t fingerprint = 0, used = 0, calls = 0;
    std::string reason;
  };
  void Drop(Entry* entry);  // its graph
  // Whether there is room for a graph of `entry` (as large as its last one; the first one's size is
  // not known), which was last asked for at `before`: makes it, or leaves everything as it is.
  bool MakeRoom(const Entry& entry, std::uint64_t before, Decision* decision);

  const Options options_;
  std::map<Key, Entry> entries_;
  std::uint64_t clock_ = 0;  // counts calls of Next
  Stats stats_;
};

}  // namespace evergrad::worker
