// An ObjectStore over HTTP: S3 and compatible stores, and the XML API of Google Cloud Storage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/http/interruption.h"
#include "common/metrics/metrics.h"
#include "common/object_store/credentials.h"
#include "common/object_store/endpoint.h"
#include "common/object_store/object_store.h"
#include "common/object_store/retry.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

struct StoreParts {
  fs::StoreKind kind = fs::StoreKind::kS3;
  Endpoint endpoint;
  RetryLimits retries;
  // Seed of the random waits and of the marks of writers, for tests. 0 takes random numbers of the
  // operating system: two writers with one seed would take each other's objects for their own.
  std::uint64_t seed = 0;
  // All outlive the store. `interruption` and `registry` may be null.
  http::Client* client = nullptr;
  CredentialSource* credentials = nullptr;
  http::Interruption* interruption = nullptr;
  const Clock* clock = nullptr;
  metrics::Registry* registry = nullptr;
};

// The first write with PutMode::kIfAbsent probes whether the store honours the condition: it writes
// a small object twice (its key is `.evergrad-probe-…` beside the first key), and deletes it. If
// the store ignores the condition, this and all later writes with kIfAbsent return
// FailedPrecondition, with the store's name, because two coordinators could both write one
// manifest.
std::unique_ptr<ObjectStore> MakeHttpObjectStore(std::string bucket, StoreParts parts);

}  // namespace evergrad::object_store
