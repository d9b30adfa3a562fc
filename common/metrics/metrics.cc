#include "common/metrics/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"

namespace evergrad::metrics {
namespace {

enum class Kind { kCounter, kGauge, kHistogram };

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kCounter: return "counter";
    case Kind::kGauge: return "gauge";
    case Kind::kHistogram: return "histogram";
  }
  return "untyped";
}

bool IsName(absl::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string Escape(absl::string_view text, bool quotes) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

std::string Number(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  char buffer[32];
  // The shortest text that reads back as the same double.
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), v).ptr;
  return std::string(buffer, end);
}

// Returns the identity of a metric within its family: `a="x",b="y"`.
std::string LabelText(const Labels& labels) {
  std::string out;
  for (const auto& [key, value] : labels) {
    EG_CHECK_MSG(IsName(key), "invalid label name: " + key);
    absl::StrAppend(&out, out.empty() ? "" : ",", key, "=\"", Escape(value, true), "\"");
  }
  return out;
}

std::string Braced(absl::string_view labels) {
  return labels.empty() ? "" : absl::StrCat("{", labels, "}");
}

void AppendHistogram(const std::string& name, const std::string& labels,
                     const Histogram::Snapshot& s, std::string* out) {
  const std::string comma = labels.empty() ? "" : labels + ",";
  for (std::size_t i = 0; i < s.cumulative.size(); ++i) {
    absl::StrAppend(out, name, "_bucket{", comma, "le=\"",
                    i < s.upper_bounds.size() ? Number(s.upper_bounds[i]) : "+Inf", "\"} ",
                    s.cumulative[i], "\n");
  }
  absl::StrAppend(out, name, "_sum", Braced(labels), " ", Number(s.sum), "\n");
  absl::StrAppend(out, name, "_count", Braced(labels), " ", s.cumulative.back(), "\n");
}

}  // namespace

void Gauge::Add(double v) {
  double old = value_.load(std::memory_order_relaxed);
  while (!value_.compare_exchange_weak(old, old + v, std::memory_order_relaxed)) {
  }
}

struct Histogram::Impl {
  mutable Mutex mu;
  std::vector<double> upper_bounds;
  std::vector<std::uint64_t> counts ABSL_GUARDED_BY(mu);  // One per bucket, the last for +Inf.
  double sum ABSL_GUARDED_BY(mu) = 0;
};

Histogram::Histogram(std::vector<double> upper_bounds) : impl_(std::make_shared<Impl>()) {
  EG_CHECK_MSG(std::is_sorted(upper_bounds.begin(), upper_bounds.end()),
               "histogram bounds must rise");
  MutexLock lock(&impl_->mu);
  impl_->counts.assign(upper_bounds.size() + 1, 0);
  impl_->upper_bounds = std::move(upper_bounds);
}

void Histogram::Observe(double v) const {
  const auto& bounds = impl_->upper_bounds;
  const auto bucket =
      static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), v) - bounds.begin());
  MutexLock lock(&impl_->mu);
  ++impl_->counts[bucket];
  impl_->sum += v;
}

Histogram::Snapshot Histogram::Read() const {
  Snapshot s;
  s.upper_bounds = impl_->upper_bounds;
  MutexLock lock(&impl_->mu);
  std::uint64_t total = 0;
  for (std::uint64_t n : impl_->counts) s.cumulative.push_back(total += n);
  s.sum = impl_->sum;
  return s;
}

struct Registry::Impl {
  struct Family {
    Kind kind = Kind::kGauge;
    std::string help;
    std::map<std::string, std::unique_ptr<Counter>> counters;
    std::map<std::string, std::unique_ptr<Gauge>> gauges;
    std::map<std::string, std::unique_ptr<Histogram>> histograms;
    std::map<std::string, std::function<std::string()>> callbacks;  // return the values as text
    // For gauges that were added together, the function that returns the samples of all of them;
    // they share it. Null for other callbacks.
    std::shared_ptr<const std::function<std::vector<Registry::Samples>()>> group;
    std::size_t member = 0;
    // The histograms of a changing set of objects. Null for other families.
    std::shared_ptr<const std::function<Registry::Histograms()>> histograms_of;
  };

  Family& FamilyOf(absl::string_view name, absl::string_view help, Kind kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    EG_CHECK_MSG(IsName(name), "invalid metric name: " + std::string(name));
    // Prometheus' convention, which promtool checks: counters end in _total, and no other metric
    // does.
    EG_CHECK_MSG((kind == Kind::kCounter) == absl::EndsWith(name, "_total"),
                 "the metric's name does not fit its kind: " + std::string(name));
    auto [it, added] = families.try_emplace(std::string(name));
    Family& family = it->second;
    if (added) {
      family.kind = kind;
      family.help = std::string(help);
    }
    EG_CHECK_MSG(family.kind == kind && family.help == help,
                 "conflicting declarations of a metric: " + std::string(name));
    return family;
  }

