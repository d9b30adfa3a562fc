#include "common/base/build_info.h"

// Generated at each build; only this file depends on it, so that a commit recompiles one file.
#include "evergrad_build_version.inc"

namespace evergrad {

std::string Version() { return kGeneratedVersion; }
std::string BuildId() { return std::string(kGeneratedVersion) + "+" + kGeneratedCommit; }

}  // namespace evergrad
