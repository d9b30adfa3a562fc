// The server side of `dense_bench --servers` and `rows_bench --servers`, for another machine than
// the client's. It serves the shards of both benchmarks, and on the next port the raw TCP stream
// with which they are compared. It prints its addresses in one line, and runs until it is ended.
// With port 0 it takes any two free ports. It does not authenticate its clients, so it listens on
// an address off loopback only with --insecure.
//
//   bench_server [--insecure] HOST:PORT
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/transport/grpc/grpc_transport.h"
#include "tests/bench/parties.h"
#include "tests/bench/shard_server.h"

namespace evergrad::bench {
namespace {

int Main(int argc, char** argv) {
  const bool insecure = argc == 3 && std::string(argv[1]) == "--insecure";
  const std::string listen = argc == 2 || insecure ? argv[argc - 1] : "";
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0 || listen.rfind("--", 0) == 0) {
    std::fprintf(stderr,
                 "usage: bench_server [--insecure] HOST:PORT (an address of this machine; the next "
                 "port is used, too)\n");
    return 2;
  }
  if (listen.rfind("127.", 0) != 0 && !insecure) {
    std::fprintf(stderr,
                 "bench_server: %s is not loopback, and anybody who reaches it may push to its "
                 "shards; say --insecure if you mean it\n",
                 listen.c_str());
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  int raw = -1;
  std::string at = listen;
  if (std::atoi(listen.c_str() + colon + 1) != 0) {
    raw = ListenRaw(RawAddressOf(listen));
  } else {
    for (int tries = 0; raw < 0 && tries < 100; ++tries) {
      const int first = ListenRaw(listen);
      if (first < 0) break;
      at = AddressOf(first);
      raw = ListenRaw(RawAddressOf(at));
      close(first);
    }
  }
  if (raw < 0) {
    std::fprintf(stderr,
                 "bench_server: cannot listen at %s: want an IPv4 address of this machine and two "
                 "free ports\n",
                 listen.c_str());
    return 1;
  }
  const pid_t pid = fork();  // before gRPC has threads
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ServeRawForEver(raw);
  }
  close(raw);
  transport::TuneAllocator();
  const ShardServer server(at, {kDenseJob, 16, 64});
  SayLine(1, server.address());
  for (;;) pause();
}

}  // namespace
}  // namespace evergrad::bench

int main(int argc, char** argv) { return evergrad::bench::Main(argc, argv); }
