// Compute Engine: the value `instance/preempted` of the metadata server, which becomes TRUE 30 s
// before the machine is reclaimed.
//
// A request waits at the server for the next change of the value, for at most a minute. It names
// the ETag of the last answer, so that a change between two requests is not missed. The server
// marks each answer with the header `Metadata-Flavor: Google`; an answer without it is of no use.
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
  // The first request, and the request after a failure, are answered at once.
  bool waits_ = false;
  Retries retries_;
};

// Returns the request for the value at present. It also identifies the cloud.
Request GceRequest();
// Returns whether the answer has the header of Google's metadata server.
bool IsFromGce(const Answer& answer);

}  // namespace evergrad::preemption
