#include "ps_server/service/lifeline.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/fs/host.h"

namespace evergrad::ps_server {
namespace {

// Returns a socket with the name of `process_uid`, or -1.
int BindName(std::uint64_t process_uid) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A zero as first byte makes the name abstract, so that no file exists.
  const std::string name = absl::StrCat(absl::string_view("\0", 1), "evergrad/ps-server/",
                                        absl::Hex(process_uid, absl::kZeroPad16));
  std::copy(name.begin(), name.end(), address.sun_path);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

Lifeline::Lifeline(std::uint64_t process_uid) {
  const std::string place = fs::BootAndNetwork();
  if (place.empty()) return;
  socket_ = BindName(process_uid);
  if (socket_ >= 0) place_ = place;
}

Lifeline::~Lifeline() {
  if (socket_ >= 0) ::close(socket_);
}

bool Lifeline::HasEnded(std::uint64_t process_uid, absl::string_view place) const {
  if (process_uid == 0 || place_.empty() || place != place_) return false;
  const int fd = BindName(process_uid);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

}  // namespace evergrad::ps_server
