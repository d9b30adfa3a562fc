// The calls by which clients of a functions job schedule closures and wait for them
// (docs/closures.md, api.proto).
//
// If a function returns nullopt, the client's call must wait. The caller then calls the function
// again when the job has changed, and `waiting_for` has the reason of the wait, as text for people.
// A repeated call gets the answer of the first call. An answer may be sent once all commits that
// the store has accepted are durable. A call to a job that fails or has failed returns the first
// cause of the failure. A call to a job that is ending or has ended in another way returns
// Cancelled or FailedPrecondition.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
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
    // The error for calls to an ended or ending job; OK if the job takes calls.
    std::function<absl::Status()> refusal;
    // Returns what the job waits for, as text; "" if it does not wait.
    std::function<std::string()> waiting_for;
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
  // Returns a text that says what a schedule() waits for, or "" if it need not wait.
  std::string ScheduleWait(const v1::ScheduleClosureRequest& request);
  // Returns the error with which `call` must be answered now. If there is an error that clients may
  // not learn yet (LEDGER line 20), returns nullopt and sets `wait`.
  std::optional<v1::RaisedError> TellError(const v1::ClosureCall& call, bool* wait);
  void Release(const v1::IntervalSet& released);
  // Returns a text that says what a join waits for, or "" if it need not wait. Callers call
  // TellError first, because an error ends the wait.
  std::string Unjoined(bool durable);
  std::string JobWait(const std::string& text) const;  // Appends the job's wait to `text`.

  FunctionClosures* const closures_;
  const CheckpointRounds* const rounds_;
  const Hooks hooks_;
};

}  // namespace evergrad::coordinator
