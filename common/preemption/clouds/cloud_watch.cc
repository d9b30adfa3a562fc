#include "common/preemption/clouds/cloud_watch.h"

#include "common/base/check.h"
#include "common/preemption/clouds/auto_watch.h"
#include "common/preemption/clouds/aws_watch.h"
#include "common/preemption/clouds/azure_watch.h"
#include "common/preemption/clouds/gce_watch.h"

namespace evergrad::preemption {

absl::string_view Answer::Header(absl::string_view name) const {
  for (const auto& [known, value] : headers)
    if (known == name) return value;
  return "";
}

std::unique_ptr<CloudWatch> MakeCloudWatch(absl::string_view source) {
  if (source == "gce") return std::make_unique<GceWatch>();
  if (source == "aws") return std::make_unique<AwsWatch>();
  if (source == "azure") return std::make_unique<AzureWatch>();
  EG_CHECK_MSG(source == "auto", std::string(source));
  return std::make_unique<AutoWatch>();
}

}  // namespace evergrad::preemption
