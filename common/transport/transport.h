// Channels and servers: the way of every call between two processes. (Metrics are served by
// common/metrics, over HTTP.) One contract suite covers two implementations: GrpcTransport
// (gRPC 1.51, byte buffers) and InprocTransport, its twin inside one process for tests and
// ThreadSanitizer.
//
// Three kinds of call:
//   unary     small control calls (psctl -> coordinator, health)
//   message   bidirectional streams of small messages in order (the session)
//   data      bulk request/answer with many in flight, answers in any order, credits (FORMAT.md,
//   the ten rules)
//
// Threads: every callback runs on a transport thread and must not block; post to an executor. After
// Close() or the destructor of an object returns, none of its callbacks is running or will run.
// Bounded everywhere: what does not fit is refused with kResourceExhausted, never queued without
// end.
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
  std::string unix_path;  // "" or the socket of a peer on this host; used only when Options say so
                          // and it can be reached
};

struct TlsFiles {
  std::string ca, cert, key;  // PEM paths; all three or none
  std::string task =
      {};  // what `cert` must be for: "coordinator", "worker", "ps_server/0"; "" whatever it names
  bool empty() const { return ca.empty() && cert.empty() && key.empty(); }
};

// Bytes to send: pieces that are gathered without a copy. Each owner is held until the bytes have
// left the process.
struct Frame {
  std::vector<tensor::SharedBytes> pieces;
  std::uint64_t size() const;
};

// A released reservation frees credit at its owner; see rule 5. Move-only; release by destruction.
class Reservation {
 public:
  virtual ~Reservation() = default;
};

// Received bytes: one aligned buffer, exactly one copy from the network. `reservation` keeps its
// place in the budget.
struct ReceivedFrame {
  tensor::AlignedBuffer bytes;
  std::unique_ptr<Reservation> reservation;
};

// ------------------------------------------------------------------ client side

using UnaryDone = std::function<void(absl::StatusOr<std::string>)>;

class MessageStream {
 public:
  virtual ~MessageStream() = default;  // Close().
  // In order. kResourceExhausted when `unsent_bytes_max` would be passed (the peer does not read);
  // kUnavailable once ended.
  virtual absl::Status Send(std::string message) = 0;
  // Half-closes after what was sent has left, then ends. Idempotent. After it returns no callback
  // runs. The peer has 2 s to take what is unsent, then it is dropped; a transport or server that
  // ends meanwhile waits for that.
  virtual void Close() = 0;
};
struct MessageStreamEvents {
  std::function<void(std::string)> on_message;
  std::function<void(absl::Status)>
      on_end;  // Exactly once, unless Close() came first. OK: the peer ended it.
};

using DataDone = std::function<void(absl::StatusOr<ReceivedFrame>)>;
struct DataOptions {
  std::uint64_t response_bytes_max =
      0;  // payload that the answer may have; reserved at the server before the grant
  // The call ends when nothing of it has moved for so long: it was neither granted, nor was a part
  // of it sent or answered. While the server is alive, a call waits for its grant six times as
  // long.
  std::chrono::milliseconds deadline{30000};
};

