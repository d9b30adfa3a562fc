// Batches in plan order, read ahead on a thread of their own into a bounded buffer.
//
//   Open(1)  Open(2)            streams are read in the order in which they were opened, so the
//   next closure's first batches
//     │        │                 are in the buffer before the present closure ends
//     ▼        ▼
//   reader thread ──▶ [buffer: batches_max, bytes_max] ──▶ Next(1) … Next(1), Next(2) …
//
// A batch that somebody waits for is read whatever the bounds say: one more batch, and no order of
// use can stop the reader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "worker/data/dataset.h"

namespace evergrad::worker {

// Thread-safe. Callbacks run on the reader's thread, or inside Next when the batch is there
// already; never under a lock.
class BatchReader {
 public:
  struct Options {
    std::uint32_t batches_max = 8;  // read and not yet taken, all streams together
    std::uint64_t bytes_max = 64ull << 20;
    // Memory for a field of float32, where a device had best read it; empty: there is none, and the
    // heap serves, as it does where this is null. On the reader's thread.
    std::function<tensor::AlignedBuffer(std::size_t bytes)> room = nullptr;
  };
  using StreamId = std::uint64_t;
  using Indices = std::function<std::vector<std::uint64_t>(
      std::uint32_t batch)>;  // pure; called on the reader's thread
  using Taken = std::function<void(absl::StatusOr<ReadyBatch>)>;

  BatchReader(Options options,
              metrics::Registry* registry);  // registry may be null; it outlives the reader
  ~BatchReader();  // Stops the thread; callbacks not yet called never are.

  // Begins to read batches 0 … batches-1 behind the streams already open. Opening an open stream
  // changes nothing.
  void Open(StreamId stream, std::shared_ptr<const Dataset> data, std::uint32_t batches,
            Indices indices);
  // Takes the next batch of `stream`; one call at a time per stream. NotFound: no such stream.
  // OutOfRange: past its last batch. An error of reading is returned once it is reached, and again
  // at every further call.
  void Next(StreamId stream, Taken done);
  // Forgets the stream and what was read of it. A callback that is on its way may still run.
  void Close(StreamId stream);

  std::uint32_t buffered_batches() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the reader's thread
};

}  // namespace evergrad::worker
