// The metrics of requests to object stores. All stores of a process share them. Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"

namespace evergrad::object_store {

enum class Operation {
  kHead,
  kGet,
  kPut,
  kBeginUpload,
  kPutPart,
  kCompleteUpload,
  kAbortUpload,
  kCopy,
  kList,
  kDelete,
};
inline constexpr std::size_t kOperations = 10;
absl::string_view NameOf(Operation operation);  // "put_part", for labels and messages

class StoreMetrics {
 public:
  // With a null registry, nothing is counted. The registry outlives the metrics.
  explicit StoreMetrics(metrics::Registry* registry);

  enum class Result {
    kOk,     // an answer to the request; "no such object" is also an answer
    kRetry,  // the attempt failed, and the request is repeated
    kError,  // the attempt failed, and the request has failed
  };
  // Counts one attempt of a request.
  void CountAttempt(Operation operation, Result result, std::chrono::nanoseconds duration) const;
  void CountBytes(std::uint64_t sent, std::uint64_t received) const;

 private:
  struct OfOperation {
    std::array<metrics::Counter*, 3> results{};
    metrics::Counter* retries = nullptr;
    metrics::Histogram* seconds = nullptr;
  };
  std::array<OfOperation, kOperations> operations_{};
  metrics::Counter* sent_ = nullptr;  // null without a registry
  metrics::Counter* received_ = nullptr;
};

}  // namespace evergrad::object_store
