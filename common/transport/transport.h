// Channels and servers for every call between two processes. (common/metrics serves metrics over
// HTTP.) One contract suite covers both implementations: GrpcTransport (gRPC 1.51, byte buffers),
// and tests/support/inproc inside one process, for tests and ThreadSanitizer.
//
// Three kinds of call:
//   unary     small control calls (psctl -> coordinator, health)
//   message   bidirectional streams of small messages in order (the session)
//   data      bulk requests and answers, many in flight, answers in any order, with credits
//             (common/wire/FORMAT.md)
//
// `Rule 1` to `rule 10` in the comments of this room are the ten rules in the section "Bulk data"
// of ARCHITECTURE.
//
// Threads: every callback runs on a transport thread and must not block; it posts longer work to an
// executor. After Close() or the destructor of an object has returned, none of its callbacks runs.
// Everything is bounded: requests beyond a limit are refused with kResourceExhausted and never
// queued without limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/tensor.h"

namespace evergrad::transport {

struct Address {
  std::string host_port;  // "127.0.0.1:4000"; inproc: any name
  // "", or the socket of a peer on this host. The socket is used if the options allow it and the
  // peer can be reached through it.
  std::string unix_path;
};

class TlsWatch;

struct TlsFiles {
  std::string ca, cert, key;  // PEM paths; all three or none
  // The task that `cert` must name: "coordinator", "worker", "ps_server/0"; "" for any.
  std::string task = {};
  // The watch that reads these files again and reports to its owner, such as a daemon. The
  // ownership is shared with the listeners and channels, which use its certificates. With null, the
  // transport watches the files itself, and reports nothing.
  std::shared_ptr<TlsWatch> watch = {};
  bool empty() const { return ca.empty() && cert.empty() && key.empty(); }
};

// Bytes to send, as pieces that are gathered without a copy. Each owner is held until the bytes
// have left the process.
struct Frame {
  std::vector<tensor::SharedBytes> pieces;
  std::uint64_t size() const;
};

// A reserved part of a limit, for example of the budget. The destructor returns the part to the
// owner of the limit (rule 5). Move-only.
class Reservation {
 public:
  virtual ~Reservation() = default;
};

// Received bytes in one aligned buffer, into which each byte was copied exactly once. `reservation`
// holds the part of the budget for these bytes.
struct ReceivedFrame {
  tensor::AlignedBuffer bytes;
  std::unique_ptr<Reservation> reservation;
};

// ------------------------------------------------------------------ client side

using UnaryDone = std::function<void(absl::StatusOr<std::string>)>;

class MessageStream {
 public:
  virtual ~MessageStream() = default;  // Calls Close().
  // Sends messages in order. Returns kResourceExhausted if `unsent_bytes_max` would be exceeded
  // because the peer does not read, and kUnavailable once the stream has ended.
  virtual absl::Status Send(std::string message) = 0;
  // Half-closes the stream after the messages that were sent before, and then ends it. Idempotent.
  // No callback runs after Close has returned. The peer has 2 s to accept unsent messages, which
  // are dropped afterwards. A transport or server that is destroyed in these 2 s waits for the
  // peer.
  virtual void Close() = 0;
};
struct MessageStreamEvents {
  std::function<void(std::string)> on_message;
  // on_end is called exactly once, unless Close() came first. OK means that the peer ended the
  // stream.
  std::function<void(absl::Status)> on_end;
};

using DataDone = std::function<void(absl::StatusOr<ReceivedFrame>)>;
struct DataOptions {
  // Largest payload of the answer; the server reserves it before the grant.
  std::uint64_t response_bytes_max = 0;
  // Time without progress after which the call ends. Progress is a grant, or a part of the request
  // or of the answer that was sent or received. While the server is alive, a call waits for its
  // grant six times as long.
  std::chrono::milliseconds deadline{30000};
};

class DataStream {
 public:
  // Every outstanding call ends with kCancelled before the destructor returns.
  virtual ~DataStream() = default;
  // Announces a request of `request_bytes` in advance. A later `Call` with the returned ticket then
  // already has its grant. Optional; a request of at most 64 KiB (with its answer) needs no ticket.
  // A ticket ends at its deadline, with the link, or when it has been unused for the server's
  // grant_unused_max. A Call with an ended ticket announces its request again, or ends with Aborted
  // (retryable) if the server's message about the end of the ticket was still in flight.
  virtual std::uint64_t Announce(std::uint64_t request_bytes, const DataOptions& options) = 0;
  // Ends a ticket without a Call, so that the server frees the reserved memory. Has no effect on a
  // ticket that was used or has ended.
  virtual void Abandon(std::uint64_t ticket) = 0;
  // With `ticket` 0 the stream announces the request itself if necessary. More bytes than announced
  // give InvalidArgument. `done` is called exactly once. The callback gets kUnavailable if the
  // stream is down. A stream that is down redials with backoff, and its calls fail at once.
  virtual void Call(std::uint64_t ticket, Frame request, const DataOptions& options,
                    DataDone done) = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;
  virtual void Unary(absl::string_view method, std::string request,
                     std::chrono::milliseconds deadline, UnaryDone done) = 0;
  virtual std::unique_ptr<MessageStream> OpenStream(absl::string_view method,
                                                    MessageStreamEvents events) = 0;
  virtual std::unique_ptr<DataStream> OpenData() = 0;
};

// Makes a unary call and blocks until it has ended, for psctl and tests. A transport thread must
// not call this function.
absl::StatusOr<std::string> UnaryAndWait(Channel& channel, absl::string_view method,
                                         std::string request, std::chrono::milliseconds deadline);

// ------------------------------------------------------------------ server side

struct PeerInfo {
  std::string address;           // in the transport's notation
  std::string certificate_name;  // common name of the verified client certificate, "" without TLS
  // The task that the certificate names: "worker/0", "worker" (any), "user/alice". "" exactly if
  // there is no TLS.
  std::string certificate_task;
  // The client's self-chosen name on a data stream (ChannelOptions), which is not proved.
  std::string client_name = {};
};
// Checks whether `peer` may be `task` ("worker/0", "user", "" for any). Returns OK without TLS,
// where identities are unknown. Otherwise the error is PermissionDenied: "certificate is for
// worker/0, expected coordinator".
absl::Status CheckPeer(const PeerInfo& peer, absl::string_view task);

// Answers a call once. A responder that is destroyed without an answer answers Internal.
class UnaryResponder {
 public:
  virtual ~UnaryResponder() = default;
  virtual void Answer(absl::StatusOr<std::string> response) = 0;
};
class DataResponder {
 public:
  virtual ~DataResponder() = default;
  // Sends the answer. `response` may exceed the announced response_bytes_max by at most 64 KiB of
  // header; a larger answer becomes Internal. The request's reservation is held until the answer
  // has been sent. To release it earlier, destroy the request's frame before the answer.
  virtual void Answer(Frame response) = 0;
  virtual void Fail(absl::Status status) = 0;
};

struct Handlers {
  // The handler must fail an unknown method with kUnimplemented through the responder.
  std::function<void(const PeerInfo&, absl::string_view method, std::string request,
                     std::unique_ptr<UnaryResponder>)>
      unary;
  // Accepts a new message stream and returns its event handlers, or refuses it with nullopt.
  // `stream` is the server's end.
  std::function<std::optional<MessageStreamEvents>(const PeerInfo&, absl::string_view method,
                                                   std::shared_ptr<MessageStream> stream)>
      stream;
  // Handles a complete request. Malformed transport messages never reach the handler: they end the
  // stream with a typed error.
  std::function<void(const PeerInfo&, ReceivedFrame request, std::unique_ptr<DataResponder>)> data;
};

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // port 0 selects any free port
  std::string insecure_listen;         // "", or the address to serve without TLS; the caller warns
  // "", or the path of a unix socket to serve as well, with mode 0600. If the path has more than
  // 107 bytes, the server logs this fact and uses TCP.
  std::string unix_path;
  TlsFiles tls;
  // The tasks whose certificates may open data streams: "worker", "worker,ps_server"; "" for all. A
  // peer whose certificate names no task is refused.
  std::string data_peers;
  // Limit of granted payload in flight, for all peers together.
  std::uint64_t budget_bytes_max = 256ull << 20;
  std::uint64_t small_reserve_bytes_max = 16ull << 20;
  std::uint64_t peer_small_bytes_max = 4ull << 20;
  // Limit of one message of a unary call or of a message stream.
  std::uint64_t message_bytes_max = 4ull << 20;
  std::uint64_t frame_bytes_max = 1ull << 30;    // limit of one data request or answer
  std::uint64_t unsent_bytes_max = 64ull << 20;  // limit of unsent bytes in one message stream
  std::uint32_t streams_max = 4096;
  // Limit of the memory of lanes, for all clients on this host together. Payload in a lane bypasses
  // the socket. 0 for no lanes.
  std::uint64_t lane_bytes_max = 0;
  // Receives the result of a client's lane offer: OK, or the reason why the client's payload uses
  // the socket. The function is called on a transport thread.
  std::function<void(const std::string& address, const absl::Status&)> on_lane = {};
  // Longest time from the beginning of a unary call to its complete request. A call that takes
  // longer ends with DeadlineExceeded.
  std::chrono::milliseconds unary_request_max{10000};
  std::chrono::milliseconds progress_timeout{5000};  // the watchdog (rule 8)
  // A grant for which no payload arrives during this time expires (rule 5). Its call then ends with
  // Aborted, which is retryable.
  std::chrono::milliseconds grant_unused_max{30000};
  // A shorter limit than grant_unused_max, for the time in which other peers wait. This limit
  // applies to a stream that sends nothing, or whose peer holds more than its share of the budget.
  // A stream that repeatedly leaves grants unused is ended with ResourceExhausted, and its peer
  // gets no new stream for `unused_pause`.
  std::chrono::milliseconds grant_idle_max{1000};
  std::chrono::milliseconds unused_pause{10000};
  // A function that is called on a transport thread when grants of `peer` were taken back. `ended`
  // states whether the stream was ended for this reason.
  std::function<void(const std::string& peer, std::uint64_t grants, std::uint64_t bytes,
                     bool ended)>
      on_unused_grants = {};
};

