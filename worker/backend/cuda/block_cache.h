// The caching allocator of device memory. A segment is the memory of one cudaMalloc, and blocks are
// the parts of a segment. The allocator computes with addresses and never dereferences an address.
//
// cudaMalloc and cudaFree wait for the device, so segments are kept for reuse. Work on a stream
// runs in order. A freed block may therefore be reused by the same stream while queued kernels
// still read it, because new work is queued behind these kernels. A block that a second stream has
// also used is not reused until the second stream has reached the mark of that use (UsedOn).
//
// Neighbouring free blocks of one stream are merged. The allocator takes the smallest free block
// that suffices, and among equal blocks the one with the lowest address. Addresses are a function
// of the calls, so a repeated step gets the same addresses, on which CUDA graphs rely. Not
// thread-safe.
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
  // A number that grows with the work queued on a stream. Once the stream has reached a mark, all
  // work that was queued before the mark has ended.
  using Mark = std::uint64_t;

  static constexpr std::uint64_t kAlignment = 512;        // alignment of blocks and of their sizes
  static constexpr std::uint64_t kSmallMax = 1ull << 20;  // largest block in a small segment
  static constexpr std::uint64_t kSmallSegment = 2ull << 20;
  static constexpr std::uint64_t kMediumMax = 10ull << 20, kMediumSegment = 20ull << 20;
  // Larger blocks are allocated in separate segments, whose sizes are multiples of this unit.
  static constexpr std::uint64_t kLargeUnit = 2ull << 20;

  // Functions of the device. `allocate` returns ResourceExhausted if out of memory. `free_bytes` is
  // the device's free memory, for error messages.
  struct Driver {
    std::function<absl::StatusOr<Address>(std::uint64_t bytes)> allocate;
    std::function<absl::Status(Address)> release;
    std::function<std::uint64_t()> free_bytes;
  };
  struct Stats {
    std::uint64_t in_use = 0, in_use_peak = 0;      // bytes of blocks in use
    std::uint64_t reserved = 0, reserved_peak = 0;  // bytes taken from the device
    std::uint64_t held_back = 0;                    // freed bytes that wait for another stream
    std::uint64_t largest_free = 0;
    std::uint64_t allocations = 0, device_allocations = 0, device_releases = 0, splits = 0,
                  joins = 0;
    // Fragmentation: the share of the free bytes outside the largest free block. The share is 0 if
    // the free bytes are one piece, or if nothing is free.
    double fragmentation = 0;
  };

  explicit BlockCache(Driver driver) : driver_(std::move(driver)) {}
  ~BlockCache();  // releases all segments, even if blocks are in use

  // Allocates a block aligned to kAlignment. If the device is out of memory, releases unused
  // segments first. Returns ResourceExhausted ("out of device memory: asked=… free=… in_use=…
  // cached=… largest_free=…"), or InvalidArgument if `bytes` is 0.
  absl::StatusOr<Address> Allocate(std::uint64_t bytes, Stream stream);
  // Frees a block. `address` must be a result of Allocate that has not been freed.
  void Free(Address address);
  // Declares that `stream`, which is not the block's own stream, uses the block until `mark`. The
  // caller calls UsedOn before Free.
  void UsedOn(Address address, Stream stream, Mark mark);
  // Declares that `stream` has reached `mark`. Marks only grow.
  void Reached(Stream stream, Mark mark);

  // Releases every segment without a block in use or held back.
  absl::Status ReleaseCached();
  Stats stats() const;
  // Checks the consistency of the records, for tests. Returns "", or a description of the error.
  std::string Audit() const;

 private:
  struct Block {
    Address segment = 0;
    std::uint64_t bytes = 0;
    Stream stream = 0;
    enum class State { kFree, kUsed, kHeldBack } state = State::kFree;
    std::map<Stream, Mark> others;  // other streams that use the block, with their marks
  };
  // The key of a free block: its stream, whether its segment is small, its bytes, its address.
  using FreeKey = std::tuple<Stream, bool, std::uint64_t, Address>;

  static std::uint64_t Round(std::uint64_t bytes, std::uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  bool IsSmall(const Block& block) const { return segments_.at(block.segment) == kSmallSegment; }
  FreeKey KeyOf(Address address, const Block& block) const {
    return {block.stream, IsSmall(block), block.bytes, address};
  }
  void Insert(Address address);  // adds a block to the free list, merged with its neighbours
  void Settle(Address address);  // puts a freed block into the free list, or holds it back
  absl::StatusOr<Address> Grow(std::uint64_t bytes, Stream stream);
  Address Take(Address address, std::uint64_t bytes);

  const Driver driver_;
  std::map<Address, std::uint64_t> segments_;  // address -> bytes
  std::map<Address, Block> blocks_;            // all blocks, in order of address
  std::set<FreeKey> free_;
  std::map<Stream, Mark> reached_;
  Stats stats_;
};

}  // namespace evergrad::worker
