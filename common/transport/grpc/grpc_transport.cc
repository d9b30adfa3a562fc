#include "common/transport/grpc/grpc_transport.h"

#include <absl/base/internal/sysinfo.h>
#include <grpc/support/log.h>
#include <malloc.h>

#include <cstdio>
#include <cstring>

#include "common/transport/grpc/grpc_client.h"
#include "common/transport/grpc/grpc_server.h"
#include "common/transport/streams/data_stream.h"
#include "common/transport/tls/tls_watches.h"

namespace evergrad::transport {
namespace {

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(fault::Failpoints* failpoints, health::Health* health)
      : failpoints_(failpoints), health_(health) {
    if (health != nullptr) health->liveness().Watch("grpc", home_.loop().get());
  }
  ~GrpcTransport() override {
    home_.loop()->AwaitFlushed();
    home_.loop()->Shutdown();
  }

  absl::StatusOr<std::unique_ptr<Server>> Listen(const ServerOptions& options,
                                                 Handlers handlers) override {
    return ListenGrpc(&home_, &watches_, options, std::move(handlers), failpoints_, health_);
  }
  absl::StatusOr<std::unique_ptr<Channel>> Dial(const Address& address,
                                                const ChannelOptions& options) override {
    return DialGrpc(home_.loop(), pool_, &watches_, address, options, failpoints_);
  }

 private:
  fault::Failpoints* const failpoints_;
  health::Health* const health_;
  GrpcHome home_;
  TlsWatches watches_;
  // The ownership is shared with the answers in use, whose memory comes from this pool.
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(kClientPoolBytesMax);
};

// Makes Abseil read the number of CPUs and their frequency from /sys before the first connection.
// Otherwise the first contended lock of the process reads them, and gRPC 1.51 takes locks between
// connect() and its look at `errno`. If one of the files is missing, this read changes `errno`.
// Then gRPC reports a connection in progress as "No such file or directory" and drops it. The file
// with the frequency is missing on nearly every machine. The file with the number of CPUs is
// missing in a bare chroot. Abseil reads both files only once.
void ReadCpuFactsBeforeFirstConnection() {
  absl::base_internal::NumCPUs();
  absl::base_internal::NominalCPUFrequency();
}

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(fault::Failpoints* failpoints,
                                             health::Health* health) {
  ReadCpuFactsBeforeFirstConnection();
  // gRPC's log is suppressed: errors are returned as statuses, and unauthenticated peers could fill
  // the disk with log lines. gRPC's last message before it aborts the process is kept.
  gpr_set_log_function([](gpr_log_func_args* line) {
    if (std::strstr(line->message, "assertion failed") != nullptr)
      std::fprintf(stderr, "gRPC: %s:%d: %s\n", line->file, line->line, line->message);
  });
  return std::make_unique<GrpcTransport>(failpoints, health);
}

void TuneAllocator() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_ARENA_MAX, 2);
}

}  // namespace evergrad::transport
