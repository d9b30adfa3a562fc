// Closures as an API: the calls of the clients of a functions job (docs/closures.md, api.proto).
//
// An answer of nullopt means that the call waits: the caller asks again when the job has changed,
// and `waiting_for` says for what the call waits. A repeated call gets the answer of the first one.
// An answer may be given away once everything that the store has accepted is durable. The error is
// FailedPrecondition if the job has ended or ends; if it has failed, the error is its first cause.
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/function_closures.h"
#include "coordinator/jobs/job_host.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class FunctionCalls : private JobPart {
 public:
  template <class Response>
  using Answer = std::optional<absl::StatusOr<Response>>;
  struct Hooks {
    std::function<absl::Status()> refusal;     // Why an ended or ending job takes no calls.
    std::function<std::string()> waiting_for;  // What the job waits for; "" if it works.
  };
  // `closures` and `rounds` outlive this object.
  FunctionCalls(const JobPart& part, FunctionClosures* closures, const CheckpointRounds* rounds,
                Hooks hooks);

  Answer<v1::ScheduleClosureResponse> Schedule(const v1::ScheduleClosureRequest& request,
                                               std::string* waiting_for);
  Answer<v1::JoinClosuresResponse> Join(const v1::JoinClosuresRequest& request,
                                        std::string* waiting_for);
  Answer<v1::ClosuresDoneResponse> ClosuresDone(const v1::ClosuresDoneRequest& request);
  Answer<v1::FetchResultResponse> FetchResult(const v1::FetchResultRequest& request,
                                              std::string* waiting_for);
  Answer<v1::CancelClosuresResponse> CancelClosures(const v1::CancelClosuresRequest& request,
                                                    std::string* waiting_for);
  Answer<v1::ReleaseResultsResponse> ReleaseResults(const v1::ReleaseResultsRequest& request);
  Answer<v1::FinishJobResponse> Finish(const v1::FinishJobRequest& request,
                                       std::string* waiting_for);

 private:
  absl::Status CallRefusal(const v1::ClosureCall& call) const;
  absl::Status ScheduleRefusal(const v1::ScheduleClosureRequest& request) const;
  // Returns what a schedule() waits for, or "".
  std::string ScheduleWait(const v1::ScheduleClosureRequest& request);
  // [20] Returns the error that `call` is told now. Returns nothing and sets `wait` if an error is
  // to be told, but not yet.
  std::optional<v1::RaisedError> TellError(const v1::ClosureCall& call, bool* wait);
  void Release(const v1::IntervalSet& released);
  // Returns what a join waits for, or "". TellError goes first: an error ends the wait.
  std::string Unjoined(bool durable);
  std::string JobWait(const std::string& text) const;  // `text`, and what the job waits for.

  FunctionClosures* const closures_;
  const CheckpointRounds* const rounds_;
  const Hooks hooks_;
};

}  // namespace evergrad::coordinator
