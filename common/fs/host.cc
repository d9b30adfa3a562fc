#include "common/fs/host.h"

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/fs/file.h"

namespace evergrad::fs {
namespace {

constexpr std::size_t kIdBytesMax = 256;
constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";

std::string FirstLineOf(const char* path) {
  const auto contents = ReadFile(path, kIdBytesMax);
  return contents.ok() ? std::string(absl::StripAsciiWhitespace(*contents)) : std::string();
}

// Returns `machine` with the id of the network namespace, or "" if the machine or the namespace is
// unknown.
std::string WithNetwork(const std::string& machine) {
  char space[64];
  const ssize_t n = ::readlink("/proc/self/ns/net", space, sizeof(space));
  if (machine.empty() || n <= 0) return "";
  return absl::StrCat(machine, "/", absl::string_view(space, static_cast<std::size_t>(n)));
}

}  // namespace

std::string HostId() {
  // The boot id is preferred, because it differs between machines that were cloned with one machine
  // id. It also changes at a reboot, which no socket survives.
  std::string machine = FirstLineOf(kBootId);
  if (machine.empty()) machine = FirstLineOf("/etc/machine-id");
  return WithNetwork(machine);
}

std::string BootAndNetwork() { return WithNetwork(FirstLineOf(kBootId)); }

std::string HostName() {
  char name[256];
  if (::gethostname(name, sizeof(name)) != 0) return "localhost";
  name[sizeof(name) - 1] = '\0';
  return name;
}

}  // namespace evergrad::fs
