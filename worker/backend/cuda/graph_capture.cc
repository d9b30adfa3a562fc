#include "worker/backend/cuda/graph_capture.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace evergrad::worker {
namespace {

// The limit of shapes. Shapes without a graph are remembered, too, and batches may have many sizes.
constexpr std::size_t kEntriesMax = 1024;
// A graph is evicted only if it has been unused for this multiple of the time between two uses of
// the new shape, because a capture costs more than a step.
constexpr std::uint64_t kLonger = 4;

}  // namespace

std::uint64_t GraphCapture::Stats::recaptures_total() const {
  std::uint64_t sum = 0;
  for (const auto& [reason, count] : recaptures) sum += count;
  return sum;
}

GraphCapture::Decision GraphCapture::Next(Key key, std::uint64_t fingerprint) {
  Decision decision;
  if (!options_.enabled) return ++stats_.eager, decision;
  if (entries_.count(key) == 0 && entries_.size() >= kEntriesMax) {
    const auto oldest =
        std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.has_graph, a.second.used) <
                 std::pair(b.second.has_graph, b.second.used);
        });
    if (oldest->second.has_graph) {
      decision.evicted.push_back(oldest->first);
      ++stats_.evictions;
      Drop(&oldest->second);
    }
    entries_.erase(oldest);
  }
  CapturedShape& entry = entries_[key];
  EG_CHECK(!entry.capturing);
  const std::uint64_t before = std::exchange(entry.used, ++clock_);
  if (entry.has_graph && entry.fingerprint == fingerprint) {
    ++stats_.replays;
    entry.replayed = true;
    entry.failures = 0;
    decision.action = Action::kReplay;
    return decision;
  }
  std::string why;
  if (entry.has_graph) {
    why = "addresses changed";
    decision.drop = true;
    Drop(&entry);
    if (!entry.replayed) ++entry.failures, entry.reason = "addresses change from step to step";
  } else if (entry.evicted) {
    why = "evicted";
  } else if (entry.failures > 0) {
    why = "capture failed";
  }
  if (entry.failures >= options_.failures_max || entry.runs < options_.warm_up) {
    ++entry.runs;
    ++stats_.eager;
    return decision;
  }
  if (!MakeRoom(entry, before, &decision)) {
    entry.evicted = entry.evicted || decision.drop;
    ++stats_.crowded;
    ++stats_.eager;
    return decision;
  }
  if (!why.empty()) ++stats_.recaptures[why];
  entry.evicted = false;
  entry.capturing = true;
  entry.fingerprint = fingerprint;
  decision.action = Action::kCapture;
  return decision;
}

void GraphCapture::Drop(CapturedShape* entry) {
  entry->has_graph = false;
  --stats_.graphs;
  stats_.calls -= entry->calls;
}

bool GraphCapture::MakeRoom(const CapturedShape& entry, std::uint64_t before, Decision* decision) {
  const auto fits = [&](std::uint64_t graphs, std::uint64_t calls) {
    return graphs == 0 || (graphs < options_.graphs_max &&
                           calls + std::max<std::uint64_t>(1, entry.calls) <= options_.calls_max);
  };
  if (fits(stats_.graphs, stats_.calls)) return true;
  std::vector<std::pair<std::uint64_t, Key>> kept;  // keys with the time of their last use
  for (const auto& [key, other] : entries_)
    if (other.has_graph) kept.emplace_back(other.used, key);
  std::sort(kept.begin(), kept.end());
  std::uint64_t graphs = stats_.graphs, calls = stats_.calls;
  std::size_t going = 0;
  while (!fits(graphs, calls)) {
    const auto& [used, key] = kept[going++];
    if (before == 0 || clock_ - used < kLonger * (clock_ - before)) return false;
    --graphs;
    calls -= entries_.at(key).calls;
  }
  for (std::size_t i = 0; i < going; ++i) {
    CapturedShape& gone = entries_.at(kept[i].second);
    Drop(&gone);
    gone.evicted = true;
    ++stats_.evictions;
    decision->evicted.push_back(kept[i].second);
  }
  return true;
}

void GraphCapture::Captured(Key key, std::uint64_t calls) {
  CapturedShape& entry = entries_.at(key);
  EG_CHECK(entry.capturing);
  entry.capturing = false;
  entry.has_graph = true;
  entry.replayed = false;
  entry.calls = calls;
  ++stats_.graphs;
  stats_.calls += calls;
  ++stats_.captures;
}

void GraphCapture::Failed(Key key, const std::string& reason) {
  CapturedShape& entry = entries_.at(key);
  EG_CHECK(entry.capturing);
  entry.capturing = false;
  ++entry.failures;
  entry.reason = reason;
  ++stats_.failures;
}

void GraphCapture::Forget(Key key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  EG_CHECK(!found->second.capturing);
  if (found->second.has_graph) Drop(&found->second);
  entries_.erase(found);
}

std::string GraphCapture::given_up(Key key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() || found->second.failures < options_.failures_max
             ? ""
             : found->second.reason;
}

}  // namespace evergrad::worker
