#include "common/transport/grpc/grpc_server.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/transport/certificate_task.h"
#include "common/transport/grpc/grpc_bytes.h"
#include "common/transport/grpc/grpc_credentials.h"
#include "common/transport/grpc/grpc_loop.h"
#include "common/transport/grpc/unix_socket.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/server_core.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {
namespace {

using namespace std::chrono_literals;

// Number of calls that can arrive while the thread is busy with other calls.
constexpr int kCallsArmed = 16;
// The time that a shutdown gives the peers to receive their final status.
constexpr auto kLastWords = 200ms;

// Counts the calls of one server that have operations in gRPC. Thread-safe.
class OpenCalls {
 public:
  void Add() {
    MutexLock lock(&mu_);
    ++count_;
  }
  void Remove() {
    MutexLock lock(&mu_);
    if (--count_ == 0) none_.NotifyAll();
  }
  void WaitForNone() {
    MutexLock lock(&mu_);
    while (count_ > 0) none_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// One incoming call. The method and the metadata decide whether the call is unary or a link. The
// object owns itself while gRPC has operations of the call. All members are accessed on the loop.
class ServerCall final : public Link,
                         public GrpcCall,
                         public std::enable_shared_from_this<ServerCall> {
 public:
  ServerCall(std::shared_ptr<GrpcLoop> loop, std::shared_ptr<ServerCore> core,
             std::shared_ptr<OpenCalls> open, grpc::AsyncGenericService* service)
      : loop_(std::move(loop)),
        core_(std::move(core)),
        open_(std::move(open)),
        service_(service),
        stream_(&context_) {}

  static void Arm(const std::shared_ptr<GrpcLoop>& loop, const std::shared_ptr<ServerCore>& core,
                  const std::shared_ptr<OpenCalls>& open, grpc::AsyncGenericService* service) {
    auto call = std::make_shared<ServerCall>(loop, core, open, service);
    call->self_ = call;
    loop->Add(call.get());
    open->Add();
    ++call->pending_;
    call->context_.AsyncNotifyWhenDone(static_cast<GrpcEvent*>(&call->done_));
    auto* queue = static_cast<grpc::ServerCompletionQueue*>(loop->queue());
    service->RequestCall(&call->context_, &call->stream_, queue, queue,
                         static_cast<GrpcEvent*>(&call->request_));
  }

  // ---- Link
  void Start(std::shared_ptr<LinkEvents> events) override {
    events_ = std::move(events);
    Read();
    // The event is posted, because a link must not emit an event inside a call into it.
    loop_->Post([self = shared_from_this()] {
      if (const auto e = self->events_) e->OnOpen();
    });
  }
  void Send(OutgoingPieces pieces) override {
    if (finish_sent_ || gone_) return;
    ++pending_;
    writing_ = true;
    stream_.Write(ToByteBuffer(std::move(pieces)), static_cast<GrpcEvent*>(&write_));
  }
  void Finish(absl::Status status) override {
    if (!final_) final_ = ToGrpc(status);
    SendFinal();
  }
  void Detach() override {
    events_ = nullptr;
    Cancel();
  }
  void Cancel() override {
    if (started_ && !gone_) context_.TryCancel();
  }

 private:
  enum class Op { kRequest, kRead, kWrite, kFinish, kDone };
  using Tag = GrpcTag<ServerCall, Op>;
  friend Tag;

  void OnOp(Op op, bool ok) {
    --pending_;
    switch (op) {
      case Op::kRequest:
        if (ok) {
          ++pending_;  // kDone arrives only for a call that has begun.
          started_ = true;
          Arm(loop_, core_, open_, service_);
          Begin();
        }
        break;
      case Op::kRead: OnRead(ok); break;
      case Op::kWrite:
        writing_ = false;
        if (!ok) broken_ = true;
        if (const auto events = events_; ok && events != nullptr) events->OnSent();
        SendFinal();
        break;
      case Op::kFinish: break;
      case Op::kDone: broken_ = broken_ || context_.IsCancelled(); break;
    }
    if (pending_ > 0) return;
    gone_ = true;  // a handler may still answer; the answer is dropped
    loop_->Remove(this);
    const auto self = std::exchange(self_, nullptr);
    if (unary_) core_->CallEnded();
    if (const auto events = std::exchange(events_, nullptr)) {
      events->OnEnd(broken_ ? absl::UnavailableError("peer is disconnected") : absl::OkStatus());
    }
    open_->Remove();
  }

  void Begin() {
    if (!core_->AdmitCall())
      return Finish(absl::ResourceExhaustedError(
          absl::StrCat("server has too many calls: streams_max=", core_->options().streams_max)));
    peer_.address = context_.peer();
    if (const auto auth = context_.auth_context(); auth != nullptr) {
      const auto names = auth->FindPropertyValues("x509_common_name");
      if (!names.empty()) peer_.certificate_name = std::string(names[0].data(), names[0].size());
    }
    if (core_->options().tls.empty()) {
      // Without TLS, no peer has an identity.
    } else if (auto task = CertificateTask(); task.ok()) {
      peer_.certificate_task = *std::move(task);
    } else {
      core_->CallEnded();
      return Finish(task.status());
    }
    const auto& metadata = context_.client_metadata();
    if (context_.method() == kDataMethod) {
      if (const auto it = metadata.find(kClientNameMetadata); it != metadata.end())
        peer_.client_name =
            CleanText(absl::string_view(it->second.data(), it->second.size()), kClientNameBytesMax);
      return core_->AcceptData(shared_from_this(), peer_);
    }
    if (const auto it = metadata.find("evergrad-call");
        it != metadata.end() && it->second == "stream") {
      return core_->AcceptStream(shared_from_this(), peer_, context_.method());
    }
    unary_ = true;
    Read();
    // Without this limit, a call whose peer never sends its request would count as open forever.
    const auto patience = core_->options().unary_request_max;
    loop_->PostAfter(patience, [weak = weak_from_this(), patience] {
      const auto self = weak.lock();
      if (self == nullptr || self->gone_ || self->request_read_) return;
      self->Finish(absl::DeadlineExceededError(
          absl::StrCat("no request arrived: unary_request_max_ms=", patience.count())));
    });
  }

  absl::StatusOr<std::string> CertificateTask() const {
    std::vector<std::string> uris;
    for (const auto& uri : context_.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
      uris.emplace_back(uri.data(), uri.size());
    return TaskOfUris(uris);
  }

  void Read() {
    incoming_.Clear();
    ++pending_;
    stream_.Read(&incoming_, static_cast<GrpcEvent*>(&read_));
  }

  void OnRead(bool ok) {
    if (ok) ok = received_.Reset(&incoming_);
    if (unary_) {
      if (final_) return;  // The answer is too late.
      request_read_ = true;
      if (!ok) return Finish(absl::InvalidArgumentError("the call has no readable request"));
      std::string request = received_.Text();
      received_.Clear();
      core_->Unary(peer_, context_.method(), std::move(request),
                   [self = shared_from_this()](absl::StatusOr<std::string> response) {
                     self->AnswerUnary(std::move(response));
                   });
      return;
    }
    if (!ok)
      return Finish(
          // the peer has ended the stream or has disconnected, as kDone reports later
          absl::OkStatus());
    if (const auto events = events_; events != nullptr && !final_)
      events->OnMessage(received_.view());
    received_.Clear();
    Read();  // Reading never stops (rule 2).
  }

  void AnswerUnary(absl::StatusOr<std::string> response) {
    if (final_ || gone_) return;
    if (!response.ok()) return Finish(response.status());
    final_ = grpc::Status::OK;
    finish_sent_ = true;
    ++pending_;
    stream_.WriteAndFinish(ToByteBuffer(*response), grpc::WriteOptions(), grpc::Status::OK,
                           static_cast<GrpcEvent*>(&finish_));
  }

  void SendFinal() {
    if (!final_ || writing_ || finish_sent_ || gone_) return;
    finish_sent_ = true;
    ++pending_;
    stream_.Finish(*final_, static_cast<GrpcEvent*>(&finish_));
  }

  const std::shared_ptr<GrpcLoop> loop_;
  const std::shared_ptr<ServerCore> core_;
  const std::shared_ptr<OpenCalls> open_;
  grpc::AsyncGenericService* const service_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  PeerInfo peer_;
  std::shared_ptr<ServerCall> self_;
  std::shared_ptr<LinkEvents> events_;
  grpc::ByteBuffer incoming_;
  ReceivedSlices received_;
  std::optional<grpc::Status> final_;
  int pending_ = 0;
  bool started_ = false, unary_ = false, request_read_ = false, writing_ = false,
       finish_sent_ = false, broken_ = false, gone_ = false;
  Tag request_{this, Op::kRequest}, read_{this, Op::kRead}, write_{this, Op::kWrite},
      finish_{this, Op::kFinish}, done_{this, Op::kDone};
};

class GrpcServer final : public Server {
 public:
  GrpcServer(std::shared_ptr<GrpcLoop> loop, bool own_loop, std::shared_ptr<ServerCore> core,
             std::unique_ptr<grpc::AsyncGenericService> service,
             std::shared_ptr<grpc::ServerCredentials> credentials,
             std::unique_ptr<grpc::Server> server, std::string address, std::string unix_path)
      : loop_(std::move(loop)),
        own_loop_(own_loop),
        core_(std::move(core)),
        service_(std::move(service)),
        credentials_(std::move(credentials)),
        server_(std::move(server)),
        address_(std::move(address)),
        unix_path_(std::move(unix_path)) {
    loop_->Post([this] {
      for (int i = 0; i < kCallsArmed; ++i) ServerCall::Arm(loop_, core_, open_, service_.get());
    });
  }
  ~GrpcServer() override { Shutdown(); }

  std::string address() const override { return address_; }
  std::string unix_path() const override { return unix_path_; }
  Stats stats() const override { return core_->stats(); }
  void Shutdown() override {
    EG_CHECK_MSG(!loop_->InThisThread(), "a server was shut down from its own callback");
    loop_->AwaitFlushed();
    loop_->RunAndWait([this] { core_->Shutdown(); });
    server_->Shutdown(std::chrono::system_clock::now() + kLastWords);
    open_->WaitForNone();
    if (own_loop_) loop_->Shutdown();
  }

 private:
  const std::shared_ptr<GrpcLoop> loop_;
  const bool own_loop_;
  const std::shared_ptr<OpenCalls> open_ = std::make_shared<OpenCalls>();
  const std::shared_ptr<ServerCore> core_;
  const std::unique_ptr<grpc::AsyncGenericService> service_;
  // The server asks them for its certificates. gRPC shares the ownership only while it starts.
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  const std::unique_ptr<grpc::Server> server_;
  const std::string address_;
  const std::string unix_path_;
};

void SetArguments(grpc::ServerBuilder& builder, const ServerOptions& options) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::max<std::uint64_t>(
      options.message_bytes_max, wire::kMessagePayloadBytesMax + wire::kStreamHeaderBytes)));
  builder.SetMaxSendMessageSize(-1);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // A second server on a port must be an error. With SO_REUSEPORT the second server would share the
  // port.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1500);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  grpc::ResourceQuota quota("evergrad");
  // Rule 5 requires a quota. With a quota below 64 MiB, gRPC cannot make progress.
  quota.Resize(std::max<std::uint64_t>(2 * options.budget_bytes_max, 64u << 20));
  builder.SetResourceQuota(quota);
}

// Returns the system's error text of a second attempt to bind, because gRPC reports only the
// failure.
std::string WhyNotBound(const std::string& listen, const std::string& unix_path) {
  const std::size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = getaddrinfo(host.c_str(), listen.substr(colon + 1).c_str(), &hints, &found);
      error != 0)
    return absl::StrCat(" error=", gai_strerror(error));
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool bound = bind(fd, found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  close(fd);
  freeaddrinfo(found);
  if (!bound) return absl::StrCat(" error=", std::strerror(error));
  return unix_path.empty() ? "" : " error=cannot create the unix socket";
}

}  // namespace

