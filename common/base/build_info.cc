#include "common/base/build_info.h"

#include "absl/strings/str_cat.h"

// evergrad_build_version.inc is generated at each build. Only this source file includes it, so a
// new commit recompiles only this file.
#include "evergrad_build_version.inc"

namespace evergrad {

std::string Version() { return kGeneratedVersion; }
std::string BuildId() { return absl::StrCat(kGeneratedVersion, "+", kGeneratedCommit); }

}  // namespace evergrad