class Server {
 public:
  virtual ~Server() = default;                // Calls Shutdown().
  virtual std::string address() const = 0;    // the bound host:port
  virtual std::string unix_path() const = 0;  // the bound path, "" if not served
  // Ends all streams; no callback runs after it has returned. Idempotent.
  virtual void Shutdown() = 0;
  struct Stats {
    std::uint64_t budget_used = 0, budget_waiting = 0, small_used = 0, streams = 0;
    std::uint64_t peer_small_used = 0;  // bytes of the small reserve that its largest user holds
    // lane_bytes_refused counts the bytes refused because of lane_bytes_max.
    std::uint64_t lanes = 0, lane_bytes = 0, lane_bytes_refused = 0;
    // Refusals, by the limit that was exceeded. refused_total counts these refusals and those of
    // other limits.
    std::uint64_t budget_refused = 0, small_refused = 0, peer_small_refused = 0, frame_refused = 0,
                  streams_refused = 0;
    std::uint64_t taken_back_total = 0;  // grants that were not used
    std::uint64_t refused_total = 0, granted_total = 0, malformed_total = 0, bytes_received = 0,
                  bytes_sent = 0;
  };
  virtual Stats stats() const = 0;
};

struct ChannelOptions {
  TlsFiles tls;
  // With TLS, the task that the peer's certificate must name: "coordinator", "ps_server/0", or ""
  // for any task of the authority. Other peers are refused. `check_host` also requires the dialed
  // host in the certificate (over TCP).
  std::string peer_task;
  bool check_host = false;
  bool use_unix = false;
  // The client's own name on data streams, in ASCII. The name identifies the client at a server's
  // budget if no certificate does.
  std::string client_name = {};
  std::uint64_t message_bytes_max = 4ull << 20;
  std::uint64_t frame_bytes_max = 1ull << 30;
  std::uint64_t unsent_bytes_max = 64ull << 20;
  std::uint64_t inflight_calls_max = 4096;
  std::chrono::milliseconds progress_timeout{5000};
  // Bytes of memory to share with a server on this host, per direction of a data stream; 0 for
  // none. Dial returns InvalidArgument unless it is a multiple of 64 KiB up to 64 MiB.
  std::uint64_t lane_ring_bytes = 0;
  // Receives the result of the offer: OK, or the reason why payload uses the socket. The function
  // is called on a transport thread, once per connection.
  std::function<void(const absl::Status&)> on_lane = {};
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Serves at the address. With TLS, the files are read again at intervals (tls/tls_watch.h), and a
  // new connection uses the contents that are in use when it begins. Returns InvalidArgument for an
  // address other than loopback with neither TLS nor insecure_listen (promise P10), and names both
  // remedies. Returns InvalidArgument for bad certificates, and names the file. Returns Unavailable
  // if the address cannot be bound.
  virtual absl::StatusOr<std::unique_ptr<Server>> Listen(const ServerOptions& options,
                                                         Handlers handlers) = 0;
  // Opens a channel. Returns InvalidArgument for unreadable certificates. An unreachable peer is no
  // error here; its calls fail. With TLS, the files are read again as for Listen.
  virtual absl::StatusOr<std::unique_ptr<Channel>> Dial(const Address& address,
                                                        const ChannelOptions& options) = 0;
};

}  // namespace evergrad::transport
