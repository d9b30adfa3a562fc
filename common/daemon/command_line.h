// Reads the command line of a program into its options and arguments.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/daemon/option.h"

namespace evergrad::daemon {

struct GivenFlag {
  Option* option = nullptr;
  std::string value;
};

// Stores the arguments, sets the options for which there is a flag, and sets their set_by_flag.
// argv[0] is skipped. Returns the given flags in order (their pointers point into `options`), or a
// UserError with one line per mistake. `unexpected` is added to the message about an argument that
// is not expected.
absl::StatusOr<std::vector<GivenFlag>> ReadCommandLine(int argc, const char* const* argv,
                                                       std::vector<Option>* options,
                                                       const std::vector<Argument>& arguments,
                                                       const std::string& unexpected);

}  // namespace evergrad::daemon
