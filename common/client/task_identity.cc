#include "common/client/task_identity.h"

#include <unistd.h>

#include "common/fs/host.h"

namespace evergrad::client {

TaskIdentity ThisProcess() {
  TaskIdentity identity;
  identity.pid = getpid();
  identity.host = fs::HostName();
  identity.host_id = fs::HostId();
  identity.memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return identity;
}

void FillHello(const TaskIdentity& identity, v1::Hello* hello) {
  hello->set_pid(identity.pid);
  hello->set_host(identity.host);
  hello->mutable_endpoint()->set_address(identity.advertised_address);
  hello->mutable_endpoint()->set_host_id(identity.host_id);
  hello->set_metrics_address(identity.metrics_address);
  hello->set_insecure_listen(identity.insecure_listen);
  hello->set_memory_bytes(identity.memory_bytes);
}

}  // namespace evergrad::client
