// The text that --help prints.
#pragma once

#include <string>
#include <vector>

#include "common/daemon/option.h"

namespace evergrad::daemon {

// Returns the text. `has_file` states whether the program has --config FILE.
std::string HelpText(const std::string& program, const std::string& summary, bool has_file,
                     const std::vector<Option>& options, const std::vector<Argument>& arguments);

}  // namespace evergrad::daemon
