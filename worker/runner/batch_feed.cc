#include "worker/runner/batch_feed.h"

#include "common/base/check.h"
#include "common/base/status.h"

namespace evergrad::worker {

BatchFeed::BatchFeed(Environment environment, const Work& work, OnBatch on_batch)
    : env_(environment),
      attempt_(work.attempt),
      pulls_each_step_(work.kind == WorkKind::kTrain),
      on_batch_(std::move(on_batch)) {}

void BatchFeed::Ask() {
  if (std::exchange(asked_, true)) return;
  // The reader answers on its own thread, or on this thread before Next returns. The continuation
  // is posted in both cases.
  env_.streams->Next(attempt_, [weak = weak_from_this(),
                                control = env_.control](absl::StatusOr<ReadyBatch> batch) {
    auto shared = std::make_shared<absl::StatusOr<ReadyBatch>>(std::move(batch));
    control->Post([weak, shared] {
      if (const auto self = weak.lock()) self->OnRead(std::move(*shared));
    });
  });
}

void BatchFeed::OnRead(absl::StatusOr<ReadyBatch> batch) {
  asked_ = false;
  if (!batch.ok()) return on_batch_(batch.status());
  batch_ = std::make_shared<const ReadyBatch>(*std::move(batch));
  CopyToDevice();
  on_batch_(AskRows());
}

// Copies the batch now, while the device computes the previous step or the run waits for
// servers.
void BatchFeed::CopyToDevice() {
  const std::shared_ptr<ComputeJob>& compute = env_.job->compute();
  if (!compute->on_device()) return;
  next_->Put(batch_);
  env_.compute->Post([compute, next = next_, which = batch_.get()] {
    if (auto batch = next->Take(which)) compute->CopyAhead(std::move(batch));
  });
}

// Requests the rows, which are pulled with the dense values of their step or as soon as their ids
// are known.
absl::Status BatchFeed::AskRows() {
  EG_ASSIGN_OR_RETURN(
      rows_, env_.job->compute()->RowsOf(*batch_, env_.job->layout(), &env_.job->unique_ids));
  if (rows_ == nullptr) return absl::OkStatus();
  ++rows_pulls_;
  env_.exchange->WantRows(rows_pulls_, rows_->slots, pulls_each_step_ ? rows_pulls_ : 1);
  env_.exchange->Flush();
  return absl::OkStatus();
}

bool BatchFeed::RowsDone() const {
  return rows_ == nullptr || env_.exchange->RowsDone(rows_pulls_);
}

BatchFeed::Taken BatchFeed::Take() {
  EG_CHECK(has_batch());
  if (rows_ != nullptr) {
    rows_->as_pulled = env_.job->compute()->on_device();
    rows_->values = env_.exchange->TakeRows(rows_pulls_, /*widen=*/!rows_->as_pulled);
  }
  return {std::move(batch_), std::move(rows_)};
}

}  // namespace evergrad::worker
