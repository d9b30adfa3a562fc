// The batches of one attempt on their way from the reader to the compute executor, and the rows of
// embedding tables that they read.
//
//   Ask ─▶ reader's thread ─▶ control executor: the rows are asked for, on_batch ─▶ Take
//                               └▶ compute executor: the batch is copied to a device in advance
//
// Control executor. One batch at most is asked for, and one is held. A feed that ends with its
// attempt calls nothing more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/runtime/executor.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/batch_streams.h"
#include "worker/runner/compute_job.h"
#include "worker/runner/compute_queue.h"
#include "worker/runner/exchange.h"
#include "worker/runner/job_context.h"

namespace evergrad::worker {

class BatchFeed : public std::enable_shared_from_this<BatchFeed> {
 public:
  // All outlive the feed.
  struct Environment {
    runtime::Executor* control = nullptr;
    ComputeQueue* compute = nullptr;
    BatchStreams* streams = nullptr;
    JobContext* job = nullptr;
    Exchange* exchange = nullptr;
  };
  // Called with an error when there is no batch, or its rows cannot be asked for.
  using OnBatch = std::function<void(const absl::Status&)>;
  // The stream of `work` is open.
  BatchFeed(Environment environment, const Work& work, OnBatch on_batch);

  // Asks for the batch after the one that is held, unless it was asked for.
  void Ask();
  bool has_batch() const { return batch_ != nullptr; }
  // The rows of the batch that is held have been pulled; true, too, without tables.
  bool RowsDone() const;

  // A batch, and its rows with their values: null without tables.
  struct Taken {
    std::shared_ptr<const ReadyBatch> batch;
    std::shared_ptr<ComputeJob::BatchRows> rows;
  };
  Taken Take();  // EG_CHECK: has_batch() and RowsDone()
  // The batches that are to be copied to a device, for the step that is computed meanwhile. Shared
  // with the compute executor.
  const std::shared_ptr<NextBatch>& next() const { return next_; }

 private:
  void OnRead(absl::StatusOr<ReadyBatch> batch);
  void CopyToDevice();
  absl::Status AskRows();

  const Environment env_;
  const Attempt attempt_;
  const bool pulls_each_step_;  // else all steps use the first pull
  const OnBatch on_batch_;
  bool asked_ = false;
  std::shared_ptr<const ReadyBatch> batch_;      // shared with the compute executor
  std::shared_ptr<ComputeJob::BatchRows> rows_;  // of batch_; used by one thread at a time
  std::uint64_t rows_pulls_ = 0;                 // asked for so far, those of batch_ included
  const std::shared_ptr<NextBatch> next_ = std::make_shared<NextBatch>();
};

}  // namespace evergrad::worker