  mutable Mutex mu;
  std::map<std::string, Family> families ABSL_GUARDED_BY(mu);
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter& Registry::GetCounter(absl::string_view name, absl::string_view help,
                              const Labels& labels) {
  MutexLock lock(&impl_->mu);
  auto& slot = impl_->FamilyOf(name, help, Kind::kCounter).counters[LabelText(labels)];
  if (!slot) slot = std::make_unique<Counter>();
  return *slot;
}

Gauge& Registry::GetGauge(absl::string_view name, absl::string_view help, const Labels& labels) {
  MutexLock lock(&impl_->mu);
  auto& slot = impl_->FamilyOf(name, help, Kind::kGauge).gauges[LabelText(labels)];
  if (!slot) slot = std::make_unique<Gauge>();
  return *slot;
}

Histogram& Registry::GetHistogram(absl::string_view name, absl::string_view help,
                                  std::vector<double> upper_bounds, const Labels& labels) {
  MutexLock lock(&impl_->mu);
  auto& slot = impl_->FamilyOf(name, help, Kind::kHistogram).histograms[LabelText(labels)];
  if (!slot) slot = std::make_unique<Histogram>(std::move(upper_bounds));
  return *slot;
}

void Registry::AddCallbackGauge(absl::string_view name, absl::string_view help,
                                const Labels& labels, std::function<double()> read) {
  MutexLock lock(&impl_->mu);
  impl_->FamilyOf(name, help, Kind::kGauge).callbacks[LabelText(labels)] =
      [read = std::move(read)] { return Number(read()); };
}

void Registry::AddCallbackCounter(absl::string_view name, absl::string_view help,
                                  const Labels& labels, std::function<std::uint64_t()> read) {
  MutexLock lock(&impl_->mu);
  impl_->FamilyOf(name, help, Kind::kCounter).callbacks[LabelText(labels)] =
      [read = std::move(read)] { return absl::StrCat(read()); };
}

void Registry::AddCallbackTotal(absl::string_view name, absl::string_view help,
                                const Labels& labels, std::function<double()> read) {
  MutexLock lock(&impl_->mu);
  impl_->FamilyOf(name, help, Kind::kCounter).callbacks[LabelText(labels)] =
      [read = std::move(read)] { return Number(read()); };
}

void Registry::AddCallbackHistograms(absl::string_view name, absl::string_view help,
                                     std::function<Histograms()> read) {
  MutexLock lock(&impl_->mu);
  impl_->FamilyOf(name, help, Kind::kHistogram).histograms_of =
      std::make_shared<const std::function<Histograms()>>(std::move(read));
}

void Registry::AddCallbackGauges(absl::string_view name, absl::string_view help,
                                 std::function<Samples()> read) {
  AddCallbackGauges({{std::string(name), std::string(help)}},
                    [read = std::move(read)] { return std::vector<Samples>{read()}; });
}

void Registry::AddCallbackGauges(const std::vector<Named>& gauges,
                                 std::function<std::vector<Samples>()> read) {
  const auto group = std::make_shared<const std::function<std::vector<Samples>()>>(std::move(read));
  MutexLock lock(&impl_->mu);
  for (std::size_t i = 0; i < gauges.size(); ++i) {
    Impl::Family& family = impl_->FamilyOf(gauges[i].first, gauges[i].second, Kind::kGauge);
    family.group = group;
    family.member = i;
  }
}

std::string Registry::PrometheusText() const {
  // The needed data is copied first, because callbacks run without the registry's lock: a callback
  // may take the lock of its owner.
  struct Sample {
    std::string labels;
    std::string value;
    std::function<std::string()> read;
    std::optional<Histogram> histogram = std::nullopt;
  };
  struct Page {
    std::string name, help;
    Kind kind;
    std::vector<Sample> samples;
    std::shared_ptr<const std::function<std::vector<Samples>()>> group;
    std::size_t member = 0;
    std::shared_ptr<const std::function<Histograms()>> histograms_of;
  };
  std::vector<Page> pages;
  std::map<const void*, std::vector<Samples>> of_groups;  // cached for this scrape
  {
    MutexLock lock(&impl_->mu);
    for (const auto& [name, family] : impl_->families) {
      Page page{name,         family.help,   family.kind,         {},
                family.group, family.member, family.histograms_of};
      for (const auto& [labels, c] : family.counters)
        page.samples.push_back({labels, absl::StrCat(c->value()), nullptr});
      for (const auto& [labels, g] : family.gauges)
        page.samples.push_back({labels, Number(g->value()), nullptr});
      for (const auto& [labels, read] : family.callbacks)
        page.samples.push_back({labels, "", read});
      for (const auto& [labels, h] : family.histograms)
        page.samples.push_back({labels, "", nullptr, *h});
      pages.push_back(std::move(page));
    }
  }
  std::string out;
  for (Page& page : pages) {
    absl::StrAppend(&out, "# HELP ", page.name, " ", Escape(page.help, false), "\n# TYPE ",
                    page.name, " ", KindName(page.kind), "\n");
    if (page.group != nullptr) {
      auto found = of_groups.find(page.group.get());
      if (found == of_groups.end())
        found = of_groups.emplace(page.group.get(), (*page.group)()).first;
      const std::vector<Samples>& said = found->second;
      for (const auto& [labels, value] : page.member < said.size() ? said[page.member] : Samples())
        absl::StrAppend(&out, page.name, Braced(LabelText(labels)), " ", Number(value), "\n");
    }
    if (page.histograms_of != nullptr) {
      for (auto& [labels, histogram] : (*page.histograms_of)())
        page.samples.push_back({LabelText(labels), "", nullptr, std::move(histogram)});
    }
    for (const Sample& sample : page.samples) {
      if (!sample.histogram) {
        absl::StrAppend(&out, page.name, Braced(sample.labels), " ",
                        sample.read ? sample.read() : sample.value, "\n");
        continue;
      }
      AppendHistogram(page.name, sample.labels, sample.histogram->Read(), &out);
    }
  }
  return out;
}

Limit::Limit(Registry& registry, absl::string_view name, absl::string_view help, double limit)
    : current(registry.GetGauge(absl::StrCat(name, "_current"), absl::StrCat(help, " (now)"))),
      refused(registry.GetCounter(absl::StrCat(name, "_refused_total"),
                                  absl::StrCat(help, " (refused at the limit)"))) {
  registry.GetGauge(absl::StrCat(name, "_limit"), absl::StrCat(help, " (limit)")).Set(limit);
}

}  // namespace evergrad::metrics
