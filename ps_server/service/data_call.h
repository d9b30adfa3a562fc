// One data request: split into sections, and answered once when the last section is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/fault/failpoints.h"
#include "common/grants/grant_guard.h"
#include "common/transport/transport.h"
#include "common/wire/data_frame.h"
#include "ps_server/service/job_table.h"
#include "ps_server/shard/shard.h"

namespace evergrad::ps_server {

// The executors of the shards write the sections, each its own; the thread that answers the last
// section builds the response. Shared by the executors that still hold a section. If it is dropped
// unanswered (an executor was shut down), the transport tells the caller.
class DataCall {
 public:
  struct PushOutcome {
    PushResult result;
    MapVersion version;  // kStale
  };
  struct PullOutcome {
    PullResult result;
    MapVersion version;   // kStale
    std::string invalid;  // not "": the section was malformed
  };

  // `failpoints` outlives the call and may be null, like `counters`. `answer_bytes_max` limits the
  // answer independently of the request's reservation. `executors`: shard s is on executor s %
  // executors, which writes copied values one after another.
  DataCall(transport::ReceivedFrame frame, wire::Request request,
           std::unique_ptr<transport::DataResponder> responder, std::uint32_t executors,
           std::uint64_t answer_bytes_max,
           std::shared_ptr<std::atomic<std::uint64_t>> largest_frame,
           std::shared_ptr<JobCounters> counters, fault::Failpoints* failpoints);

  const wire::Request& request() const { return request_; }
  PushOutcome& push(std::size_t i) { return pushes_[i]; }
  PullOutcome& pull(std::size_t i) { return pulls_[i]; }

  // Reserves bytes of the answer for copied values, within the reservation of the request, before
  // any memory is allocated. Returns false if they do not fit, and the section becomes invalid with
  // this text.
  bool ReserveCopy(std::uint64_t bytes, std::string* invalid);

  // [35] Returns whether the request carries a proof for this push, which belongs to it. Any
  // executor; the same guard each time.
  bool IsProved(grants::GrantGuard& guard, const v1::PushSection& push);

  // A failpoint of a test drops the answer: the caller gets Internal instead.
  void LoseAnswer() { answer_lost_.store(true, std::memory_order_relaxed); }
  // Adds the number of sections that have their outcomes. The last one answers.
  void FinishSections(std::size_t count);
  void FinishSection() { FinishSections(1); }
  // Answers a request without sections.
  void Answer();

  // The limit of the answer is its reservation.
  std::uint64_t answer_bytes_max() const {
    return std::min(request_.header->response_bytes_max(), answer_bytes_max_);
  }

  static void NoteFrame(std::uint64_t bytes, std::atomic<std::uint64_t>* largest);
  // Answers a malformed frame, which has changed nothing.
  static transport::Frame Refusal(const absl::Status& status);

 private:
  transport::ReceivedFrame frame_;
  wire::Request request_;  // views into frame_
  std::unique_ptr<transport::DataResponder> responder_;
  const std::uint32_t executors_;
  const std::uint64_t answer_bytes_max_;
  const std::shared_ptr<std::atomic<std::uint64_t>> largest_frame_;  // a metric of the host
  const std::shared_ptr<JobCounters>
      counters_;  // of its job, shared with the table; null: the job is not known
  fault::Failpoints* const failpoints_;
  std::vector<PushOutcome> pushes_;
  std::vector<PullOutcome> pulls_;
  std::atomic<std::size_t> remaining_;
  std::atomic<bool> answer_lost_{false};
  std::atomic<std::uint64_t> copied_{
      0};  // bytes of values that were or are being copied for the answer
  std::atomic<std::uint32_t> proved_{0};  // bit i: proof i of the header fits
};

}  // namespace evergrad::ps_server
