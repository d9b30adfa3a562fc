#include "worker/runner/request_split.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace evergrad::worker {
namespace {

// The alignment of sections and lists of ids, in bytes.
constexpr std::uint64_t kAlignment = 64;
// The largest size of a section's message in the header, without the lists of its tables.
constexpr std::uint64_t kSectionHeaderBytes = 192;
constexpr std::uint64_t kTableHeaderBytes = 16;
// The size of the other fields of the header: job, client, sizes.
constexpr std::uint64_t kRequestHeaderBytes = 1024;

std::uint64_t OnWire(std::uint64_t payload_bytes, std::uint64_t ids_bytes, std::size_t tables) {
  return kSectionHeaderBytes + kTableHeaderBytes * tables + payload_bytes + kAlignment +
         (ids_bytes > 0 ? ids_bytes + kAlignment : 0);
}

// Fills requests one after another.
class Packer {
 public:
  Packer(const client::RequestLimits& limits, std::span<const SectionSize> sections,
         SplitPlan* plan)
      : limits_(limits), sections_(sections), plan_(plan) {}

  // Adds sections that must stay together. Returns false if no request can hold all of them.
  bool Add(std::span<const std::size_t> unit) {
    RequestSize size;
    for (const std::size_t i : unit) {
      size.request_bytes += sections_[i].request_bytes;
      size.response_bytes += sections_[i].response_bytes;
    }
    if (!limits_.Fits(size.request_bytes + kRequestHeaderBytes, size.response_bytes)) return false;
    const std::uint64_t bytes = size.request_bytes + size.response_bytes;
    if (!open_.empty() && filled_ + bytes > limits_.part_bytes()) Close();
    open_.insert(open_.end(), unit.begin(), unit.end());
    filled_ += bytes;
    return true;
  }
  void Close() {
    if (!open_.empty()) plan_->requests.push_back(std::exchange(open_, {}));
    filled_ = 0;
  }

 private:
  const client::RequestLimits& limits_;
  const std::span<const SectionSize> sections_;
  SplitPlan* const plan_;
  std::vector<std::size_t> open_;
  std::uint64_t filled_ = 0;
};

}  // namespace

SectionSize PushSize(std::uint32_t shard, std::uint64_t payload_bytes, std::uint64_t ids_bytes,
                     std::size_t tables) {
  return {shard, true, OnWire(payload_bytes, ids_bytes, tables), 0};
}

SectionSize PullSize(std::uint32_t shard, std::uint64_t values_bytes, std::uint64_t ids_bytes,
                     std::size_t tables) {
  return {shard, false, OnWire(0, ids_bytes, tables), values_bytes + kAlignment};
}

RequestSize SizeOf(std::span<const SectionSize> sections) {
  RequestSize size{kRequestHeaderBytes, 0};
  for (const SectionSize& section : sections) {
    size.request_bytes += section.request_bytes;
    size.response_bytes += section.response_bytes;
  }
  return size;
}

SplitPlan SplitRequests(const client::RequestLimits& limits, std::span<const SectionSize> sections,
                        bool in_parts) {
  SplitPlan plan;
  if (sections.empty()) return plan;
  const RequestSize all = SizeOf(sections);
  // A request above the client's share of the budget would make other clients wait until the whole
  // request was transferred and answered.
  if (!in_parts && limits.Fits(all.request_bytes, all.response_bytes) &&
      all.request_bytes + all.response_bytes <= limits.share_bytes()) {
    plan.requests.emplace_back(sections.size());
    std::iota(plan.requests.front().begin(), plan.requests.front().end(), std::size_t{0});
    return plan;
  }
  plan.in_parts = true;
  // The sections are sorted by shard. Within a shard, pushes come first.
  std::vector<std::size_t> order(sections.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return sections[a].shard != sections[b].shard ? sections[a].shard < sections[b].shard
                                                  : sections[a].push && !sections[b].push;
  });
  Packer packer(limits, sections, &plan);
  for (std::size_t begin = 0, end; begin < order.size(); begin = end) {
    end = begin;
    while (end < order.size() && sections[order[end]].shard == sections[order[begin]].shard) ++end;
    const std::span<const std::size_t> unit(order.data() + begin, end - begin);
    if (packer.Add(unit)) continue;
    const bool pushes = sections[unit.front()].push;
    for (const std::size_t i : unit) {
      if (sections[i].push != pushes) break;  // the pull waits for the push of its shard
      if (!packer.Add({&i, 1}) && !plan.never_fits) plan.never_fits = i;
    }
  }
  packer.Close();
  return plan;
}

}  // namespace evergrad::worker
