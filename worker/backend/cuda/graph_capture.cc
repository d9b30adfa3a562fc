#include "worker/backend/cuda/graph_capture.h"

#include <algorithm>

#include "common/base/check.h"

namespace evergrad::worker {
namespace {

// Shapes without a graph are remembered, too, and batches come in many sizes.
constexpr std::size_t kEntriesMax = 1024;

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
        std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    if (oldest->second.has_graph) decision.evicted = oldest->first, ++stats_.evictions;
    entries_.erase(oldest);
  }
  Entry& entry = entries_[key];
  EG_CHECK(!entry.capturing);
  entry.used = ++clock_;
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
    entry.has_graph = false;
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
  const auto graphs = std::count_if(entries_.begin(), entries_.end(), [](const auto& e) { return e.second.has_graph; });
  if (!decision.evicted && static_cast<std::uint32_t>(graphs) >= options_.graphs_max) {
    Entry* oldest = nullptr;
    for (auto& [other, candidate] : entries_)
      if (candidate.has_graph && (oldest == nullptr || candidate.used < oldest->used)) oldest = &candidate, decision.evicted = other;
    oldest->has_graph = false;
    oldest->evicted = true;
    ++stats_.evictions;
  }
  if (!why.empty()) ++stats_.recaptures[why];
  entry.evicted = false;
  entry.capturing = true;
  entry.fingerprint = fingerprint;
  decision.action = Action::kCapture;
  return decision;
}

void GraphCapture::Captured(Key key) {
  Entry& entry = entries_.at(key);
  EG_CHECK(entry.capturing);
  entry.capturing = false;
  entry.has_graph = true;
  entry.replayed = false;
  ++stats_.captures;
}

void GraphCapture::Failed(Key key, const std::string& reason) {
  Entry& entry = entries_.at(key);
  EG_CHECK(entry.capturing);
  entry.capturing = false;
  ++entry.failures;
  entry.reason = reason;
  ++stats_.failures;
}

std::string GraphCapture::given_up(Key key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() || found->second.failures < options_.failures_max ? "" : found->second.reason;
}

}  // namespace evergrad::worker
