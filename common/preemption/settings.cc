#include "common/preemption/settings.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/preemption/metadata_client.h"

namespace evergrad::preemption {
namespace {

absl::Status Refuse(absl::string_view text) { return UserError(absl::InvalidArgumentError(text)); }

}  // namespace

std::string SourceOf(const Settings& settings) {
  return settings.source == "none" && !settings.notice_file.empty() ? "file" : settings.source;
}

absl::Status CheckSettings(const Settings& settings) {
  const std::string& source = settings.source;
  const bool cloud = source != "none" && source != "file";
  if (source == "file" && settings.notice_file.empty())
    return Refuse("--preemption-source file needs --preemption-notice-file FILE");
  if (!settings.notice_file.empty() && source != "file" && settings.source_is_set)
    return Refuse(absl::StrCat(
        "--preemption-notice-file belongs to --preemption-source file, got --preemption-source ",
        source));
  if (!settings.metadata_url.empty() && !cloud)
    return Refuse(absl::StrCat(
        "--preemption-metadata-url needs --preemption-source gce, aws, azure or auto, got ",
        SourceOf(settings)));
  if (!settings.metadata_url.empty() && !ParseMetadataUrl(settings.metadata_url))
    return Refuse(absl::StrCat(
        "--preemption-metadata-url: expected http://ADDRESS or http://ADDRESS:PORT with a numeric "
        "address or localhost, got `",
        settings.metadata_url, "`"));
  if (settings.on_rebalance == "drain" && source != "aws" && source != "auto")
    return Refuse(
        absl::StrCat("--on-rebalance drain needs --preemption-source aws or auto, because only EC2 "
                     "sends rebalance recommendations, got ",
                     SourceOf(settings)));
  return absl::OkStatus();
}

}  // namespace evergrad::preemption
