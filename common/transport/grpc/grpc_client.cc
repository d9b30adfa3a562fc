#include "common/transport/grpc/grpc_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/transport/grpc/grpc_bytes.h"
#include "common/transport/grpc/grpc_credentials.h"
#include "common/transport/grpc/unix_socket.h"
#include "common/transport/lane/lane.h"
#include "common/transport/not_connected.h"
#include "common/transport/streams/data_stream.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/message_stream.h"
#include "common/transport/streams/post_limit.h"
#include "common/transport/tls/tls_files.h"
#include "common/transport/tls/tls_probe.h"
#include "common/wire/stream_message.h"

namespace evergrad::transport {
namespace {

// gRPC's text for a refusal by PeerVerifier.
constexpr char kOurVerdict[] = "Custom verification check failed";
// Time for which the result of a probe is used.
constexpr MonoTime kHintHolds = std::chrono::seconds(2);

// Finds the reason for a failed connection, and passes the status with this reason to the given
// function. The function is called on the loop, possibly after Explain has returned.
using Explain = std::function<void(const grpc::Status&, std::function<void(absl::Status)>)>;

class ClientLink final : public Link,
                         public GrpcCall,
                         public std::enable_shared_from_this<ClientLink> {
 public:
  ClientLink(std::shared_ptr<GrpcLoop> loop, std::shared_ptr<grpc::Channel> channel,
             absl::string_view method, std::string client_name, Explain explain)
      : loop_(std::move(loop)),
        stub_(std::move(channel)),
        method_(method),
        client_name_(std::move(client_name)),
        explain_(std::move(explain)) {}

  void Start(std::shared_ptr<LinkEvents> events) override {
    if (loop_->stopping()) return;  // The listener has been detached.
    events_ = std::move(events);
    self_ = shared_from_this();  // keeps this object until the last operation has completed
    loop_->Add(this);
    if (method_ != kDataMethod) {
      context_.AddMetadata("evergrad-call", "stream");
    } else if (!client_name_.empty()) {
      context_.AddMetadata(kClientNameMetadata, client_name_);
    }
    stream_ = stub_.PrepareCall(&context_, method_, loop_->queue());
    ++pending_;
    stream_->StartCall(static_cast<GrpcEvent*>(&start_));
  }
  void Send(OutgoingPieces pieces) override {
    if (closing_) return;
    ++pending_;
    writing_ = true;
    stream_->Write(ToByteBuffer(std::move(pieces)), static_cast<GrpcEvent*>(&write_));
  }
  void Finish(absl::Status) override {
    half_close_ = true;
    HalfClose();
  }
  void Detach() override {
    events_ = nullptr;
    context_.TryCancel();
  }
  void Cancel() override { context_.TryCancel(); }

  enum class Op { kStart, kRead, kWrite, kWritesDone, kFinish };
  void OnOp(Op op, bool ok) {
    --pending_;
    switch (op) {
      case Op::kStart:
        if (!ok) {
          EndCall();
          break;
        }
        open_ = true;
        Read();
        HalfClose();
        if (const auto events = events_) events->OnOpen();
        break;
      case Op::kRead:
        if (!ok) {
          EndCall();
          break;
        }
        if (const auto events = events_; events != nullptr && received_.Reset(&incoming_))
          events->OnMessage(received_.view());
        received_.Clear();
        Read();
        break;
      case Op::kWrite:
        writing_ = false;
        if (!ok) break;  // the read fails as well and reports the reason
        if (const auto events = events_) events->OnSent();
        HalfClose();
        break;
      case Op::kWritesDone: break;
      case Op::kFinish: ended_ = true; break;
    }
    if (pending_ > 0 || !ended_) return;
    loop_->Remove(this);
    const auto self = std::exchange(self_, nullptr);
    explain_(status_, [self](absl::Status status) {
      if (const auto events = std::exchange(self->events_, nullptr))
        events->OnEnd(std::move(status));
    });
  }

 private:
  void Read() {
    incoming_.Clear();
    ++pending_;
    stream_->Read(&incoming_, static_cast<GrpcEvent*>(&read_));
  }
  void HalfClose() {
    if (!half_close_ || !open_ || writing_ || closing_) return;
    closing_ = true;
    ++pending_;
    stream_->WritesDone(static_cast<GrpcEvent*>(&writes_done_));
  }
  void EndCall() {
    if (std::exchange(ending_, true)) return;
    closing_ = true;
    ++pending_;
    stream_->Finish(&status_, static_cast<GrpcEvent*>(&finish_));
  }

  const std::shared_ptr<GrpcLoop> loop_;
  grpc::GenericStub stub_;
  const std::string method_;
  const std::string client_name_;
  const Explain explain_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::shared_ptr<LinkEvents> events_;
  std::shared_ptr<ClientLink> self_;
  grpc::ByteBuffer incoming_;
  ReceivedSlices received_;
  grpc::Status status_;
  int pending_ = 0;
  bool open_ = false, writing_ = false, half_close_ = false, closing_ = false, ending_ = false,
       ended_ = false;
  using Tag = GrpcTag<ClientLink, Op>;
  Tag start_{this, Op::kStart}, read_{this, Op::kRead}, write_{this, Op::kWrite},
      writes_done_{this, Op::kWritesDone}, finish_{this, Op::kFinish};
};

// The channel's state on the loop; shared with its calls and streams.
class ChannelCore : public std::enable_shared_from_this<ChannelCore> {
 public:
  ChannelCore(std::shared_ptr<GrpcLoop> loop, std::shared_ptr<BufferPool> pool, std::string target,
              std::string probe_address, std::shared_ptr<const TlsWatch> watch,
              ExpectedPeer expected, ChannelOptions options)
      : loop_(std::move(loop)),
        pool_(std::move(pool)),
        target_(std::move(target)),
        probe_address_(std::move(probe_address)),
        watch_(std::move(watch)),
        expected_(std::move(expected)),
        options_(std::move(options)) {
    Connect();
  }

