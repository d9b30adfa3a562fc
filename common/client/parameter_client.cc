#include "common/client/parameter_client.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/wire/data_frame.h"

namespace evergrad::client {
namespace {

// The shards that a request names. The answer is checked against them: it must have the same
// shards. This object is kept while the request is in flight.
struct Asked {
  std::vector<std::uint32_t> pushes, pulls;
};

// Returns `text` with '?' in place of each character that is illegal in the headers of a call.
std::string AsciiOnly(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.substr(0, 128);
}

absl::Status Misfit(absl::string_view what, std::size_t index, std::uint64_t want,
                    std::uint64_t got) {
  return absl::InternalError(absl::StrCat("answer does not match its request: ", what,
                                          " section=", index, " want=", want, " got=", got));
}

absl::Status CheckFits(const Asked& asked, const v1::ResponseHeader& header) {
  if (static_cast<std::size_t>(header.pushes_size()) != asked.pushes.size()) {
    return Misfit("number of push results", 0, asked.pushes.size(),
                  static_cast<std::uint64_t>(header.pushes_size()));
  }
  if (static_cast<std::size_t>(header.pulls_size()) != asked.pulls.size()) {
    return Misfit("number of pull results", 0, asked.pulls.size(),
                  static_cast<std::uint64_t>(header.pulls_size()));
  }
  for (std::size_t i = 0; i < asked.pushes.size(); ++i) {
    const auto got = header.pushes(static_cast<int>(i)).shard();
    if (got != asked.pushes[i]) return Misfit("shard of a push result", i, asked.pushes[i], got);
  }
  for (std::size_t i = 0; i < asked.pulls.size(); ++i) {
    const auto got = header.pulls(static_cast<int>(i)).shard();
    if (got != asked.pulls[i]) return Misfit("shard of a pull result", i, asked.pulls[i], got);
  }
  return absl::OkStatus();
}

absl::StatusOr<ParameterClient::Answer> Read(const Asked& asked, transport::ReceivedFrame frame) {
  const std::span<const std::byte> bytes(frame.bytes.data(), frame.bytes.size());
  EG_ASSIGN_OR_RETURN(wire::Response response, wire::ParseResponse(bytes));
  if (response.header->has_error()) return FromErrorDetail(response.header->error());
  EG_RETURN_IF_ERROR(CheckFits(asked, *response.header));
  ParameterClient::Answer answer;
  answer.header = std::move(response.header);
  answer.payloads = std::move(response.payloads);
  answer.frame = std::move(frame);  // Moving the buffer keeps its address, so the spans stay valid.
  return answer;
}

}  // namespace

struct ParameterClient::Impl {
  // The channel to one server, and its data stream. `users` counts the calls of Send that are
  // inside the stream at present. The thread that retires a peer waits until there are none, and
  // then destroys the peer itself. The last user cannot destroy the peer, because it may be a
  // transport thread, which must not wait for its own callbacks.
  struct Peer {
    std::string address;
    std::unique_ptr<transport::Channel> channel;
    std::unique_ptr<transport::DataStream> stream;  // Destroyed before its channel.
    int users = 0;
  };

  // The key of a peer: host:port, unix path, identity.
  using PeerKey = std::tuple<std::string, std::string, std::string>;

  // Returns the peer of `endpoint`, with `users` incremented. Dials the peer if there is none.
  absl::StatusOr<std::shared_ptr<Peer>> Use(const v1::Endpoint& endpoint) {
    const bool same_host = !host_id.empty() && endpoint.host_id() == host_id;
    const transport::Address address{
        endpoint.address(), options.use_unix && same_host ? endpoint.unix_path() : std::string()};
    const PeerKey key(address.host_port, address.unix_path, endpoint.server());
    {
      MutexLock lock(&mu);
      if (const auto it = peers.find(key); it != peers.end()) {
        ++it->second->users;
        return it->second;
      }
    }
    // The lock is not held while dialing, because certificates are read from files. If two callers
    // dial at once, both use the peer of the first one, and the other peer is dropped.
    auto made = std::make_shared<Peer>();
    made->address = address.host_port;
    transport::ChannelOptions channel = options;
    channel.client_name = AsciiOnly(client_name);
    channel.peer_task =
        endpoint.server().empty() ? "ps_server" : absl::StrCat("ps_server/", endpoint.server());
    EG_ASSIGN_OR_RETURN(made->channel, transport->Dial(address, channel));
    made->stream = made->channel->OpenData();
    MutexLock lock(&mu);
    auto& peer = peers.try_emplace(key, made).first->second;
    ++peer->users;
    return peer;
  }

