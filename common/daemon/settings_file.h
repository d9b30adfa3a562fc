// The YAML file of a daemon's settings (`--config`): reads it into the options, and writes the
// reference of all options.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/daemon/option.h"

namespace evergrad::daemon {

// Sets the options that the file names, except those with set_by_flag. Returns a UserError with one
// line per mistake, each with file:line:column.
absl::Status ReadSettingsFile(const std::string& path, std::vector<Option>* options);

// Returns all options as YAML with their explanations. The text is a valid settings file with the
// default values.
std::string ReferenceYaml(const std::vector<Option>& options);

}  // namespace evergrad::daemon
