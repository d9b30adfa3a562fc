// The newest list of the coordinator's jobs, as far as objects have made them. Not thread-safe.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/time/clock.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::kubernetes {

class JobListView {
 public:
  // A coordinator that has not answered for this long is reported in the objects. A restart takes
  // less time.
  static constexpr std::chrono::seconds kTroubleAfter{5};

  // Takes a list that was requested at `asked`. Only jobs of `owner` count, because another caller
  // may have chosen the same request id.
  void Take(const v1::ListJobsResponse& list, const std::string& owner, MonoTime asked);
  // The coordinator has not answered.
  void Fail(const absl::Status& status, MonoTime now);

  // Returns the newest job with this request id, or null. Also without an answer, the last known
  // jobs stay.
  const v1::JobStatus* Find(const std::string& request_id) const;
  // Returns whether the list was requested after `time`, and the coordinator has answered since.
  bool IsNewerThan(MonoTime time) const { return error_.ok() && asked_ > time; }
  // Returns "", or the error if the coordinator has not answered for kTroubleAfter.
  std::string Trouble(MonoTime now) const;
  bool reachable() const { return error_.ok(); }

 private:
  std::map<std::string, v1::JobStatus> jobs_;  // by request id
  MonoTime asked_{-1};
  MonoTime failing_since_{0};
  absl::Status error_ = absl::UnavailableError("the coordinator has not been asked yet");
};

}  // namespace evergrad::kubernetes
