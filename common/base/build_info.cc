#include "common/base/build_info.h"

#include "absl/strings/str_cat.h"

// This file is generated at each build. Only this source file depends on it, so a commit recompiles
// one file.
#include "evergrad_build_version.inc"

namespace evergrad {

std::string Version() { return kGeneratedVersion; }
std::string BuildId() { return absl::StrCat(kGeneratedVersion, "+", kGeneratedCommit); }

}  // namespace evergrad
