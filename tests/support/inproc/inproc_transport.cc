#include "tests/support/inproc/inproc_transport.h"

#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/transport/lane/lane.h"
#include "common/transport/not_connected.h"
#include "common/transport/streams/data_stream.h"
#include "common/transport/streams/link.h"
#include "common/transport/streams/loop.h"
#include "common/transport/streams/message_stream.h"
#include "common/transport/streams/post_limit.h"
#include "common/transport/streams/server_core.h"

namespace evergrad::transport {
namespace {

class InprocLoop final : public Loop {
 public:
  bool Post(runtime::Task task) override { return executor_.Post(std::move(task)); }
  bool PostAfter(std::chrono::nanoseconds delay, runtime::Task task) override {
    return executor_.PostAfter(delay, std::move(task));
  }
  bool InThisThread() const override { return executor_.InThisThread(); }
  void Shutdown() { executor_.Shutdown(); }

 private:
  runtime::ThreadExecutor executor_{{.name = "inproc"}};
};

// One end of a stream. Every step is a separate task on the loop. As on a network, a call therefore
// never emits an event before it returns.
class InprocLink final : public Link, public std::enable_shared_from_this<InprocLink> {
 public:
  explicit InprocLink(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}
  static void Join(const std::shared_ptr<InprocLink>& client,
                   const std::shared_ptr<InprocLink>& server) {
    client->other_ = server;
    server->other_ = client;
    server->server_ = true;
    // As in a real connection, the client's end keeps the server's end alive.
    client->keep_ = server;
  }
  // Makes this the link to an address at which no server listens.
  void Refuse(absl::Status why) { refused_ = std::move(why); }

  void Start(std::shared_ptr<LinkEvents> events) override {
    events_ = std::move(events);
    loop_->Post([self = shared_from_this()] {
      if (!self->refused_.ok()) return self->End(self->refused_);
      if (const auto e = self->events_) e->OnOpen();
    });
  }
  void Send(OutgoingPieces pieces) override {
    loop_->Post([self = shared_from_this(), pieces = std::move(pieces)] {
      if (const auto other = self->other_.lock(); other != nullptr && !other->finished_) {
        if (const auto e = other->events_) {
          std::vector<std::span<const std::byte>> views;
          views.reserve(pieces.size());
          for (const auto& piece : pieces) views.push_back(piece.bytes);
          e->OnMessage(views);
        }
      }
      if (const auto e = self->events_) e->OnSent();
    });
  }
  void Finish(absl::Status status) override {
    finished_ = server_;  // a server receives no message after it has ended the stream
    loop_->Post([self = shared_from_this(), status = std::move(status)] {
      if (const auto other = self->other_.lock())
        other->End(self->server_ ? status : absl::OkStatus());
      self->End(absl::OkStatus());
    });
  }
  void Detach() override {
    events_ = nullptr;
    loop_->Post([self = shared_from_this()] {
      if (const auto other = self->other_.lock())
        other->End(absl::UnavailableError("peer is disconnected"));
      self->keep_ = nullptr;
    });
  }

 private:
  void End(const absl::Status& status) {
    const auto events = std::exchange(events_, nullptr);
    keep_ = nullptr;
    if (events != nullptr) events->OnEnd(status);
  }

  const std::shared_ptr<Loop> loop_;
  std::shared_ptr<LinkEvents> events_;
  std::weak_ptr<InprocLink> other_;
  std::shared_ptr<InprocLink> keep_;
  absl::Status refused_;
  bool server_ = false;
  bool finished_ = false;
};

// Maps each address to its server. Used only on the loop.
struct Registry {
  std::map<std::string, std::weak_ptr<ServerCore>> servers;
  std::uint64_t next_port = 1;

