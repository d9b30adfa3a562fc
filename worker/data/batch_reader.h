// Reads batches ahead in plan order, on a separate thread, into a bounded buffer.
//
//   Open(1)  Open(2)            streams are read in the order in which they were opened, so the
//     │        │                 first batches of the next closure are in the buffer before the
//     ▼        ▼                 current closure ends
//   reader thread ──▶ [buffer: batches_max, bytes_max] ──▶ Next(1) … Next(1), Next(2) …
//
// A requested batch is read even if the buffer is full. The buffer then exceeds its limits by at
// most one batch, and no order of calls can block the reader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {

// Thread-safe. Callbacks run on the reader's thread, or inside Next if the batch is in the buffer.
// Callbacks never run under a lock.
class BatchReader {
 public:
  struct Options {
    // The limit of batches that are read and not yet taken, in all streams together.
    std::uint32_t batches_max = 8;
    std::uint64_t bytes_max = 64ull << 20;
    // Allocates memory that suits the device, for a float32 field. If the function is null or
    // returns an empty buffer, the heap is used. The reader's thread calls it.
    std::function<tensor::AlignedBuffer(std::size_t bytes)> allocate = nullptr;
  };
  using StreamId = std::uint64_t;
  // A pure function that returns the examples of a batch. The reader's thread calls it.
  using Indices = std::function<std::vector<std::uint64_t>(std::uint32_t batch)>;
  using Taken = std::function<void(absl::StatusOr<ReadyBatch>)>;

  // `registry` may be null; it outlives the reader.
  BatchReader(const Options& options, metrics::Registry* registry);
  ~BatchReader();  // Stops the thread; pending callbacks are never called.

  // Starts reading batches 0 … batches-1 of a stream, behind the streams that are open. Opening an
  // open stream has no effect.
  void Open(StreamId stream, std::shared_ptr<const Dataset> data, std::uint32_t batches,
            Indices indices);
  // Takes the next batch of `stream`. Only one call per stream may be pending. Returns NotFound for
  // an unknown stream, and OutOfRange after the last batch. If a batch could not be read, the call
  // for this batch and all later calls return the read error.
  void Next(StreamId stream, Taken done);
  // Removes the stream and its batches. A callback that the reader has already taken may still run.
  void Close(StreamId stream);

  std::uint32_t buffered_batches() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the reader's thread
};

}  // namespace evergrad::worker
