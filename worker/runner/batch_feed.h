// Brings the batches of one attempt, and the rows of embedding tables that they read, from the
// reader to the compute executor.
//
//   Ask ─▶ reader's thread ─▶ control executor: requests the rows, on_batch ─▶ Take
//                               └▶ compute executor: copies the batch to a device in advance
//
// Used on the control executor. At most one batch is requested and at most one is held. A feed ends
// with its attempt and makes no callbacks afterwards.
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
  // All objects outlive the feed.
  struct Environment {
    runtime::Executor* control = nullptr;
    ComputeQueue* compute = nullptr;
    BatchStreams* streams = nullptr;
    JobContext* job = nullptr;
    Exchange* exchange = nullptr;
  };
  // Called when a requested batch has arrived. The status is an error if there is no batch, or if
  // the rows of the batch cannot be requested.
  using OnBatch = std::function<void(const absl::Status&)>;
  // The stream of `work` must be open.
  BatchFeed(Environment environment, const Work& work, OnBatch on_batch);

  // Requests the batch after the held batch, unless this request is pending.
  void Ask();
  bool has_batch() const { return batch_ != nullptr; }
  // Returns whether the rows of the held batch have been pulled. The result is always true if there
  // are no tables.
  bool RowsDone() const;

  // A batch, and its rows with their values (nullptr without tables).
  struct Taken {
    std::shared_ptr<const ReadyBatch> batch;
    std::shared_ptr<ComputeJob::BatchRows> rows;
  };
  Taken Take();  // requires has_batch() and RowsDone() (EG_CHECK)
  // Returns the batches to copy to a device in the current step. The compute executor shares the
  // result.
  const std::shared_ptr<NextBatch>& next() const { return next_; }

 private:
  void OnRead(absl::StatusOr<ReadyBatch> batch);
  void CopyToDevice();
  absl::Status AskRows();

  const Environment env_;
  const Attempt attempt_;
  const bool pulls_each_step_;  // otherwise all steps use the first pull
  const OnBatch on_batch_;
  bool asked_ = false;
  std::shared_ptr<const ReadyBatch> batch_;      // shared with the compute executor
  std::shared_ptr<ComputeJob::BatchRows> rows_;  // rows of batch_; used by one thread at a time
  std::uint64_t rows_pulls_ = 0;  // pulls of rows requested so far, including those of batch_
  const std::shared_ptr<NextBatch> next_ = std::make_shared<NextBatch>();
};

}  // namespace evergrad::worker
