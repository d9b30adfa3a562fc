// The files of a run for callers that do not see the coordinator's runs folder: ListRunFiles gives
// a list with digests, and ReadRunFile gives chunks of the files.
//
// Files are read on the file thread in chunks of limited size. No call can read other files: a runs
// folder belongs to the coordinator, and the file names come from a fixed list. Not thread-safe:
// the control executor owns this.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/service/control_calls.h"
#include "coordinator/service/service_parts.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class RunFileListing;

class RunFileCalls {
 public:
  explicit RunFileCalls(ServiceParts parts) : parts_(parts) {}

  void Serve(const v1::ListRunFilesRequest& request, const Responder& responder);
  void Serve(const v1::ReadRunFileRequest& request, const Responder& responder);

 private:
  void StepListing(std::shared_ptr<RunFileListing> listing, v1::ListRunFilesResponse response,
                   Responder responder);
  // Returns true if the call may begin. If too many calls are in progress, answers with an error
  // and returns false.
  bool Begin(const Responder& responder);

  const ServiceParts parts_;
  std::uint32_t calls_ = 0;  // number of calls in progress on the file thread
};

}  // namespace evergrad::coordinator