  void Release(Peer& peer) {
    MutexLock lock(&mu);
    if (--peer.users == 0) idle.NotifyAll();
  }

  // Increments `users` and returns true if the peer is still in use.
  bool UseAgain(const std::shared_ptr<Peer>& peer) {
    MutexLock lock(&mu);
    for (const auto& [key, kept] : peers) {
      if (kept != peer) continue;
      ++peer->users;
      return true;
    }
    return false;
  }

  void Retire(const std::function<bool(const std::string&)>& retired) {
    std::vector<std::shared_ptr<Peer>> gone;
    {
      MutexLock lock(&mu);
      for (auto it = peers.begin(); it != peers.end();) {
        if (retired(it->second->address)) {
          gone.push_back(std::move(it->second));
          it = peers.erase(it);
        } else {
          ++it;
        }
      }
      for (const auto& peer : gone) {
        while (peer->users > 0) idle.Wait(&mu);
      }
    }
    for (const auto& peer : gone) {
      peer->stream.reset();
      peer->channel.reset();
    }
  }

  transport::Transport* transport;
  transport::ChannelOptions options;
  std::string client_name;
  std::string host_id;
  mutable Mutex mu;
  CondVar idle;
  // The map shares the ownership of a peer with the calls of Send that use the peer at present.
  std::map<PeerKey, std::shared_ptr<Peer>> peers ABSL_GUARDED_BY(mu);
  Stats stats ABSL_GUARDED_BY(mu);
};

class ParameterClient::Announcement {
 public:
  Announcement(std::weak_ptr<Impl> client, std::weak_ptr<Impl::Peer> peer, std::uint64_t ticket,
               std::uint64_t request_bytes, std::uint64_t response_bytes)
      : client_(std::move(client)),
        peer_(std::move(peer)),
        ticket_(ticket),
        request_bytes_(request_bytes),
        response_bytes_(response_bytes) {}
  ~Announcement() {
    const auto client = client_.lock();
    const auto peer = peer_.lock();
    if (ticket_ == 0 || client == nullptr || peer == nullptr || !client->UseAgain(peer)) return;
    peer->stream->Abandon(ticket_);
    client->Release(*peer);
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

  // Returns the ticket (transport::DataStream::Announce) if the announcement was made to this peer
  // and covers both sizes; the caller must use the ticket for its request. Otherwise returns 0.
  std::uint64_t Take(const std::shared_ptr<Impl::Peer>& peer, std::uint64_t request_bytes,
                     std::uint64_t response_bytes) {
    if (peer_.lock() != peer || request_bytes > request_bytes_ || response_bytes > response_bytes_)
      return 0;
    return std::exchange(ticket_, 0);
  }

 private:
  const std::weak_ptr<Impl> client_;
  const std::weak_ptr<Impl::Peer> peer_;
  std::uint64_t ticket_;
  const std::uint64_t request_bytes_, response_bytes_;
};

void ParameterClient::AnnouncementDeleter::operator()(Announcement* announcement) const {
  delete announcement;
}

ParameterClient::ParameterClient(transport::Transport* transport, transport::ChannelOptions options,
                                 std::string client_name, std::string host_id)
    : impl_(std::make_shared<Impl>()) {
  impl_->transport = transport;
  impl_->options = std::move(options);
  impl_->client_name = std::move(client_name);
  impl_->host_id = std::move(host_id);
}

ParameterClient::~ParameterClient() {
  impl_->Retire([](const std::string&) { return true; });
}

void ParameterClient::Send(const v1::Endpoint& endpoint, v1::RequestHeader&& header,
                           std::vector<tensor::SharedBytes> payloads,
                           std::uint64_t response_bytes_max, std::chrono::milliseconds deadline,
                           std::function<void(absl::StatusOr<Answer>)> done, Announced announced,
                           std::vector<tensor::SharedBytes> ids) {
  if (payloads.size() != static_cast<std::size_t>(header.pushes_size())) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("expected one payload per push: pushes=", header.pushes_size(),
                     " payloads=", payloads.size())));
  }
  if (!ids.empty() && ids.size() != static_cast<std::size_t>(header.pushes_size()) +
                                        static_cast<std::size_t>(header.pulls_size())) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("expected one list of ids per section: sections=",
                     header.pushes_size() + header.pulls_size(), " lists=", ids.size())));
  }
  auto used = impl_->Use(endpoint);
  if (!used.ok()) return done(used.status());
  const std::shared_ptr<Impl::Peer> peer = *std::move(used);

  Asked asked;
  for (const auto& push : header.pushes()) asked.pushes.push_back(push.shard());
  for (const auto& pull : header.pulls()) asked.pulls.push_back(pull.shard());
  header.set_response_bytes_max(response_bytes_max);
  if (header.client_name().empty()) header.set_client_name(CleanText(impl_->client_name, 256));
  transport::Frame frame{wire::BuildRequest(&header, std::move(payloads), std::move(ids))};
  const std::uint64_t ticket =
      announced == nullptr ? 0 : announced->Take(peer, frame.size(), response_bytes_max);
  {
    MutexLock lock(&impl_->mu);
    ++impl_->stats.calls;
    impl_->stats.announced += ticket != 0;
    impl_->stats.bytes_sent += frame.size();
  }
  transport::DataOptions options;
  options.response_bytes_max = response_bytes_max;
  options.deadline = deadline;
  // The callback holds `impl_` for its counters, but not the peer: it must not destroy the stream
  // that is calling it.
  peer->stream->Call(ticket, std::move(frame), options,
                     [impl = impl_, asked = std::move(asked),
                      done = std::move(done)](absl::StatusOr<transport::ReceivedFrame> received) {
                       const std::uint64_t bytes = received.ok() ? received->bytes.size() : 0;
                       absl::StatusOr<Answer> answer =
                           received.ok() ? Read(asked, *std::move(received))
                                         : absl::StatusOr<Answer>(received.status());
                       {
                         MutexLock lock(&impl->mu);
                         impl->stats.bytes_received += bytes;
                         if (!answer.ok()) ++impl->stats.failures;
                       }
                       done(std::move(answer));
                     });
  impl_->Release(*peer);
}

ParameterClient::Announced ParameterClient::Announce(const v1::Endpoint& endpoint,
                                                     std::uint64_t request_bytes,
                                                     std::uint64_t response_bytes_max,
                                                     std::chrono::milliseconds deadline) {
  auto used = impl_->Use(endpoint);
  if (!used.ok()) return nullptr;
  transport::DataOptions options;
  options.response_bytes_max = response_bytes_max;
  options.deadline = deadline;
  const std::uint64_t ticket = (*used)->stream->Announce(request_bytes, options);
  Announced made(new Announcement(impl_, *used, ticket, request_bytes, response_bytes_max));
  impl_->Release(**used);
  return made;
}

void ParameterClient::Retain(const std::vector<std::string>& keep) {
  impl_->Retire([&keep](const std::string& address) {
    return std::find(keep.begin(), keep.end(), address) == keep.end();
  });
}

ParameterClient::Stats ParameterClient::stats() const {
  MutexLock lock(&impl_->mu);
  return impl_->stats;
}

}  // namespace evergrad::client
