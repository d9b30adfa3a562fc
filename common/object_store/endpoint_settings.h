// Finds the endpoint of an object store from flags and environment variables. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fs/object_uri.h"
#include "common/object_store/credentials.h"
#include "common/object_store/endpoint.h"
#include "common/object_store/file_systems.h"

namespace evergrad::object_store {

// Returns the URL without a slash at its end. Returns a user's error, which begins with `origin`
// ("--s3-endpoint", "AWS_ENDPOINT_URL"), unless the URL is https://HOST or https://HOST:PORT, or
// http:// with a loopback address as its host. No error contains a user, password or query.
absl::StatusOr<std::string> CheckEndpoint(absl::string_view origin, absl::string_view url);

// Returns the endpoint for a bucket. Where an option is "", the environment variables that
// AddStoreOptions names apply, and then the address of AWS or Google. A wrong value is a user's
// error that names its flag or variable.
absl::StatusOr<Endpoint> EndpointOf(fs::StoreKind kind, absl::string_view bucket,
                                    const StoreOptions& options, const Variables& variables);

}  // namespace evergrad::object_store
