// The caching allocator of device memory: which part of which segment is whose. It computes with
// addresses and never follows one.
//
// cudaMalloc and cudaFree wait for the device, so segments are kept and cut into blocks. Work on a
// stream runs in order, so a block that was freed may be given out again to the stream that used it
// while the kernels that read it are still queued: whoever gets it comes after them. A block that
// another stream used as well is held back until that stream has passed its mark.
//
// Free neighbours of one stream are joined. Best fit, the lowest address on ties: addresses are a
// function of the calls, which makes a step that is repeated meet the same addresses (CUDA graphs
// rely on it). Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"

namespace evergrad::worker {

class BlockCache {
 public:
  using Address = std::uint64_t;
  using Stream = std::uint32_t;
  // Grows with what is queued on a stream: a mark that was reached means that everything queued
  // before it has ended.
  using Mark = std::uint64_t;

  static constexpr std::uint64_t kAlignment = 512;  // of blocks and their sizes
  static constexpr std::uint64_t kSmallMax = 1ull
                                             << 20;  // blocks up to this live in small segments
  static constexpr std::uint64_t kSmallSegment = 2ull << 20;
  static constexpr std::uint64_t kMediumMax = 10ull << 20, kMediumSegment = 20ull << 20;
  static constexpr std::uint64_t kLargeUnit =
      2ull << 20;  // larger ones have a segment each, rounded up to this

  // The device's own. allocate: ResourceExhausted when there is no room. free_bytes: of the device
  // now, for the error text.
  struct Driver {
    std::function<absl::StatusOr<Address>(std::uint64_t bytes)> allocate;
    std::function<absl::Status(Address)> release;
    std::function<std::uint64_t()> free_bytes;
  };
  struct Stats {
    std::uint64_t in_use = 0, in_use_peak = 0;      // bytes given out, rounded up to blocks
    std::uint64_t reserved = 0, reserved_peak = 0;  // bytes taken from the device
    std::uint64_t held_back = 0;                    // freed, and waiting for another stream
    std::uint64_t largest_free = 0;
    std::uint64_t allocations = 0, device_allocations = 0, device_releases = 0, splits = 0,
                  joins = 0;
    // The share of the free bytes that is not in the largest free block: 0 when it is one piece, or
    // nothing is free.
    double fragmentation = 0;
  };

  explicit BlockCache(Driver driver) : driver_(std::move(driver)) {}
  ~BlockCache();  // gives all segments back, whatever is in use

  // Aligned to kAlignment. When the device has no room, what is cached and whole is given back to
  // it first. ResourceExhausted: "out of device memory: asked=… free=… in_use=… cached=…
  // largest_free=…". InvalidArgument: no bytes.
  absl::StatusOr<Address> Allocate(std::uint64_t bytes, Stream stream);
  // Of Allocate, once.
  void Free(Address address);
  // `stream`, which is not the block's, uses it until `mark`. Before Free.
  void UsedOn(Address address, Stream stream, Mark mark);
  // Of `stream`. Marks only grow.
  void Reached(Stream stream, Mark mark);

  // Gives the device every segment of which no block is in use or held back.
  absl::Status ReleaseCached();
  Stats stats() const;
  // Empty, or what is broken in the books: for tests.
  std::string Audit() const;

 private:
  struct Block {
    Address segment = 0;
    std::uint64_t bytes = 0;
    Stream stream = 0;
    enum class State { kFree, kUsed, kHeldBack } state = State::kFree;
    std::map<Stream, Mark> others;  // that use it, and until when
  };
  using FreeKey =
      std::tuple<Stream, bool, std::uint64_t, Address>;  // stream, small, bytes, address

  static std::uint64_t Round(std::uint64_t bytes, std::uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  bool IsSmall(const Block& block) const { return segments_.at(block.segment) == kSmallSegment; }
  FreeKey KeyOf(Address address, const Block& block) const {
    return {block.stream, IsSmall(block), block.bytes, address};
  }
  void Insert(Address address);  // a block into the free list, joined with its neighbours
  void Settle(Address address);  // a freed block: into the free list, or held back
  absl::StatusOr<Address> Grow(std::uint64_t bytes, Stream stream);
  Address Take(Address address, std::uint64_t bytes);

  const Driver driver_;
  std::map<Address, std::uint64_t> segments_;  // address -> bytes
  std::map<Address, Block> blocks_;            // all of them, in order of address
  std::set<FreeKey> free_;
  std::map<Stream, Mark> reached_;
  Stats stats_;
};

}  // namespace evergrad::worker
