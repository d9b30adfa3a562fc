#include "worker/backend/cuda/block_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::worker {

BlockCache::~BlockCache() {
  // Errors are ignored, because a destructor cannot report them.
  for (const auto& [address, bytes] : segments_) driver_.release(address).IgnoreError();
}

absl::StatusOr<BlockCache::Address> BlockCache::Allocate(std::uint64_t bytes, Stream stream) {
  constexpr std::uint64_t kBytesMax = 1ull << 62;
  if (bytes == 0 || bytes > kBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate: bytes=", bytes));
  const std::uint64_t want = Round(bytes, kAlignment);
  const bool small = want <= kSmallMax;
  auto best = free_.lower_bound({stream, small, want, 0});
  const auto fits = [&] {
    return best != free_.end() && std::get<0>(*best) == stream && std::get<1>(*best) == small;
  };
  Address address = 0;
  if (fits()) {
    address = std::get<3>(*best);
  } else {
    absl::StatusOr<Address> grown = Grow(want, stream);
    if (absl::IsResourceExhausted(grown.status())) {
      const absl::Status released = ReleaseCached();
      if (!released.ok()) return released;
      grown = Grow(want, stream);
    }
    if (absl::IsResourceExhausted(grown.status())) {
      const Stats now = stats();
      return absl::ResourceExhaustedError(absl::StrCat(
          "out of device memory: asked=", bytes, " free=", driver_.free_bytes(), " in_use=",
          now.in_use, " cached=", now.reserved - now.in_use, " largest_free=", now.largest_free));
    }
    if (!grown.ok()) return grown.status();
    address = *grown;
  }
  ++stats_.allocations;
  Take(address, want);
  stats_.in_use += blocks_.at(address).bytes;
  stats_.in_use_peak = std::max(stats_.in_use_peak, stats_.in_use);
  return address;
}

// Allocates a segment of the size class of `bytes`, and adds it as one free block.
absl::StatusOr<BlockCache::Address> BlockCache::Grow(std::uint64_t bytes, Stream stream) {
  const std::uint64_t segment = bytes <= kSmallMax    ? kSmallSegment
                                : bytes <= kMediumMax ? kMediumSegment
                                                      : Round(bytes, kLargeUnit);
  absl::StatusOr<Address> address = driver_.allocate(segment);
  if (!address.ok()) return address;
  EG_CHECK(*address % kAlignment == 0);
  ++stats_.device_allocations;
  stats_.reserved += segment;
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
  segments_[*address] = segment;
  Block block;
  block.segment = *address;
  block.bytes = segment;
  block.stream = stream;
  free_.insert(KeyOf(*address, blocks_[*address] = block));
  return address;
}

// Marks a free block as used. The excess bytes become a free block unless they are too few.
BlockCache::Address BlockCache::Take(Address address, std::uint64_t bytes) {
  Block& block = blocks_.at(address);
  EG_CHECK(block.state == Block::State::kFree && block.bytes >= bytes);
  free_.erase(KeyOf(address, block));
  const std::uint64_t rest = block.bytes - bytes;
  if (IsSmall(block) ? rest >= kAlignment : rest > kSmallMax) {
    Block tail = block;
    tail.bytes = rest;
    block.bytes = bytes;
    free_.insert(KeyOf(address + bytes, blocks_[address + bytes] = tail));
    ++stats_.splits;
  }
  blocks_.at(address).state = Block::State::kUsed;
  return address;
}

void BlockCache::Free(Address address) {
  const auto found = blocks_.find(address);
  EG_CHECK_MSG(found != blocks_.end() && found->second.state == Block::State::kUsed,
               absl::StrCat("the block was freed twice, or never allocated: address=", address));
  stats_.in_use -= found->second.bytes;
  Settle(address);
}

void BlockCache::Settle(Address address) {
  Block& block = blocks_.at(address);
  std::erase_if(block.others, [this](const auto& use) {
    const auto reached = reached_.find(use.first);
    return reached != reached_.end() && reached->second >= use.second;
  });
  const bool was_held = block.state == Block::State::kHeldBack;
  if (!block.others.empty()) {
    if (!was_held) stats_.held_back += block.bytes;
    block.state = Block::State::kHeldBack;
    return;
  }
  if (was_held) stats_.held_back -= block.bytes;
  Insert(address);
}

void BlockCache::Insert(Address address) {
  auto at = blocks_.find(address);
  at->second.state = Block::State::kFree;
  const auto joins = [](const auto& left, const auto& right) {
    return left->second.state == Block::State::kFree &&
           right->second.state == Block::State::kFree &&
           left->second.segment == right->second.segment &&
           left->second.stream == right->second.stream;
  };
  if (const auto next = std::next(at); next != blocks_.end() && joins(at, next)) {
    free_.erase(KeyOf(next->first, next->second));
    at->second.bytes += next->second.bytes;
    blocks_.erase(next);
    ++stats_.joins;
  }
  if (at != blocks_.begin()) {
    if (const auto before = std::prev(at); joins(before, at)) {
      free_.erase(KeyOf(before->first, before->second));
      before->second.bytes += at->second.bytes;
      blocks_.erase(at);
      at = before;
      ++stats_.joins;
    }
  }
  free_.insert(KeyOf(at->first, at->second));
}

void BlockCache::UsedOn(Address address, Stream stream, Mark mark) {
  Block& block = blocks_.at(address);
  EG_CHECK(block.state == Block::State::kUsed);
  if (stream == block.stream) return;
  Mark& until = block.others[stream];
  until = std::max(until, mark);
}

void BlockCache::Reached(Stream stream, Mark mark) {
  Mark& reached = reached_[stream];
  EG_CHECK(mark >= reached);
  reached = mark;
  std::vector<Address> held;
  for (const auto& [address, block] : blocks_)
    if (block.state == Block::State::kHeldBack && block.others.count(stream) != 0)
      held.push_back(address);
  for (const Address address : held) Settle(address);
}

absl::Status BlockCache::ReleaseCached() {
  std::vector<std::pair<Address, Stream>> whole;
  for (const auto& [stream, small, bytes, address] : free_)
    if (const auto segment = segments_.find(address);
        segment != segments_.end() && segment->second == bytes)
      whole.emplace_back(address, stream);
  for (const auto& [address, stream] : whole) {
    absl::Status released = driver_.release(address);
    if (!released.ok()) return released;
    free_.erase(KeyOf(address, blocks_.at(address)));
    blocks_.erase(address);
    stats_.reserved -= segments_.at(address);
    segments_.erase(address);
    ++stats_.device_releases;
  }
  return absl::OkStatus();
}

BlockCache::Stats BlockCache::stats() const {
  Stats stats = stats_;
  std::uint64_t free = 0;
  for (const auto& [stream, small, bytes, address] : free_) {
    free += bytes;
    stats.largest_free = std::max(stats.largest_free, bytes);
  }
  stats.fragmentation =
      free == 0 ? 0.0 : 1.0 - static_cast<double>(stats.largest_free) / static_cast<double>(free);
  return stats;
}

std::string BlockCache::Audit() const {
  std::uint64_t used = 0, held = 0, reserved = 0, free = 0;
  std::map<Address, Address> ends;  // segment -> end of its blocks seen so far
  for (const auto& [segment, bytes] : segments_) ends[segment] = segment, reserved += bytes;
  const Block* before = nullptr;
  for (const auto& [address, block] : blocks_) {
    const auto end = ends.find(block.segment);
    if (end == ends.end() || end->second != address)
      return absl::StrCat("gap or overlap before a block: address=", address);
    if (block.bytes == 0 || block.bytes % kAlignment != 0 || address % kAlignment != 0)
      return absl::StrCat("malformed block: address=", address);
    end->second += block.bytes;
    const bool is_free = block.state == Block::State::kFree;
    if (is_free != (free_.count(KeyOf(address, block)) != 0))
      return absl::StrCat("the free list and the list of blocks disagree about a block: address=",
                          address);
    if (is_free && before != nullptr && before->state == Block::State::kFree &&
        before->segment == block.segment && before->stream == block.stream)
      return absl::StrCat("a free block was not merged with its free neighbour: address=", address);
    if (block.state == Block::State::kUsed) used += block.bytes;
    if (block.state == Block::State::kHeldBack) held += block.bytes;
    if (is_free) free += block.bytes;
    before = &block;
  }
  for (const auto& [segment, bytes] : segments_)
    if (ends[segment] != segment + bytes)
      return absl::StrCat("the blocks do not cover their segment: segment=", segment);
  std::uint64_t listed = 0;
  for (const FreeKey& key : free_) listed += std::get<2>(key);
  if (used != stats_.in_use || held != stats_.held_back || reserved != stats_.reserved ||
      listed != free)
    return "the statistics differ from the sums over the blocks";
  return "";
}

}  // namespace evergrad::worker
