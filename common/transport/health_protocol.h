// The messages of the gRPC health protocol (grpc.health.v1.Health, method Check), without generated
// code: HealthCheckRequest{string service = 1}, HealthCheckResponse{SERVING = 1, NOT_SERVING = 2}.
// common/health has the names of the services.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::transport {

inline constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
inline constexpr std::size_t kHealthServiceBytesMax = 127;

// `service` has at most kHealthServiceBytesMax bytes.
std::string HealthRequest(absl::string_view service);
// Returns the name of the service. The error is InvalidArgument for malformed bytes and for a
// longer name.
absl::StatusOr<std::string> ParseHealthRequest(absl::string_view bytes);

std::string HealthResponse(bool serving);
// Returns whether the status is SERVING. The error is Internal for malformed bytes.
absl::StatusOr<bool> ParseHealthResponse(absl::string_view bytes);

}  // namespace evergrad::transport