  std::shared_ptr<ServerCore> Find(const std::string& address) {
    const auto it = servers.find(address);
    return it == servers.end() ? nullptr : it->second.lock();
  }
};

absl::Status NoServer(const std::string& address) {
  return MarkNotConnected(
      absl::UnavailableError(absl::StrCat("no listener at the address: address=", address)));
}

class InprocServer final : public Server {
 public:
  InprocServer(std::shared_ptr<Loop> loop, std::shared_ptr<Registry> registry,
               std::shared_ptr<ServerCore> core, std::string address)
      : loop_(std::move(loop)),
        registry_(std::move(registry)),
        core_(std::move(core)),
        address_(std::move(address)) {}
  ~InprocServer() override { Shutdown(); }
  std::string address() const override { return address_; }
  std::string unix_path() const override { return ""; }
  void Shutdown() override {
    loop_->AwaitFlushed();
    loop_->RunAndWait([this] {
      if (registry_->Find(address_) == core_) registry_->servers.erase(address_);
      core_->Shutdown();
    });
  }
  Stats stats() const override { return core_->stats(); }

 private:
  const std::shared_ptr<Loop> loop_;
  // Shared by the servers and channels of one transport.
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<ServerCore> core_;
  const std::string address_;
};

// The state of a channel, which is used only on the loop. The channel and its calls in flight share
// it.
class ChannelCore : public std::enable_shared_from_this<ChannelCore> {
 public:
  ChannelCore(std::shared_ptr<Loop> loop, std::shared_ptr<Registry> registry,
              std::shared_ptr<BufferPool> pool, std::string address, ChannelOptions options)
      : loop_(std::move(loop)),
        registry_(std::move(registry)),
        pool_(std::move(pool)),
        address_(std::move(address)),
        options_(std::move(options)) {}

  void Unary(std::string method, std::string request, std::chrono::milliseconds deadline,
             UnaryDone done) {
    if (closed_) return done(absl::CancelledError("channel closed"));
    if (calls_.size() >= options_.inflight_calls_max)
      return done(absl::ResourceExhaustedError(
          absl::StrCat("too many calls in flight: max=", options_.inflight_calls_max)));
    const auto server = registry_->Find(address_);
    if (server == nullptr) return done(NoServer(address_));
    if (!server->AdmitCall())
      return done(absl::ResourceExhaustedError("server has too many calls"));
    const std::uint64_t id = next_call_++;
    calls_.emplace(id, std::move(done));
    loop_->PostAfter(deadline, [weak = weak_from_this(), id] {
      if (const auto self = weak.lock())
        self->Finish(id, absl::DeadlineExceededError("unary call: deadline exceeded"));
    });
    server->Unary({.address = "inproc"}, method, std::move(request),
                  [weak = weak_from_this(), id, server](absl::StatusOr<std::string> response) {
                    server->CallEnded();
                    const auto self = weak.lock();
                    if (self == nullptr) return;
                    if (response.ok() && response->size() > self->options_.message_bytes_max) {
                      response = absl::ResourceExhaustedError(
                          absl::StrCat("message too large: bytes=", response->size(),
                                       " max=", self->options_.message_bytes_max));
                    }
                    self->Finish(id, std::move(response));
                  });
  }

  std::shared_ptr<Link> Open(absl::string_view method) {
    auto client = std::make_shared<InprocLink>(loop_);
    const auto server = registry_->Find(address_);
    if (server == nullptr) {
      client->Refuse(NoServer(address_));
    } else if (!server->AdmitCall()) {
      client->Refuse(absl::ResourceExhaustedError("server has too many streams"));
    } else {
      auto end = std::make_shared<InprocLink>(loop_);
      InprocLink::Join(client, end);
      loop_->Post([server, end, method = std::string(method), name = options_.client_name] {
        if (method == kDataMethod) {
          server->AcceptData(end, {.address = "inproc", .client_name = name});
        } else {
          server->AcceptStream(end, {.address = "inproc"}, method);
        }
      });
    }
    return client;
  }

  void Close() {
    closed_ = true;
    while (!calls_.empty()) Finish(calls_.begin()->first, absl::CancelledError("channel closed"));
  }
  const ChannelOptions& options() const { return options_; }
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }

