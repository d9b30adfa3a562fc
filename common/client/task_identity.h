// What a task tells the coordinator about its own process: one place for workers and servers.
#pragma once

#include <cstdint>
#include <string>

#include "evergrad/v1/session.pb.h"

namespace evergrad::client {

// What is kept and shown of a host's name: no Linux host has a longer one, and tables stay readable
// beside one that claims to.
inline constexpr std::size_t kHostBytesMax = 64;

struct TaskIdentity {
  std::string metrics_address;  // "" when not served
  bool insecure_listen = false;
  std::int64_t pid = 0;
  std::string host, host_id;
  std::uint64_t memory_bytes = 0;  // of the machine
};

// pid, host, host_id and memory of this process; the rest is the daemon's.
TaskIdentity ThisProcess();
// The endpoint's host_id too; its address is the caller's.
void FillHello(const TaskIdentity& identity, v1::Hello* hello);

}  // namespace evergrad::client
