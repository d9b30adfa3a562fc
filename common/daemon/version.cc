#include "common/daemon/version.h"

#include "absl/strings/str_cat.h"
#include "common/base/build_info.h"
#include "common/client/protocol.h"

namespace evergrad::daemon {
namespace {
#if defined(__clang__)
constexpr char kCompiler[] = "clang " __clang_version__;
#else
constexpr char kCompiler[] = "g++ " __VERSION__;
#endif
}  // namespace

std::string VersionLine(absl::string_view program) {
  return absl::StrCat(program, " ", BuildId(), " (protocol ", client::kProtocolVersion, ", ",
                      kCompiler, ")");
}

}  // namespace evergrad::daemon
