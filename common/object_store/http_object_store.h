// An ObjectStore over HTTP: S3 and compatible stores, and the XML API of Google Cloud Storage.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/fs/object_uri.h"
#include "common/http/client.h"
#include "common/http/interruption.h"
#include "common/metrics/metrics.h"
#include "common/object_store/credentials.h"
#include "common/object_store/object_store.h"
#include "common/time/clock.h"

namespace evergrad::object_store {

struct Endpoint {
  std::string url;     // "https://s3.eu-central-1.amazonaws.com", without a slash at its end
  std::string region;  // for the signature
  // The bucket is in the path (https://host/bucket/key), or else in the host's name.
  bool bucket_in_path = false;
};

// Limits of the retries of one request. The n-th wait is random between 0 and
// min(wait_max, wait_first * 2^n). A request is not repeated once `time_max` has passed since its
// first attempt.
struct RetryLimits {
  std::chrono::milliseconds wait_first{100}, wait_max{10'000}, time_max{180'000};
};

struct StoreParts {
  fs::StoreKind kind = fs::StoreKind::kS3;
  Endpoint endpoint;
  RetryLimits retries;
  // All outlive the store. `registry` may be null.
  http::Client* client = nullptr;
  CredentialSource* credentials = nullptr;
  http::Interruption* interruption = nullptr;
  const Clock* clock = nullptr;
  metrics::Registry* registry = nullptr;
};

// The first write with PutMode::kIfAbsent probes whether the store honours the condition: it writes
// a small object twice (its key is `.evergrad-probe-…` beside the first key), and deletes it. If the
// store ignores the condition, this and all later writes with kIfAbsent return FailedPrecondition,
// with the store's name, because two coordinators could both write one manifest.
std::unique_ptr<ObjectStore> MakeHttpObjectStore(std::string bucket, StoreParts parts);

}  // namespace evergrad::object_store