GrpcHome::GrpcHome() : builder_(std::make_unique<grpc::ServerBuilder>()) {
  auto queue = builder_->AddCompletionQueue();
  loop_ = std::make_shared<GrpcLoop>("grpc", std::move(queue));
}
GrpcHome::~GrpcHome() = default;

std::unique_ptr<grpc::ServerBuilder> GrpcHome::TakeBuilder() {
  MutexLock lock(&mu_);
  return std::move(builder_);
}

absl::StatusOr<std::unique_ptr<Server>> ListenGrpc(GrpcHome* home, TlsWatches* watches,
                                                   const ServerOptions& options, Handlers handlers,
                                                   fault::Failpoints* failpoints,
                                                   const health::Health* health) {
  const auto listen = ListenAddress(options);
  if (!listen.ok()) return listen.status();
  auto watch = watches->WatchOf(options.tls);
  if (!watch.ok()) return watch.status();
  auto credentials = ListenCredentials(*std::move(watch));
  const std::string unix_path =
      options.unix_path.size() > kUnixPathBytesMax ? "" : options.unix_path;

  std::unique_ptr<grpc::ServerBuilder> builder = home->TakeBuilder();
  std::shared_ptr<GrpcLoop> loop = builder != nullptr ? home->loop() : nullptr;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  if (builder == nullptr) {
    builder = std::make_unique<grpc::ServerBuilder>();
    queue = builder->AddCompletionQueue();
  }
  SetArguments(*builder, options);
  int port = 0, unix_bound = 0;
  builder->AddListeningPort(*listen, credentials, &port);
  if (!unix_path.empty())
    builder->AddListeningPort(absl::StrCat("unix:", unix_path), credentials, &unix_bound);
  auto service = std::make_unique<grpc::AsyncGenericService>();
  builder->RegisterAsyncGenericService(service.get());
  // The socket has mode 0600 from its creation, so that no other user can connect between bind and
  // chmod.
  const mode_t mask = umask(0177);
  auto server = builder->BuildAndStart();
  umask(mask);
  if (server == nullptr) {
    if (queue != nullptr) {
      queue->Shutdown();
      void* tag;
      bool ok;
      while (queue->Next(&tag, &ok)) {
      }
    }
    return absl::UnavailableError(absl::StrCat("cannot bind: listen=", *listen,
                                               unix_path.empty() ? "" : " unix_path=", unix_path,
                                               WhyNotBound(*listen, unix_path)));
  }
  const bool own_loop = loop == nullptr;
  if (own_loop) loop = std::make_shared<GrpcLoop>("grpc_server", std::move(queue));
  auto core = ServerCore::Make(options, std::move(handlers), loop, failpoints, health);
  std::string address = absl::StrCat(listen->substr(0, listen->rfind(':')), ":", port);
  return std::make_unique<GrpcServer>(std::move(loop), own_loop, std::move(core),
                                      std::move(service), std::move(credentials), std::move(server),
                                      std::move(address), unix_path);
}

}  // namespace evergrad::transport
