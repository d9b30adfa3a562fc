// Tests the identity that a process states in its Hello.
#include "common/client/task_identity.h"

#include <unistd.h>

#include <catch2/catch.hpp>

using namespace evergrad;

TEST_CASE("a process reports its address, pid, host and the machine's memory in the Hello") {
  client::TaskIdentity identity = client::ThisProcess();
  CHECK(identity.pid == getpid());
  CHECK_FALSE(identity.host.empty());
  CHECK(identity.memory_bytes > 1u << 20);
  identity.metrics_address = "127.0.0.1:9";
  identity.insecure_listen = true;
  identity.advertised_address = "a:1";
  v1::Hello hello;
  client::FillHello(identity, &hello);
  CHECK(hello.pid() == identity.pid);
  CHECK(hello.host() == identity.host);
  CHECK(hello.endpoint().host_id() == identity.host_id);
  CHECK(hello.endpoint().address() == "a:1");
  CHECK(hello.metrics_address() == "127.0.0.1:9");
  CHECK(hello.insecure_listen());
  CHECK(hello.memory_bytes() == identity.memory_bytes);
}
