// The requests to the API server of Kubernetes that the operator sends: about the TrainingJobs of
// one namespace, and about Events. Tests replace the interface.
//
// The calls block, and are thread-safe. The errors are those of ErrorOf (watch_reader.h) for an
// answer of the API server, and those of http::Client (common/http/client.h) if there is none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/interruption.h"
#include "kubernetes/api/job_object.h"
#include "kubernetes/api/watch_reader.h"

namespace evergrad::kubernetes {

struct JobList {
  std::vector<JobObject> objects;
  std::string resource_version;  // a watch from this version continues the list
  std::size_t unreadable = 0;    // objects that ParseJobObject refused
};

class Api {
 public:
  virtual ~Api() = default;
  // Lists all objects, page by page, but at most about 50,000. OutOfRange: the list changed too
  // much between two pages, so the caller must begin again.
  virtual absl::StatusOr<JobList> List() = 0;
  // Reports the events after `resource_version` until the server ends the watch, which it does
  // after some minutes. Returns OK at a regular end. `on_event` runs on the calling thread, also
  // for events of the kind kError, after which the watch ends soon.
  virtual absl::Status Watch(const std::string& resource_version,
                             const WatchReader::OnEvent& on_event) = 0;
  // Replaces the finalizers, or the status, of the object. The error is Aborted if the object
  // has changed since its `resource_version`. Returns the changed object.
  virtual absl::StatusOr<JobObject> SetFinalizers(const JobObject& object,
                                                  const std::vector<std::string>& finalizers) = 0;
  virtual absl::StatusOr<JobObject> SetStatus(const JobObject& object, const Json& status) = 0;
  // Creates an Event (core/v1). AlreadyExists: an Event of this name exists.
  virtual absl::Status CreateEvent(const Json& event) = 0;
};

struct ApiOptions {
  std::string server;      // "https://10.0.0.1:443", without a path
  std::string ca_file;     // PEM file of the server's authority; "" for the system's authorities
  std::string token_file;  // the bearer token, read again for each request; "" for none
  std::string name_space;
  http::Interruption* interruption = nullptr;  // ends all calls; outlives the object
};
// Returns InvalidArgument, a user's error, if a file cannot be read. ApiOptions must have passed
// CheckApiOptions.
absl::StatusOr<std::unique_ptr<Api>> MakeHttpApi(ApiOptions options);
// Checks the server's URL and the name of the namespace. Only a server on a loopback address may be
// called without TLS (a proxy such as `kubectl proxy`), because a token would be visible on the
// network. The errors are user's errors that name the flags of evergrad-operator. Pure.
absl::Status CheckApiOptions(const ApiOptions& options);

}  // namespace evergrad::kubernetes
