// Compute Engine: the value `instance/preempted` of the metadata server, which becomes TRUE 30 s
// before the machine is reclaimed.
//
// A request waits at the server for the next change of the value, for at most a minute. The request
// names the ETag of the previous answer, so that a change between two requests is not missed. The
// server marks each answer with the header `Metadata-Flavor: Google`. An answer without this header
// counts as a failure.
#pragma once

#include <string>

#include "common/preemption/clouds/cloud_watch.h"
#include "common/preemption/clouds/failures.h"

namespace evergrad::preemption {

class GceWatch final : public CloudWatch {
 public:
  absl::string_view source() const override { return "gce"; }
  Ask Begin() override;
  Turn OnAnswer(const Answer& answer) override;

 private:
  // Whether the next answer belongs to a request that waited at the server for a change. The first
  // request, and a request after a failure, do not wait.
  bool waits_ = false;
  Retries retries_;
};

// Returns the request for the present value. The answer also shows whether the machine is in this
// cloud.
Request GceRequest();
// Returns whether the answer has the header of Google's metadata server.
bool IsFromGce(const Answer& answer);

}  // namespace evergrad::preemption