  void Unary(const std::string& method, const std::string& request,
             std::chrono::system_clock::time_point deadline, UnaryDone done) {
    if (closed_ || loop_->stopping()) return done(absl::CancelledError("channel closed"));
    if (calls_.size() >= options_.inflight_calls_max)
      return done(absl::ResourceExhaustedError(
          absl::StrCat("too many calls in flight: max=", options_.inflight_calls_max)));
    UseReloadedFiles();
    const std::uint64_t id = next_call_++;
    calls_.emplace(
        id, std::make_unique<UnaryCall>(this, id, method, request, deadline, std::move(done)));
  }

  std::shared_ptr<Link> Open(absl::string_view method, bool fresh) {
    if (fresh) {
      Connect();
    } else {
      UseReloadedFiles();
    }
    return std::make_shared<ClientLink>(
        loop_, channel_, method, options_.client_name,
        [self = shared_from_this()](const grpc::Status& status,
                                    std::function<void(absl::Status)> then) {
          self->Explained(status, std::move(then));
        });
  }

  // Ends all calls with Cancelled, and calls their callbacks before it returns. The object of a
  // call is destroyed later, once gRPC has completed the call.
  void Close() {
    closed_ = true;
    self_ = calls_.empty() ? nullptr : shared_from_this();
    std::vector<UnaryDone> waiting;
    for (auto& [id, call] : calls_) {
      waiting.push_back(std::exchange(call->done, nullptr));
      call->Cancel();
    }
    for (auto& done : waiting) {
      if (done) done(absl::CancelledError("channel closed"));
    }
    OnProbed("");
  }

  const ChannelOptions& options() const { return options_; }
  const std::shared_ptr<GrpcLoop>& loop() const { return loop_; }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  struct UnaryCall final : GrpcEvent, GrpcCall {
    UnaryCall(ChannelCore* channel, std::uint64_t number, const std::string& method,
              const std::string& request, std::chrono::system_clock::time_point deadline,
              UnaryDone d)
        : core(channel), id(number), done(std::move(d)) {
      context.set_deadline(deadline);
      core->loop_->Add(this);
      grpc::GenericStub stub(core->channel_);
      reader = stub.PrepareUnaryCall(&context, method, ToByteBuffer(request), core->loop_->queue());
      reader->StartCall();
      reader->Finish(&reply, &status, static_cast<GrpcEvent*>(this));
    }
    void Cancel() override { context.TryCancel(); }
    void OnEvent(bool) override { core->OnAnswer(id); }

    ChannelCore* const core;
    const std::uint64_t id;
    UnaryDone done;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer reply;
    grpc::Status status;
  };

