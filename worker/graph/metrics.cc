#include "worker/graph/metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"

namespace evergrad::worker {
void MetricSum::Add(const MetricSum& other) {
  count += other.count;
  sum += other.sum;
  if (counts.size() < other.counts.size()) counts.resize(other.counts.size());
  for (std::size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
}

absl::StatusOr<Metric> MakeMetric(const std::string& name, const config::LossSpec& spec,
                                  const tensor::Shape& output) {
  const auto* const metric = config::FindBuilt(config::Metrics(), name);
  if (metric == nullptr)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("unknown metric `", name, "`; one of ",
                     absl::StrJoin(config::NamesOf(config::Metrics(), true), ", "))));
  if (const absl::Status defined = config::CheckMetric(name, spec, output); !defined.ok())
    return LossError(spec, defined.message());
  return Metric{name, metric->kind};
}

}  // namespace evergrad::worker
