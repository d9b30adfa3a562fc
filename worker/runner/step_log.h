// The step records for the next heartbeat. Used on the control executor only. The log is bounded:
// if it has `records_max` records, the oldest record is dropped and counted as refused
// (metrics::Limit).
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "common/metrics/metrics.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::worker {

class StepLog {
 public:
  // `limit` outlives the log.
  StepLog(std::size_t records_max, metrics::Limit* limit)
      : records_max_(records_max), limit_(limit) {}

  void Add(v1::StepRecord record) {
    if (records_.size() >= records_max_) {
      records_.pop_front();
      limit_->refused.Add();
    }
    last_loss_ = record.loss();
    records_.push_back(std::move(record));
    ShowSize();
  }
  // Moves the records into a heartbeat, together with the loss of the last step.
  void MoveTo(v1::WorkerProgress* progress) {
    progress->set_loss(last_loss_);
    for (v1::StepRecord& record : records_) *progress->add_steps_log() = std::move(record);
    Clear();
  }
  void Clear() {
    records_.clear();
    ShowSize();
  }

 private:
  void ShowSize() { limit_->current.Set(static_cast<double>(records_.size())); }

  const std::size_t records_max_;
  metrics::Limit* const limit_;
  std::deque<v1::StepRecord> records_;
  double last_loss_ = 0;  // 0 before the first step; a new job does not change it
};

}  // namespace evergrad::worker