  void OnAnswer(std::uint64_t id) {
    const auto keep = shared_from_this();
    auto node = calls_.extract(id);
    UnaryCall& call = *node.mapped();
    loop_->Remove(&call);
    if (calls_.empty()) self_ = nullptr;
    if (!call.done) return;
    ReceivedSlices slices;
    if (!call.status.ok()) {
      Explained(call.status,
                [done = std::move(call.done)](absl::Status status) { done(std::move(status)); });
    } else if (!slices.Reset(&call.reply)) {
      call.done(absl::InternalError("unreadable answer"));
    } else {
      call.done(slices.Text());
    }
  }

  // Returns whether gRPC had no connection for the call. Another attempt may then succeed. gRPC
  // reports this state only by a text, whereas an error from a peer has details.
  static bool NoConnection(const grpc::Status& status) {
    const std::string& message = status.error_message();
    return status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty() &&
           (absl::StartsWith(message, "failed to connect to all addresses") ||
            absl::StartsWith(message, "DNS resolution failed")) &&
           !absl::StrContains(message, "certificate verify failed") &&
           !absl::StrContains(message, kOurVerdict);
  }
  // Returns whether the peer disconnected during a handshake, in which case gRPC omits the reason.
  static bool WantsProbe(const std::string& message) {
    return absl::StrContains(message, "Socket closed") || absl::StrContains(message, "handshake") ||
           absl::StrContains(message, "reset");
  }

  void Explained(const grpc::Status& said, std::function<void(absl::Status)> then) {
    absl::Status status = FromGrpc(said);
    if (!NoConnection(said)) return then(std::move(status));
    if (closed_ || probe_address_.empty() || !WantsProbe(said.error_message()))
      return then(MarkNotConnected(std::move(status)));
    if (hint_ && loop_->Now() < hint_until_) return then(Hinted(status));
    unexplained_.emplace_back(std::move(status), std::move(then));
    if (unexplained_.size() > 1) return;
    probe_.emplace("tls_probe",
                   [loop = loop_, weak = weak_from_this(), address = probe_address_, pems = pems_] {
                     std::string hint = ProbeTls(address, pems.get());
                     loop->Post([weak, hint = std::move(hint)] {
                       if (const auto self = weak.lock()) self->OnProbed(hint);
                     });
                   });
  }
  void OnProbed(const std::string& hint) {
    hint_ = hint;
    hint_until_ = loop_->Now() + kHintHolds;
    for (auto& [status, then] : std::exchange(unexplained_, {})) then(Hinted(status));
  }
  absl::Status Hinted(const absl::Status& status) const {
    return hint_->empty()
               ? MarkNotConnected(status)
               : absl::Status(status.code(), absl::StrCat(*hint_, ": ", status.message()));
  }

  // Without a connection, the next one is made with the TLS files that are in use now. A connection
  // that is open stays open and serves further calls.
  void UseReloadedFiles() {
    if (watch_ != nullptr && watch_->pems() != pems_ &&
        channel_->GetState(false) != GRPC_CHANNEL_READY)
      Connect();
  }

  void Connect() {
    static std::atomic<int> next_channel{0};
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(std::max<std::uint64_t>(
        options_.message_bytes_max, wire::kMessagePayloadBytesMax + wire::kStreamHeaderBytes)));
    arguments.SetMaxSendMessageSize(-1);
    // The number keeps gRPC from sharing one connection between two channels: each pair of tasks
    // has its own connection (rule 9).
    arguments.SetInt("grpc.channel_id", next_channel.fetch_add(1));
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1500);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);  // Time limit of one attempt.
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // No message is compressed: only the identity encoding is enabled.
    arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1);
    if (watch_ != nullptr) pems_ = watch_->pems();
    channel_ =
        grpc::CreateCustomChannel(target_, ClientCredentials(pems_.get(), expected_), arguments);
  }

  const std::shared_ptr<GrpcLoop> loop_;
  const std::shared_ptr<BufferPool> pool_;
  const std::string target_;
  const std::string probe_address_;              // "" for a unix socket.
  const std::shared_ptr<const TlsWatch> watch_;  // null without TLS
  const ExpectedPeer expected_;
  const ChannelOptions options_;
  std::shared_ptr<const TlsPems> pems_;  // of channel_; null without TLS
  std::shared_ptr<grpc::Channel> channel_;
  bool closed_ = false;
  std::uint64_t next_call_ = 1;
  std::map<std::uint64_t, std::unique_ptr<UnaryCall>> calls_;
  std::shared_ptr<ChannelCore> self_;  // set after the close, until the calls have completed
  // The calls that wait for the result of a probe; not empty while a probe runs.
  std::vector<std::pair<absl::Status, std::function<void(absl::Status)>>> unexplained_;
  std::optional<std::string> hint_;
  MonoTime hint_until_{0};
  std::optional<runtime::Thread> probe_;
};

