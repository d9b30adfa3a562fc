// The version and the build id of this program, shown by --version, `task list` and the session's
// Hello.
#pragma once

#include <string>

namespace evergrad {

std::string Version();  // "0.1.0"
// Returns the version and the Git commit, "0.1.0+1a2b3c4d5e6f". "-dirty" is appended if the program
// was built from a checkout with uncommitted changes. Returns "0.1.0+unknown" if the program was
// not built from a checkout.
std::string BuildId();

}  // namespace evergrad
