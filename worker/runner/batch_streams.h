// The batches of each attempt, read ahead on the reader thread of worker/data. Streams are open for
// the attempt that begins and for the next few, so that their first batches are read in time. Used
// on the control executor, except the callback of Next.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/metrics/metrics.h"
#include "worker/data/batch_reader.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/input_opener.h"
#include "worker/runner/job_context.h"

namespace evergrad::worker {

class BatchStreams {
 public:
  // `registry` outlives the streams.
  BatchStreams(BatchReader::Options options, metrics::Registry* registry)
      : reader_(std::move(options), registry) {}

  // Opens the stream of `work` (training or evaluation), and the streams of the first training
  // closures among `held` that have not begun. An open stream is unchanged.
  void Open(const JobContext& job, const InputOpener& input, const Work& work,
            const std::vector<AttemptBook::Held>& held);
  // Requests the next batch of an attempt whose stream is open (see BatchReader::Next).
  void Next(Attempt attempt, BatchReader::Taken taken);
  // Closes the stream of an attempt, if there is one.
  void Close(Attempt attempt);
  void CloseAll();

 private:
  void OpenOne(const JobContext& job, const InputOpener& input, const Work& work);

  BatchReader reader_;
  std::map<Attempt, BatchReader::StreamId> open_;
  BatchReader::StreamId last_ = 0;
};

}  // namespace evergrad::worker
