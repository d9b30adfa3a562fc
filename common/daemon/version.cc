#include "common/daemon/version.h"

#include "absl/strings/str_cat.h"

namespace evergrad::daemon {
namespace {
#if defined(__clang__)
constexpr char kCompiler[] = "clang " __clang_version__;
#else
constexpr char kCompiler[] = "g++ " __VERSION__;
#endif
}  // namespace

std::string BuildId() { return EVERGRAD_VERSION; }

std::string VersionLine(absl::string_view program) { return absl::StrCat(program, " ", BuildId(), " (protocol ", kProtocolVersion, ", ", kCompiler, ")"); }

}  // namespace evergrad::daemon
