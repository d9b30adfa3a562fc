#include "common/object_store/store_metrics.h"

namespace evergrad::object_store {
namespace {

constexpr std::array<const char*, kOperations> kNames{
    "head",         "get",  "put",  "begin_upload", "put_part", "complete_upload",
    "abort_upload", "copy", "list", "delete"};
constexpr std::array<const char*, 3> kResults{"ok", "retry", "error"};

}  // namespace

absl::string_view NameOf(Operation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

StoreMetrics::StoreMetrics(metrics::Registry* registry) {
  if (registry == nullptr) return;
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (std::size_t result = 0; result < kResults.size(); ++result) {
      operations_[i].results[result] =
          &registry->GetCounter("evergrad_store_requests_total",
                                "Attempts of requests to object stores, by operation and result",
                                {{"operation", kNames[i]}, {"result", kResults[result]}});
    }
    operations_[i].retries =
        &registry->GetCounter("evergrad_store_retries_total", "Repeated requests to object stores",
                              {{"operation", kNames[i]}});
    // A small request takes some tens of milliseconds, and a part on a slow network a minute.
    operations_[i].seconds = &registry->GetHistogram(
        "evergrad_store_request_seconds", "Duration of an attempt of a request to an object store",
        {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 300},
        {{"operation", kNames[i]}});
  }
  const auto bytes = [&](const char* direction) {
    return &registry->GetCounter(
        "evergrad_store_bytes_total",
        "Bytes of bodies that were sent to and received from object stores",
        {{"direction", direction}});
  };
  sent_ = bytes("sent");
  received_ = bytes("received");
}

void StoreMetrics::CountAttempt(Operation operation, Result result,
                                std::chrono::nanoseconds duration) const {
  if (sent_ == nullptr) return;
  const OfOperation& metrics = operations_[static_cast<std::size_t>(operation)];
  metrics.results[static_cast<std::size_t>(result)]->Add();
  if (result == Result::kRetry) metrics.retries->Add();
  metrics.seconds->Observe(std::chrono::duration<double>(duration).count());
}

void StoreMetrics::CountBytes(std::uint64_t sent, std::uint64_t received) const {
  if (sent_ == nullptr) return;
  sent_->Add(sent);
  received_->Add(received);
}

}  // namespace evergrad::object_store