class DataStream {
 public:
  virtual ~DataStream() =
      default;  // Every call outstanding ends with kCancelled before it returns.
  // Announces early: the request of `request_bytes` will come. `Call` with the returned ticket then
  // finds its grant waiting. Optional; a request of at most 64 KiB (with its response) needs none.
  // A ticket ends at its deadline, with the link, or unused for the server's grant_unused_max; its
  // Call then announces again, or ends with Aborted (retryable) when it crossed the news.
  virtual std::uint64_t Announce(std::uint64_t request_bytes, const DataOptions& options) = 0;
  // No Call will come with this ticket: the server gets its room back. Nothing for a ticket that
  // was used or has ended.
  virtual void Abandon(std::uint64_t ticket) = 0;
  // `ticket` 0: announces by itself if it must. Bytes above the announced ones are InvalidArgument.
  // `done` exactly once. kUnavailable: the stream is down (it redials by itself with backoff; calls
  // made while it is down fail at once).
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

// Blocking convenience for psctl and tests; never from a transport thread.
absl::StatusOr<std::string> UnaryAndWait(Channel& channel, absl::string_view method,
                                         std::string request, std::chrono::milliseconds deadline);

// ------------------------------------------------------------------ server side

struct PeerInfo {
  std::string address;           // as the transport knows it
  std::string certificate_name;  // common name of the verified client certificate, "" without TLS
  std::string certificate_task;  // the task that it is for: "worker/0", "worker" (any),
                                 // "user/alice"; "" without TLS and only then
  std::string client_name = {};  // of a data stream: what the client calls itself (ChannelOptions),
                                 // which nobody has proved
};
// Whether `peer` may be `task` ("worker/0", "user", "" anybody). Without TLS, where nobody can
// tell, OK; else PermissionDenied: "certificate is for worker/0, expected coordinator".
absl::Status CheckPeer(const PeerInfo& peer, absl::string_view task);

// Answers once; dropping it unanswered answers Internal.
class UnaryResponder {
 public:
  virtual ~UnaryResponder() = default;
  virtual void Answer(absl::StatusOr<std::string> response) = 0;
};
class DataResponder {
 public:
  virtual ~DataResponder() = default;
  // `response` may not exceed the announced response_bytes_max by more than 64 KiB of header: such
  // an answer is Internal. The request's reservation must have been released (its frame destroyed)
  // or it is held until the answer has left.
  virtual void Answer(Frame response) = 0;
  virtual void Fail(absl::Status status) = 0;
};

struct Handlers {
  // Unknown method: return kUnimplemented through the responder.
  std::function<void(const PeerInfo&, absl::string_view method, std::string request,
                     std::unique_ptr<UnaryResponder>)>
      unary;
  // A new message stream. The returned events are called for it; `stream` is the server's end. A
  // nullopt refuses it.
  std::function<std::optional<MessageStreamEvents>(const PeerInfo&, absl::string_view method,
                                                   std::shared_ptr<MessageStream> stream)>
      stream;
  // A whole request. Malformed transport messages never get here: they end the stream with a typed
  // error.
  std::function<void(const PeerInfo&, ReceivedFrame request, std::unique_ptr<DataResponder>)> data;
};

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // port 0: any
  std::string insecure_listen;  // "" or an address off loopback without TLS; the caller warns
  std::string unix_path;  // "" or a socket to serve as well, mode 0600; a path over 107 bytes falls
                          // back to TCP and says so
  TlsFiles tls;
  std::string
      data_peers;  // who may open data streams, by certificate: "worker", "worker,ps_server"; ""
                   // anybody. A peer whose certificate names no task gets nothing
  std::uint64_t budget_bytes_max = 256ull << 20;  // granted payload in flight, all peers
  std::uint64_t small_reserve_bytes_max = 16ull << 20;
  std::uint64_t peer_small_bytes_max = 4ull << 20;
  std::uint64_t message_bytes_max = 4ull << 20;  // unary and message streams
  std::uint64_t frame_bytes_max = 1ull << 30;    // one data request or answer
  std::uint64_t unsent_bytes_max = 64ull << 20;  // one message stream
  std::uint32_t streams_max = 4096;
  // Memory shared with clients of this host, all together, through which their payload comes
  // instead of through the socket; 0: none.
  std::uint64_t lane_bytes_max = 0;
  // What became of a client's offer: OK, or why its payload comes by the socket. On a transport
  // thread.
  std::function<void(const std::string& address, const absl::Status&)> on_lane = {};
  std::chrono::milliseconds unary_request_max{
      10000};  // from the beginning of a unary call to its whole request, else DeadlineExceeded
  std::chrono::milliseconds progress_timeout{5000};  // the watchdog (rule 8)
  std::chrono::milliseconds grant_unused_max{
      30000};  // a grant whose payload does not come is dead (rule 5): Aborted, retryable
  // The same while others wait, for a stream that sends nothing, or whose peer holds more than its
  // share of the budget. A stream that leaves grants unused again and again is ended with
  // ResourceExhausted, and its peer gets no new one for `unused_pause`.
  std::chrono::milliseconds grant_idle_max{1000};
  std::chrono::milliseconds unused_pause{10000};
  // Grants were taken back from this peer; `ended`: and its stream was ended for it. On a transport
  // thread.
  std::function<void(const std::string& peer, std::uint64_t grants, std::uint64_t bytes,
                     bool ended)>
      on_unused_grants = {};
};

class Server {
 public:
  virtual ~Server() = default;                // Shutdown().
  virtual std::string address() const = 0;    // host:port as bound
  virtual std::string unix_path() const = 0;  // as bound, "" when not served
  virtual void Shutdown() = 0;  // Ends streams; after it returns no callback runs. Idempotent.
  struct Stats {
    std::uint64_t budget_used = 0, budget_waiting = 0, small_used = 0, streams = 0;
    std::uint64_t peer_small_used = 0;                                // of the peer that uses most
    std::uint64_t lanes = 0, lane_bytes = 0, lane_bytes_refused = 0;  // refused: for lane_bytes_max
    // By limit; refused_total is all of them, and what other bounds refuse.
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
  // With TLS, whom the certificate of the peer must be for, else the connection is refused:
  // "coordinator", "ps_server/0"; "" any task of the authority. `check_host`: and for the host that
  // is dialed (over TCP).
  std::string peer_task;
  bool check_host = false;
  bool use_unix = false;
  // What the client calls itself on data streams: whose share of a server's budget they take part
  // in where no certificate says it. ASCII.
  std::string client_name = {};
  std::uint64_t message_bytes_max = 4ull << 20;
  std::uint64_t frame_bytes_max = 1ull << 30;
  std::uint64_t unsent_bytes_max = 64ull << 20;
  std::uint64_t inflight_calls_max = 4096;
  std::chrono::milliseconds progress_timeout{5000};
  // Memory to share with a server on this host, for each direction of a data stream; 0: none.
  // InvalidArgument unless it is a multiple of 64 KiB up to 64 MiB.
  std::uint64_t lane_ring_bytes = 0;
  // What became of it: OK, or why the payload goes by the socket. On a transport thread, once a
  // connection.
  std::function<void(const absl::Status&)> on_lane = {};
};

class Transport {
 public:
  virtual ~Transport() = default;
  // InvalidArgument: an address off loopback with neither TLS nor insecure_listen (P10), naming
  // both ways to open it; bad certificates, naming the file. Unavailable: cannot bind.
  virtual absl::StatusOr<std::unique_ptr<Server>> Listen(const ServerOptions& options,
                                                         Handlers handlers) = 0;
  // Never fails for an unreachable peer: calls do. InvalidArgument for unreadable certificates.
  virtual absl::StatusOr<std::unique_ptr<Channel>> Dial(const Address& address,
                                                        const ChannelOptions& options) = 0;
};

}  // namespace evergrad::transport
