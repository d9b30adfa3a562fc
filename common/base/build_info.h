// The version and the build id of this program, shown by --version, `task list` and the session's
// Hello.
#pragma once

#include <string>

namespace evergrad {

std::string Version();  // "0.1.0"
// Returns "0.1.0+1a2b3c4d5e6f"; "-dirty" follows if the checkout had changes. Returns
// "0.1.0+unknown" outside of a checkout.
std::string BuildId();

}  // namespace evergrad
