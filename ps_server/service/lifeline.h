// Proves to another process of this host that this process has ended. A closed session alone does
// not prove the end of a process (P7).
//
// A process binds an abstract unix socket under a name that contains its uid. The kernel frees the
// name when the last thread of the process has ended, whatever the reason. No file remains, and a
// process that is only stopped keeps the name. If another process can bind this name in the same
// network namespace of the same boot, the first process has ended. If the names cannot be compared
// (another host, another namespace, no abstract sockets), nothing is proved, and a new server waits
// as if there were no lifeline.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace evergrad::ps_server {

class Lifeline {
 public:
  // Creates the lifeline of this process. Tests create several lifelines in one process.
  explicit Lifeline(std::uint64_t process_uid);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // Returns the boot and the network namespace in which the name is bound, or "" if the name could
  // not be bound. With "" the end of this process cannot be proved.
  const std::string& place() const { return place_; }
  // Returns true if the process `process_uid`, which had its name in `place`, has ended. Returns
  // false if the process runs, or if its end cannot be determined.
  bool HasEnded(std::uint64_t process_uid, absl::string_view place) const;

 private:
  std::string place_;
  int socket_ = -1;
};

}  // namespace evergrad::ps_server