class GrpcChannel final : public Channel {
 public:
  GrpcChannel(std::shared_ptr<ChannelCore> core, fault::Failpoints* failpoints)
      : core_(std::move(core)), failpoints_(failpoints) {}
  ~GrpcChannel() override {
    core_->loop()->RunAndWait([this] { core_->Close(); });
  }

  void Unary(absl::string_view method, std::string request, std::chrono::milliseconds deadline,
             UnaryDone done) override {
    const auto until = std::chrono::system_clock::now() + deadline;
    if (absl::Status status = posted_->Enter(); !status.ok()) return done(std::move(status));
    const bool posted =
        core_->loop()->Post([core = core_, limit = posted_, method = std::string(method),
                             request = std::move(request), until, done] {
          limit->Leave();
          if (request.size() > core->options().message_bytes_max) {
            return done(absl::InvalidArgumentError(
                absl::StrCat("the message is too large: bytes=", request.size(),
                             " max=", core->options().message_bytes_max)));
          }
          core->Unary(method, request, until, done);
        });
    if (!posted) done(absl::CancelledError("transport has shut down"));
  }
  std::unique_ptr<MessageStream> OpenStream(absl::string_view method,
                                            MessageStreamEvents events) override {
    const auto& o = core_->options();
    auto stream = std::make_shared<MessageStreamCore>(
        core_->loop(), failpoints_,
        MessageStreamCore::Options{.message_bytes_max = o.message_bytes_max,
                                   .unsent_bytes_max = o.unsent_bytes_max,
                                   .progress_timeout = o.progress_timeout});
    core_->loop()->Post(
        [core = core_, stream, method = std::string(method), events = std::move(events)]() mutable {
          stream->Start(core->Open(method, false), std::move(events));
        });
    return stream->MakeHandle();
  }
  std::unique_ptr<DataStream> OpenData() override {
    return MakeDataStream(
        core_->loop(),
        [core = core_](absl::string_view method, bool fresh) { return core->Open(method, fresh); },
        core_->pool(), core_->options());
  }

 private:
  const std::shared_ptr<ChannelCore> core_;
  const std::shared_ptr<PostLimit> posted_ = std::make_shared<PostLimit>(
      core_->options().inflight_calls_max);  // Shared with posted tasks.
  fault::Failpoints* const failpoints_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Channel>> DialGrpc(std::shared_ptr<GrpcLoop> loop,
                                                  std::shared_ptr<BufferPool> pool,
                                                  TlsWatches* watches, const Address& address,
                                                  const ChannelOptions& options,
                                                  fault::Failpoints* failpoints) {
  if (absl::Status status = CheckLaneOption(options.lane_ring_bytes); !status.ok()) return status;
  auto watch = watches->WatchOf(options.tls);
  if (!watch.ok()) return watch.status();
  const bool by_socket = options.use_unix && CanConnectUnix(address.unix_path);
  // gRPC would take a port above 65535 modulo 65536.
  if (!by_socket && !ParseHostPort(address.host_port))
    return absl::InvalidArgumentError(absl::StrCat(
        "address is not host:port with a port up to 65535: `", address.host_port, "`"));
  std::string target = by_socket ? absl::StrCat("unix:", address.unix_path) : address.host_port;
  ExpectedPeer expected{options.peer_task,
                        options.check_host && !by_socket ? address.host_port : ""};
  auto core = std::make_shared<ChannelCore>(std::move(loop), std::move(pool), std::move(target),
                                            by_socket ? "" : address.host_port, *std::move(watch),
                                            std::move(expected), options);
  return std::make_unique<GrpcChannel>(std::move(core), failpoints);
}

}  // namespace evergrad::transport