 private:
  void Finish(std::uint64_t id, absl::StatusOr<std::string> response) {
    auto node = calls_.extract(id);
    if (!node.empty()) node.mapped()(std::move(response));
  }

  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<BufferPool> pool_;
  const std::string address_;
  const ChannelOptions options_;
  bool closed_ = false;
  std::uint64_t next_call_ = 1;
  std::map<std::uint64_t, UnaryDone> calls_;
};

class InprocChannel final : public Channel {
 public:
  InprocChannel(std::shared_ptr<ChannelCore> core, fault::Failpoints* failpoints)
      : core_(std::move(core)), failpoints_(failpoints) {}
  ~InprocChannel() override {
    core_->loop()->RunAndWait([this] { core_->Close(); });
  }

  void Unary(absl::string_view method, std::string request, std::chrono::milliseconds deadline,
             UnaryDone done) override {
    if (absl::Status status = posted_->Enter(); !status.ok()) return done(std::move(status));
    const bool posted =
        core_->loop()->Post([core = core_, limit = posted_, method = std::string(method),
                             request = std::move(request), deadline, done]() mutable {
          limit->Leave();
          if (request.size() > core->options().message_bytes_max) {
            return done(absl::InvalidArgumentError(
                absl::StrCat("message too large: bytes=", request.size(),
                             " max=", core->options().message_bytes_max)));
          }
          core->Unary(std::move(method), std::move(request), deadline, std::move(done));
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
          stream->Start(core->Open(method), std::move(events));
        });
    return stream->MakeHandle();
  }
  std::unique_ptr<DataStream> OpenData() override {
    return MakeDataStream(
        core_->loop(),
        [core = core_](absl::string_view method, bool) { return core->Open(method); },
        core_->pool(), core_->options());
  }

 private:
  const std::shared_ptr<ChannelCore> core_;
  const std::shared_ptr<PostLimit> posted_ = std::make_shared<PostLimit>(
      core_->options().inflight_calls_max);  // shared with the tasks that were posted
  fault::Failpoints* const failpoints_;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(fault::Failpoints* failpoints, health::Health* health)
      : failpoints_(failpoints), health_(health) {
    if (health != nullptr) health->liveness().Watch("inproc", loop_.get());
  }
  ~InprocTransport() override {
    loop_->AwaitFlushed();
    loop_->Shutdown();
  }

  absl::StatusOr<std::unique_ptr<Server>> Listen(const ServerOptions& options,
                                                 Handlers handlers) override {
    if (!options.tls.empty())
      return absl::InvalidArgumentError("the in-process transport has no TLS");
    auto core = ServerCore::Make(options, std::move(handlers), loop_, failpoints_, health_);
    std::string address =
        options.insecure_listen.empty() ? options.listen : options.insecure_listen;
    bool taken = false;
    loop_->RunAndWait([&] {
      if (absl::EndsWith(address, ":0"))
        address = absl::StrCat(address.substr(0, address.size() - 1), registry_->next_port++);
      taken = registry_->Find(address) != nullptr;
      if (!taken) registry_->servers[address] = core;
    });
    if (taken)
      return absl::UnavailableError(absl::StrCat("cannot bind: address in use: ", address));
    return std::make_unique<InprocServer>(loop_, registry_, std::move(core), std::move(address));
  }

  absl::StatusOr<std::unique_ptr<Channel>> Dial(const Address& address,
                                                const ChannelOptions& options) override {
    if (!options.tls.empty())
      return absl::InvalidArgumentError("the in-process transport has no TLS");
    if (absl::Status status = CheckLaneOption(options.lane_ring_bytes); !status.ok()) return status;
    return std::make_unique<InprocChannel>(
        std::make_shared<ChannelCore>(loop_, registry_, pool_, address.host_port, options),
        failpoints_);
  }

 private:
  fault::Failpoints* const failpoints_;
  health::Health* const health_;
  const std::shared_ptr<InprocLoop> loop_ = std::make_shared<InprocLoop>();
  const std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(kClientPoolBytesMax);
};

}  // namespace

std::unique_ptr<Transport> MakeInprocTransport(fault::Failpoints* failpoints,
                                               health::Health* health) {
  return std::make_unique<InprocTransport>(failpoints, health);
}

}  // namespace evergrad::transport
