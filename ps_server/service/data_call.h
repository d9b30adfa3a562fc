// One data request. The request is split into sections, and answered once every section has its
// outcome.
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

// Each executor writes the outcomes of the sections of its own shards. The thread that finishes the
// last section builds the response. The executors that still hold a section share the call. If the
// call is destroyed without an answer (an executor was shut down), the transport reports an error
// to the caller.
class DataCall {
 public:
  struct PushOutcome {
    PushResult result;
    MapVersion version;  // the version that this server knows, for kStale
  };
  struct PullOutcome {
    PullResult result;
    MapVersion version;   // the version that this server knows, for kStale
    std::string invalid;  // if not "", the section was malformed
  };

  // `failpoints` and `counters` outlive the call and may be null. `answer_bytes_max` limits the
  // answer independently of the request's reservation. Shard s is on executor s % executors. The
  // values in the answer are grouped by executor, because each executor copies its values into one
  // block of memory.
  DataCall(transport::ReceivedFrame frame, wire::Request request,
           std::unique_ptr<transport::DataResponder> responder, std::uint32_t executors,
           std::uint64_t answer_bytes_max,
           std::shared_ptr<std::atomic<std::uint64_t>> largest_frame,
           std::shared_ptr<JobCounters> counters, fault::Failpoints* failpoints);

  const wire::Request& request() const { return request_; }
  PushOutcome& push(std::size_t i) { return pushes_[i]; }
  PullOutcome& pull(std::size_t i) { return pulls_[i]; }
  JobCounters* counters() const { return counters_.get(); }  // null if the job is unknown

  // Reserves bytes of the answer for copied values, within the reservation of the request. Called
  // before memory for the values is allocated. If the bytes exceed the reservation, returns false
  // and sets `invalid` to the error of the section.
  bool ReserveCopy(std::uint64_t bytes, std::string* invalid);

  // Returns whether the request contains a valid proof of the grant for this push (LEDGER line 35).
  // Any executor may call IsProved, with the same guard each time.
  bool IsProved(grants::GrantGuard& guard, const v1::PushSection& push);

  // Makes the call answer with Internal in place of its result, for a failpoint that simulates the
  // loss of the answer.
  void LoseAnswer() { answer_lost_.store(true, std::memory_order_relaxed); }
  // Records that `count` sections have their outcomes. The thread that records the last section
  // answers the request.
  void FinishSections(std::size_t count);
  void FinishSection() { FinishSections(1); }
  // Answers a request that has no sections.
  void Answer();

  // Returns the limit of the answer in bytes.
  std::uint64_t answer_bytes_max() const {
    return std::min(request_.header->response_bytes_max(), answer_bytes_max_);
  }

  static void NoteFrame(std::uint64_t bytes, std::atomic<std::uint64_t>* largest);
  // Returns the answer to a malformed frame. Such a frame has changed no shard.
  static transport::Frame Refusal(const absl::Status& status);

 private:
  transport::ReceivedFrame frame_;
  wire::Request request_;  // views into frame_
  std::unique_ptr<transport::DataResponder> responder_;
  const std::uint32_t executors_;
  const std::uint64_t answer_bytes_max_;
  // The size of the largest frame, shared with a metric of ShardHost.
  const std::shared_ptr<std::atomic<std::uint64_t>> largest_frame_;
  // The counters of the job, shared with the table of jobs; null if the job is unknown.
  const std::shared_ptr<JobCounters> counters_;
  fault::Failpoints* const failpoints_;
  std::vector<PushOutcome> pushes_;
  std::vector<PullOutcome> pulls_;
  std::atomic<std::size_t> remaining_;
  std::atomic<bool> answer_lost_{false};
  // Bytes of values that were copied, or are being copied, for the answer.
  std::atomic<std::uint64_t> copied_{0};
  std::atomic<std::uint32_t> proved_{0};  // bit i is set if proof i of the header is valid
};

}  // namespace evergrad::ps_server
