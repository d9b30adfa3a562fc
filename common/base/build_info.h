// Which build this is: shown by --version, `task list` and the session's hello.
#pragma once

#include <string>

namespace evergrad {

std::string Version();  // "0.1.0"
std::string BuildId();  // "0.1.0+1a2b3c4d5e6f", "-dirty" behind it for a changed checkout,
                        // "0.1.0+unknown" outside of one

}  // namespace evergrad
