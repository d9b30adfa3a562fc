// Counters, gauges and histograms with Prometheus text exposition (version 0.0.4). Thread-safe.
//
// Names are `evergrad_<role>_<noun>_<unit>`; counters end in `_total`. A registry is a value owned
// by main; there are no global registries.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace evergrad::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void Add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(double v) { value_.store(v, std::memory_order_relaxed); }
  void Add(double v);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// A copy shares the counts of the original.
class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void Observe(double v) const;
  struct Snapshot {
    std::vector<double> upper_bounds;
    std::vector<std::uint64_t> cumulative;  // one more entry than upper_bounds, for +Inf
    double sum = 0;
  };
  Snapshot Read() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

class Registry {
 public:
  Registry();
  ~Registry();
  // Returns the metric of this name and these labels, which is created on first use and exists as
  // long as the registry. A known name must have the same type and help text (EG_CHECK).
  Counter& GetCounter(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Gauge& GetGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Histogram& GetHistogram(absl::string_view name, absl::string_view help,
                          std::vector<double> upper_bounds, const Labels& labels = {});
  // Adds a gauge whose value is read at each scrape, on the scraping thread and without a lock of
  // the registry. A second call with the same name and labels replaces `read`.
  void AddCallbackGauge(absl::string_view name, absl::string_view help, const Labels& labels,
                        std::function<double()> read);
  // Adds a counter whose value is kept by the caller and returned by `read`. The value must never
  // fall.
  void AddCallbackCounter(absl::string_view name, absl::string_view help, const Labels& labels,
                          std::function<std::uint64_t()> read);
  // Like AddCallbackCounter, for a total that is not a whole number, such as seconds.
  void AddCallbackTotal(absl::string_view name, absl::string_view help, const Labels& labels,
                        std::function<double()> read);
  // Like AddCallbackGauge, for a changing set of objects (jobs). Each object has one sample at the
  // time of the scrape. `read` must bound the number of objects.
  using Samples = std::vector<std::pair<Labels, double>>;
  void AddCallbackGauges(absl::string_view name, absl::string_view help,
                         std::function<Samples()> read);
  // Adds several gauges at once, as {name, help}. `read` is called once per scrape. It returns one
  // list of samples for each gauge, in the order of `gauges`.
  using Named = std::pair<std::string, std::string>;
  void AddCallbackGauges(const std::vector<Named>& gauges,
                         std::function<std::vector<Samples>()> read);
  // Like AddCallbackGauges, for histograms: each object has one histogram at the time of the
  // scrape. A histogram is shared, not copied, so its owner may observe and drop it at any time.
  // The histogram of an object that has ended is no longer shown.
  using Histograms = std::vector<std::pair<Labels, Histogram>>;
  void AddCallbackHistograms(absl::string_view name, absl::string_view help,
                             std::function<Histograms()> read);
  std::string PrometheusText() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The metrics of a limit: its present fill level, its value, and the number of refusals. They are
// exported as <name>_current, <name>_limit and <name>_refused_total.
struct Limit {
  Limit(Registry& registry, absl::string_view name, absl::string_view help, double limit);
  Gauge& current;
  Counter& refused;
};

}  // namespace evergrad::metrics
