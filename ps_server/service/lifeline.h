// Proves to another process of this host that this one has ended (promise P7: a closed session
// alone does not).
//
// A process binds an abstract unix socket under a name made of its uid, and the kernel frees the
// name when the last of the process's threads has ended, however it ends: nothing is left behind,
// and a process that is only stopped keeps it. Whoever can bind that name in the same network
// namespace of the same boot knows that the process is gone. Where names cannot be compared
// (another host, a namespace of its own, no abstract sockets) nothing is proved, and one waits as
// long as without it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::ps_server {

class Lifeline {
 public:
  // Of this process, or in tests one of several in it.
  explicit Lifeline(std::uint64_t process_uid);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The boot and network namespace in which the name is held; "": it could not be bound, and this
  // process's end cannot be proved.
  const std::string& place() const { return place_; }
  // Whether the process that held its name in `place` has ended; false, too, where that cannot be
  // known.
  bool HasEnded(std::uint64_t process_uid, absl::string_view place) const;

 private:
  std::string place_;
  int socket_ = -1;
};

}  // namespace evergrad::ps_server
