// The description of its own process that a worker or a server sends to the coordinator.
#pragma once

#include <cstdint>
#include <string>

#include "evergrad/v1/session.pb.h"

namespace evergrad::client {

// Limit of a host name that is stored and shown. No Linux host has a longer name, and the limit
// keeps tables readable.
inline constexpr std::size_t kHostBytesMax = 64;

struct TaskIdentity {
  std::string advertised_address;  // address of the process, as peers and users see it
  std::string metrics_address;     // "" if the process serves no metrics
  bool insecure_listen = false;
  std::int64_t pid = 0;
  std::string host, host_id;
  std::uint64_t memory_bytes = 0;  // memory of the machine
};

// Fills in pid, host, host_id and memory of this process. The daemon adds the other members.
TaskIdentity ThisProcess();
// Copies `identity` to `hello`.
void FillHello(const TaskIdentity& identity, v1::Hello* hello);

}  // namespace evergrad::client
