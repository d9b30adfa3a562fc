// The table of metrics, and with which losses each is defined. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/layers/losses.h"

namespace evergrad::config {

struct MetricDescriptor {
  std::string name;
  bool built = true;
  std::vector<std::string> losses = {};  // those that it is defined for
  bool one_label = false;                // it needs a loss of one label an example
  std::string instead = {};   // the metric for users who meant it for another loss with classes
  std::string nickname = {};  // another name that users try
};

// In the order of messages and of the reference.
const std::vector<MetricDescriptor>& Metrics();

bool IsDefinedFor(const MetricDescriptor& metric, absl::string_view loss);
// Whether the metric, which is one of Metrics(), can be measured at this loss, whose output has
// this shape for one example. InvalidArgument without the place and the name of the loss, which the
// caller puts in front.
absl::Status CheckMetric(absl::string_view name, const LossSpec& loss, const tensor::Shape& output);

}  // namespace evergrad::config
